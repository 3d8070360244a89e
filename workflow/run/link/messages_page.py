"""docs/messages.md, made from the types of the messages, so that the page and the code say the same.

`python -m workflow.run.link.messages_page` writes it; with `--check` it says whether it is current (exit 1 if not).
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, get_args

from msgspec import Meta, Struct

from base.packages import ROOMS
from base.publish import publish
from workflow.run.link import commands, reports
from workflow.run.link.messages import ORDERS, SAID

PAGE: Final = ROOMS / "docs" / "messages.md"
WIDTH: Final = 140
INTRODUCTION: Final = """\
A supervisor and the node programs that it has started talk over an authenticated connection (`workflow/run/link/protocol.py`). Each message
is one frozen value of a type in `workflow/run/link/reports.py` or `commands.py`. Its type and its ranges are checked when it comes, in
`messages.py` alone: what is not a message of these, lacks a field, has another one or a value out of range ends the connection with a
sentence that names message and field. Whether it fits the moment is for the module that acts on it.
This page is made from those modules by `make schemas`.

On the wire a message is a JSON object with its name under `say` or `do`. That format is no promise: both sides are of one version, because
the supervisor starts the node programs from its own installation."""
WORDS: Final = {int: "whole number", float: "number", str: "text"}
LIMITS: Final = {
    "ge": "from {}",
    "gt": "above {}",
    "le": "to {}",
    "min_length": "of {} or more characters",
    "max_length": "of {} or fewer characters",
    "pattern": "that matches `{}`",
}


def page() -> str:
    """The text of the file."""
    return (
        "\n\n".join(
            [
                "# Messages between supervisor and node programs",
                textwrap.fill(" ".join(INTRODUCTION.split("\n\n")[0].split()), WIDTH, break_on_hyphens=False),
                textwrap.fill(" ".join(INTRODUCTION.split("\n\n")[1].split()), WIDTH, break_on_hyphens=False),
                "## Node program to supervisor",
                *_sections(reports, list(SAID.values())),
                "## Supervisor to node program",
                *_sections(commands, list(ORDERS.values())),
                "## Values in messages",
                *_sections(reports, _values(reports, reports.Message)),
                *_sections(commands, _values(commands, commands.Message)),
                _elsewhere(),
                "## Kinds of fields",
                "\n".join(_kinds()),
            ]
        )
        + "\n"
    )


def main(arguments: Sequence[str], path: Path = PAGE) -> int:
    """Write the page, or check it. The exit code."""
    parser = argparse.ArgumentParser(prog="python -m workflow.run.link.messages_page", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if the page is not current")
    current = path.exists() and path.read_text(encoding="utf-8") == page()
    if not parser.parse_args(arguments).check:
        publish(path, page().encode())
        return 0
    if not current:
        sys.stderr.write(f"{path} is not what the types of the messages say; `make schemas` writes it\n")
    return int(not current)


def _values(module: ModuleType, message: type[Struct]) -> list[type[Struct]]:
    """The types of what stands in messages, in the order in which they are written."""
    found = [
        kind for kind in vars(module).values() if inspect.isclass(kind) and issubclass(kind, reports.Value) and kind is not reports.Value
    ]
    return [kind for kind in found if kind.__module__ == module.__name__ and not issubclass(kind, message)]


def _sections(module: ModuleType, kinds: Sequence[type[Struct]]) -> Iterator[str]:
    """A heading, when it is sent or what it is, and its fields."""
    classes = {node.name: node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)}
    order = list(classes)
    for kind in sorted(kinds, key=lambda kind: order.index(kind.__name__)):
        node, config = classes[kind.__name__], kind.__struct_config__
        name = f"`{config.tag}` ({kind.__name__})" if config.tag else f"`{kind.__name__}`"
        text = _wrapped(" ".join((ast.get_docstring(node) or "").split()))
        listed = "\n".join(_fields(node))
        yield f"### {name}\n\n{text}" + (f"\n\n{listed}" if listed else "")


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            words = _docstring(following)
            may_lack = "" if statement.value is None else ", may be left out"
            line = f"* `{statement.target.id}`: {_type(statement.annotation)}{may_lack}" + (f". {words}" if words else "")
            yield _wrapped(line, "  ")


def _docstring(statement: ast.stmt | None) -> str:
    """Of the field before it."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str):
        return " ".join(statement.value.value.split())
    return ""


def _type(annotation: ast.expr) -> str:
    """As people read it: `X | None` is X or null; what Annotated adds is said in words."""
    match annotation:
        case ast.BinOp(left=left, right=ast.Constant(value=None)):
            return f"{_type(left)} or null"
        case ast.BinOp(left=left, right=right):
            return f"{_type(left)} or {_type(right)}"
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[kind, ast.Call(keywords=limits)])):
            return f"{_type(kind)} ({', '.join(f'{limit.arg}: {_limit(limit.value)}' for limit in limits)})"
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=[kind, ast.Constant(value=value)])) if value is ...:
            return f"list of {_type(kind)}"
    return f"`{ast.unparse(annotation)}`"


def _limit(value: ast.expr) -> str:
    return str(getattr(reports, value.id)) if isinstance(value, ast.Name) else ast.unparse(value)


def _elsewhere() -> str:
    """Types of other rooms."""
    places: dict[str, list[str]] = {}
    for module in (reports, commands):
        for name, kind in sorted(vars(module).items()):
            of_ours = inspect.isclass(kind) and kind.__module__.partition(".")[0] in ("cluster", "workflow")
            if of_ours and not kind.__module__.startswith("workflow.run.link"):
                places.setdefault(kind.__module__.replace(".", "/") + ".py", []).append(name)
    listed = (f"{', '.join(f'`{name}`' for name in dict.fromkeys(names))} in `{place}`" for place, names in sorted(places.items()))
    return _wrapped(f"Of other rooms: {'; '.join(listed)}.")


def _kinds() -> Iterator[str]:
    for name, kind in vars(reports).items():
        metas = [meta for meta in getattr(kind, "__metadata__", ()) if isinstance(meta, Meta)]
        if metas:
            yield _wrapped(f"* `{name}`: {WORDS[get_args(kind)[0]]} {' '.join(_limits(metas[0]))}", "  ")


def _limits(meta: Meta) -> Iterator[str]:
    told: Mapping[str, Any] = {key: getattr(meta, key) for key in LIMITS}
    return (words.format(told[key]) for key, words in LIMITS.items() if told[key] is not None)


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
