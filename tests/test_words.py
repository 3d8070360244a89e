"""Docstrings of functions begin with a verb, those of classes with a noun, and names are the field's words: what issue 27 asks for."""

import ast
import functools
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("base", "cluster", "containers", "data_prep", "workflow", "extras", "snakemake_executor_plugin_slipway", "install", "historic")
VERBS = frozenset(
    """
    Accept Add Adopt Advise Allocate Allow Answer Append Apply Ask Assign Attach Authenticate Beat Begin Bind Block Bound Bring Build
    Call Cancel Check Choose Clear Close Collect Combine Compare Compile Complete Compute Concatenate Connect Continue Convert
    Convolve Copy Count Create Cut Decide Declare Decode Decompress Delete Deliver Derive Describe Detect Divide Do Download Draw Drop
    Emit Empty Encode End Ensure Enter Estimate Evaluate Evict Exchange Exclude Execute Expand Explain Export Extract Fail Feed Fetch
    Fill Find Finish Fit Flatten Flush Fold Follow Forget Format Forward Free Freeze Gather Give Group Guard Handle Hang Hash Hold
    Ignore Import Initialise Insert Install Interrupt Iterate Join Judge Keep Kill Launch Lead Leave Let Limit Link List Listen Load
    Lock Log Look Make Map Mark Match Mean Measure Merge Mount Move Multiply Name Normalise Note Notify Number Open Order Pack Pad
    Parse Pass Pin Ping Plan Poll Pool Predict Prepare Print Probe Process Propose Prove Publish Pull Push Put Query Queue Raise Read
    Rebuild Receive Recompute Record Refuse Register Release Remember Remove Rename Render Repeat Replace Report Request Requeue
    Reserve Reset Resolve Restart Restore Resume Retry Return Reuse Reverse Run Sample Save Say Scale Search Select Send Serve Set
    Shorten Show Shuffle Skip Sleep Sort Split Spread Stage Start Stop Store Submit Sum Take Tell Test Time Train Translate Try Turn
    Unmap Unpack Update Upload Use Validate Verify Wait Walk Warn Watch Widen Wrap Write Yield
    """.split()  # noqa: SIM905 - a list of 200 quoted words is harder to read and to extend
)
"""Verbs that a function's docstring begins with. Whoever needs another one adds it."""
FRAGMENTS = frozenset(
    "Of By As Those Where Whose Whether None Here Ours At For From In On See To Once After Before When Between Set Behind".split()  # noqa: SIM905
)
"""Words that begin a docstring which needs what stands above it: that of a class or a value is a noun phrase or a sentence."""
OLD_WORDS = frozenset(
    """
    strangers foreign obstacle rooms said told fate carried hindrance accepted lags kin outlook far dice hearer bury alike standing
    leads digits asked wanted able like place
    """.split()  # noqa: SIM905
)
"""Words that were names with a meaning of their own here. A limit is named by MAX_ or MIN_ and what it limits."""


@functools.cache
def modules(package: str) -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / package).rglob("*.py")}


def docstrings(package: str, *kinds: type[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]) -> Iterator[tuple[str, str]]:
    """Of each docstring of nodes of such a kind: where it stands with its first line, and its text."""
    for path, tree in modules(package).items():
        for node in ast.walk(tree):
            if isinstance(node, kinds) and (text := ast.get_docstring(node)):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {text.splitlines()[0]}", text


@pytest.mark.parametrize("package", PACKAGES)
def test_the_docstring_of_a_function_begins_with_a_verb(package: str) -> None:
    functions = docstrings(package, ast.FunctionDef, ast.AsyncFunctionDef)
    assert [line for line, text in functions if text.split()[0].rstrip(",;") not in VERBS] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_docstring_of_a_class_stands_alone(package: str) -> None:
    classes = docstrings(package, ast.ClassDef)
    assert [line for line, text in classes if text.split()[0].strip(",:") in FRAGMENTS or text.startswith("`")] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_docstring_of_a_value_stands_alone(package: str) -> None:
    found = []
    for path, tree in modules(package).items():
        bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
        for value, node in itertools.chain.from_iterable(map(itertools.pairwise, bodies)):
            match node:
                case ast.Expr(value=ast.Constant(value=str(text))) if isinstance(value, ast.Assign | ast.AnnAssign):
                    if text.split()[0].strip(",:") in FRAGMENTS:
                        found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {text.splitlines()[0]}")
    assert not found, "\n".join(found)


def names(tree: ast.Module) -> set[str]:
    found = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    for node in tree.body:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []:
            if isinstance(target, ast.Name):
                found.add(target.id)
    return found


def test_words_with_a_meaning_of_our_own_do_not_come_back_as_names() -> None:
    found = []
    for package in PACKAGES:
        for path, tree in modules(package).items():
            for name in {path.stem, *names(tree)}:
                words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", re.sub("(?i)in_place", "", name))}
                if (words & OLD_WORDS or words in ({"max"}, {"min"})) and name != "checkpoint_wanted":  # users type it
                    found.append(f"{path.relative_to(ROOT)}: {name}")
    assert not found, "\n".join(sorted(found))
