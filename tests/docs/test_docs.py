"""The documents say what the code does: every key, error, command, field, mark and link: a change of one without the other fails."""

import ast
import functools
import re
from pathlib import Path

import msgspec
import pytest

from docs.commands import commands, inner_commands
from workflow.commands.main import parser
from workflow.run.record.events import KINDS
from workflow.run.record.model import RunRecord
from workflow.study.matrix import EXPRESSION_KEYS
from workflow.study.site_file import read_site
from workflow.study.study import load_study

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CODE = re.compile(r"`([^`]+)`")
Rows = list[list[str]]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def documents() -> list[Path]:
    """Every Markdown file of the project, none of what is installed or generated."""
    places = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "build", "dist"))]
    return sorted([*ROOT.glob("*.md"), *(found for place in places for found in place.rglob("*.md") if "egg-info" not in str(found))])


def rows(name: str) -> Rows:
    """The cells of all table rows of a document."""
    lines = [line for line in read(name).splitlines() if line.startswith("|") and not re.fullmatch(r"[|\-: ]+", line)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def named_rows(name: str) -> dict[str, list[str]]:
    """Word in the first cell of a table row -> the row; a cell may name several."""
    return {word: row for row in reversed(rows(name)) for word in CODE.findall(row[0])}


def without_fences(text: str) -> str:
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def words(name: str) -> set[str]:
    """Every word that stands as code in a document, dotted and comma-separated ones also in their parts."""
    found = CODE.findall(without_fences(read(name)))
    return {part for text in found for part in (text, *re.split(r"[.,:\s\[\]{}]+", text))}


def test_every_name_of_an_expression_is_documented() -> None:
    assert set(EXPRESSION_KEYS) <= words("docs/reference/study-file.md")


def test_no_command_or_option_is_documented_that_is_not_there() -> None:
    typed = [
        (document, text)
        for document in documents()
        for text in re.findall(r"(?:`|^\$ |^)slipway ([a-z][^`\n]*)(?:`|$)", document.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(typed) > 100
    whole, inner_of = parser(), functools.cache(inner_commands)
    for document, text in typed:
        command = whole
        for word in text.split():
            inner = inner_of(command)
            if not inner or not re.fullmatch(r"[a-z-]+", word):
                break
            assert word in inner, f"{document.name}: slipway {text}"
            command = inner[word]
        options = {name for parameter in command.params for name in parameter.opts} | {"--help"}
        if command.name == "remote":  # passes on those of its verbs
            options |= {name for verb in commands().values() for parameter in verb.params for name in parameter.opts}
        strange = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)) - options
        assert inner_of(command) or not strange, f"{document.name}: slipway {text}: {strange}"


def test_every_field_of_the_record_is_documented() -> None:
    first = {word for row in rows("docs/reference/record.md") for word in CODE.findall(row[0])}
    parts = msgspec.json.schema(RunRecord)["$defs"]
    assert parts["RunRecord"]["properties"].keys() <= first
    missing = {key for part in parts.values() for key in part["properties"]} - words("docs/reference/record.md")
    assert not missing


def test_every_event_of_the_program_is_documented() -> None:
    known = words("docs/reference/record.md")
    written = set()
    programs = [*(ROOT / "containers" / "frameworks").rglob("*.py"), *(ROOT / "containers" / "lib" / "slipway_program").rglob("*.py")]
    for path in programs:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "emit":
                event = node.args[0]
                if isinstance(event, ast.Constant):
                    given = {keyword.arg for keyword in node.keywords if keyword.arg}
                    written.add(event.value)
                    assert not given - known, f"{path.name}: {event.value}: {given - known}"
    assert {"run_start", "step", "run_stop"} <= written
    assert set(re.findall(r"^\*\*(\w+)\*\*:", read("docs/reference/record.md"), re.MULTILINE)) == set(KINDS)
    assert written <= set(KINDS) | {"alive"}


def test_every_variable_of_a_program_is_documented() -> None:
    from cluster.types import Allocation, Node
    from containers.engines import bare
    from containers.spec import Owner, Paths
    from tests.workflow.run.cells import DOCUMENT
    from workflow.run.plan import Framework, Workload, container_spec

    paths = Paths(**dict.fromkeys(("cell", "data", "lib", "beat", "out", "resume", "program"), "p"))
    node = Node(name="n", hostname="h", address="a", interface="lo", cores=(0,))
    allocation = Allocation(scheduler="local", job_id="1", nodes=(node,), device="cpu", exclusive=True)
    framework = Framework(name="f", folder="/f", launcher="ranks", command=("{python}",))
    workload = Workload(owner=Owner(run_id="one-r1", attempt=1, tag="t"), framework=framework, cell=DOCUMENT)
    plan = bare.plan(container_spec(workload, allocation, 0, paths, ((1,),)), {})
    missing = {name for name, _ in plan.processes[0].env} - words("docs/developers/framework-contract.md")
    assert missing <= {"SLIPWAY_ATTEMPT", "PYTHONFAULTHANDLER"}


def test_every_plot_is_documented() -> None:
    from workflow.report.plots import PLOTS

    assert set(PLOTS) <= set(named_rows("docs/reference/tables.md"))


def anchors(path: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("document", documents(), ids=lambda path: path.name)
def test_relative_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_fences(document.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        place, _, anchor = target.partition("#")
        path = (document.parent / place).resolve() if place else document
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), target


def yaml_examples() -> list[tuple[str, str]]:
    found = []
    for document in documents():
        for number, block in enumerate(re.findall(r"^```yaml\n(.*?)^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)):
            found.append((f"{document.name}-{number}", block))
    return found


@pytest.mark.parametrize("block", [pytest.param(block, id=name) for name, block in yaml_examples()])
def test_yaml_examples_load(block: str, tmp_path: Path) -> None:
    path = tmp_path / "example.yaml"
    path.write_text(block)
    for name in ("train", "nanoGPT"):
        (tmp_path / name).mkdir()
    for name in ("train.py", "train.awk"):
        (tmp_path / "train" / name).touch()
    if re.search(r"^study:", block, re.MULTILINE):
        study = load_study(path, "local", {})
        assert study.cells
        assert study.notes == ()
    elif re.search(r"^storage:", block, re.MULTILINE):
        assert read_site(path).name == "example"


def test_the_example_with_everything_has_the_cells_that_the_text_says(tmp_path: Path) -> None:
    text = read("docs/reference/study-file.md")
    example = next(block for name, block in yaml_examples() if name == "study-file.md-0")
    path = tmp_path / "study.yaml"
    path.write_text(example)
    study = load_study(path, "local", {})
    assert f"{len(study.cells)} cells, {study.repeats} runs each" in text


@pytest.mark.parametrize("document", [*DOCS.rglob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"], ids=lambda path: path.name)
def test_prose_is_readable_and_names_no_machine(document: Path) -> None:
    fenced = False
    for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), start=1):
        fenced ^= line.startswith("```")
        assert fenced or line.startswith("|") or len(line) <= 141, f"{document.name}:{number}"
        assert not re.search(r"/work/|/root/|/home/", line), f"{document.name}:{number}"


def guide_words() -> set[str]:
    """What stands in backticks in the two pages that tell a contributor where things are."""
    return {word for name in ("CONTRIBUTING.md", "docs/developers/structure.md") for word in CODE.findall(without_fences(read(name)))}


def test_paths_in_the_guides_exist() -> None:
    rooms = r"base|cluster|config|containers|data_prep|install|profiles|tests|workflow|benchmarks|docs"
    paths = {word for word in guide_words() if re.fullmatch(rf"(?:{rooms})/[\w./-]+", word)}
    assert len(paths) > 15
    assert not sorted(path for path in paths if not (ROOT / path).exists())


def test_constants_and_types_in_the_guides_exist() -> None:
    named = {word for word in guide_words() if re.fullmatch(r"_?[A-Z][A-Z_]{3,}|(?:[A-Z][a-z]+){1,4}", word)}
    sources = [
        path.read_text(encoding="utf-8")
        for room in ("base", "cluster", "containers", "data_prep", "workflow")
        for path in (ROOT / room).rglob("*.py")
    ]
    defined = {name for source in sources for name in re.findall(r"^(?:class )?(_?[A-Z]\w+)\b", source, re.MULTILINE)}
    assert len(named) > 20
    assert not sorted(named - defined - {"Dockerfile", "None"})
