"""Imports go one way: base <- cluster <- data_prep, containers <- workflow <- extras; and inside of workflow, from SUB_ROOMS down."""

import re
import tokenize
import tomllib
from pathlib import Path

import pytest

from base import VERSION
from cluster.detection import SIGNS
from cluster.schedulers import SCHEDULERS
from tests.syntax import syntax

ROOT = Path(__file__).parents[1]
RULES = [ROOT / "Snakefile", *(ROOT / "workflow" / "rules").glob("*.smk")]
ROOMS = {
    "base": {"base"},
    "cluster": {"base", "cluster"},
    "data_prep": {"base", "cluster", "data_prep"},
    "containers": {"base", "cluster", "containers"},
    "workflow": {"base", "cluster", "data_prep", "containers", "workflow"},
    "extras": {"base", "cluster", "data_prep", "containers", "workflow", "extras"},
}
COMMAND_LINE = "workflow/commands/main.py"
"""The one module below extras that imports them: it loads the module of the command that was typed."""
SUB_ROOMS = (
    "commands",
    "commands.watching",
    "dag",
    "report",
    "run.supervisor",
    "run.node",
    "run.storage",
    "run.images",
    "run.link",
    "run.record",
    "run.plan",
    "study",
)
"""Of workflow: each imports only what stands after it, also where only types are checked."""
WITHOUT_ROOM = {
    "historic": "the distribution of that name, through the fixtures of the tests of the others",
    "fuzz": "all kinds of files that others may have written",
    "schedulers": "what only a real cluster of Grid Engine, OpenPBS or OpenLava shows",
    "slurm": "what only a real cluster shows: tests/minicluster",
}
"""Folders of tests that are about no single room, and what they are about."""
ACTING = {"os", "subprocess", "socket", "shutil", "time", "random", "docker", "tempfile"}
"""What no module imports whose docstring says that it is pure."""


ENGINES_BY_NAME = {
    "cluster/processes.py": "knows the client of a container by its name",
    "extras/doctor/engines.py": "the one without containers, in an advice",
    "containers/images/pyxis_images.py": "is of one engine, which starts another",
    "containers/images/pinning.py": "says whose images are files",
    "workflow/run/node/preparation.py": "asks what docker offers on this node",
    "workflow/study/site.py": "the default",
}
"""Where engines are named outside of their room, and why."""

LIMITED_ROOMS = ("cluster", "containers", "data_prep", "workflow/run/supervisor", "workflow/run/node", "workflow/run/link")
WITH_LIMITS = (
    "cluster/pbs_tasks/launcher.py",
    "cluster/ssh.py",
    "cluster/schedulers/queries.py",
    "cluster/schedulers/slurm/answers.py",
    "cluster/schedulers/lsf/answers.py",
    "cluster/schedulers/sge/answers.py",
    "workflow/run/link/protocol.py",
    "workflow/run/supervisor/step_limits.py",
)
"""Modules that hold all time limits of their package, as `limits.py` does elsewhere."""
STANDALONE = (
    "slipway_bigdl/spark.py",
    "slipway_bigdl/training.py",
    "/slipway_watchdog.py",
    "/slipway_log.py",
    "/slipway_proxy.py",
    "/slipway_session.py",
    "/slipway_terminal.py",
    "/slipway_mpi.py",
    "/slipway_steps.py",
)
"""They import nothing of ours."""
NO_LIMITS = {
    "TICKS_PER_S": "what the kernel counts",
    "EXCESS_S": "what the preflight calls slow",
    "SUSPECT_S": "what it measures again",
    "MEMORY_S": "an answer in Slurm's words",
    "MAX_S": "the range of a field",
    "LONGEST_WAIT_S": "what epoll takes",
    "RAPL_PAUSE_S": "how often a counter is read that begins again",
}
"""Seconds that stand where they are judged by, and what they are instead of a time limit. The limits of the watchdog and of slipway_mpi.py
stand in them: they run in containers, and import nothing of ours."""

NAME_SCHEDULERS = {
    "containers/engines/__init__.py": "says which engine is part of which",
    "containers/engines/pyxis.py": "is part of one",
    "cluster/detection.py": "the one table of what schedulers are recognised by",
    "cluster/gpus/decision.py": "the one table of the variables in which schedulers say which GPUs they granted",
    "cluster/schedulers/queries.py": "the variables of a scheduler's own commands go along too",
    "cluster/pbs_tasks/launcher.py": "what is started on each node, by itself: it must not import all schedulers first",
    "cluster/pbs_tasks/remote.py": "the same",
    "cluster/schedulers/__init__.py": "SCHEDULERS",
    "containers/lib/slipway_mpi.py": "variables that mpirun would take for those of its own scheduler",
    "workflow/study/site_file.py": "the words of the site file, from which its schema is made",
    "extras/doctor/schedulers.py": "the one table of what each scheduler is asked",
    "extras/doctor/slurm.py": "is about one",
    "extras/doctor/write_site.py": "the one that says what its nodes have",
}
"""Outside of a scheduler's own module, who may have the name of a scheduler or of its commands in a text of the program, and why."""


def imported(path: Path) -> set[str]:
    """The first parts of the names that it imports."""
    return {name.split(".")[0] for name in syntax(path).imports}


def sub_room(module: str) -> str:
    """`workflow.run.node.ranks` -> `run.node`; `workflow.study.cell` -> `study`."""
    parts = module.split(".")[1:]
    return two if (two := ".".join(parts[:2])) in SUB_ROOMS else parts[0]


@pytest.mark.parametrize("room", SUB_ROOMS)
def test_a_sub_room_imports_only_what_stands_after_it(room: str) -> None:
    below = SUB_ROOMS[SUB_ROOMS.index(room) :]
    place = ROOT.joinpath("workflow", *room.split("."))
    paths = [*place.rglob("*.py")] if place.is_dir() else [place.with_suffix(".py")]
    assert paths
    for path in paths:
        wrong = {name for name in syntax(path).imports if name.startswith("workflow.") and sub_room(name) not in below}
        assert not wrong, f"{path.relative_to(ROOT)} imports {sorted(wrong)}"


def test_every_module_of_workflow_is_in_a_sub_room() -> None:
    paths = [path.relative_to(ROOT).with_suffix("") for path in (ROOT / "workflow").rglob("*.py") if path.name != "__init__.py"]
    assert {sub_room(".".join(path.parts)) for path in paths} == set(SUB_ROOMS)


def test_the_tests_of_a_room_lie_where_it_lies() -> None:
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")} - {Path()}
    assert len(folders) > 25
    assert {str(folder) for folder in folders if not [*(ROOT / folder).glob("*.py")]} == set(WITHOUT_ROOM)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_lies_below_it(room: str) -> None:
    paths = [*(ROOT / room).rglob("*.py")]
    assert paths
    for path in paths:
        wrong = (imported(path) & set(ROOMS)) - ROOMS[room] - ({"extras"} if path == ROOT / COMMAND_LINE else set())
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_what_calls_itself_pure_imports_nothing_that_acts() -> None:
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if calls_itself_pure(path)]
    assert len(paths) > 20
    for path in paths:
        wrong = imported(path) & ACTING
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def calls_itself_pure(path: Path) -> bool:
    return re.search(r"\bPure\b|: pure\b", syntax(path).docstring) is not None


def test_base_needs_the_standard_library_and_msgspec() -> None:
    import sys

    paths = [*(ROOT / "base").rglob("*.py")]
    assert paths
    for path in paths:
        assert imported(path) <= set(sys.stdlib_module_names) | {"base", "msgspec"}, path


def test_no_scheduler_is_named_or_imported_outside_of_its_own_module() -> None:
    words = {
        *SIGNS,
        *(name for name in SCHEDULERS if name != "local"),
        *(command for signs in SIGNS.values() for command in signs.commands),
    }
    named = re.compile(rf"(?<![a-z])({'|'.join(sorted(words))})", re.IGNORECASE)
    own = [ROOT / "cluster" / "schedulers" / name for name in SCHEDULERS]
    found = set()
    for path in RULES:
        if named.search(rules_without_comments(path)):
            found.add(str(path.relative_to(ROOT)))
    for path in (path for room in ROOMS for path in (ROOT / room).rglob("*.py")):
        if not any(path.is_relative_to(place) or path == place.with_suffix(".py") for place in own):
            imports = any(name.startswith(f"cluster.schedulers.{word}") for name in syntax(path).imports for word in words)
            if imports or any(named.search(text) for text in syntax(path).texts):
                found.add(str(path.relative_to(ROOT)))
    assert found == set(NAME_SCHEDULERS)


def rules_without_comments(path: Path) -> str:
    with path.open("rb") as file:
        return " ".join(token.string for token in tokenize.tokenize(file.readline) if token.type != tokenize.COMMENT)


@pytest.mark.parametrize("room", LIMITED_ROOMS)
def test_the_time_limits_of_a_package_are_in_one_module(room: str) -> None:
    found = {}
    for path in (ROOT / room).rglob("*.py"):
        names = set(re.findall(r"^_?[A-Z][A-Z_]*_S(?=(?:: Final)? = )", path.read_text(), re.MULTILINE))
        found[str(path.relative_to(ROOT))] = {name for name in names if name not in NO_LIMITS}
    assert not {place: names for place, names in found.items() if names and not place.endswith(("/limits.py", *WITH_LIMITS, *STANDALONE))}


def test_locks_are_taken_in_one_place() -> None:
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if {"flock", "lockf"} & names_used(path)]
    assert paths == [ROOT / "base" / "lock.py"]


def test_who_sleeps_stands_with_the_reason_on_the_page_of_structure() -> None:
    page = (ROOT / "docs" / "developers" / "structure.md").read_text()
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*.py") if "sleep" in names_used(path)]
    assert len(paths) > 10
    for path in paths:
        place = str(path.relative_to(ROOT))
        assert place in page or place.startswith("workflow/commands/watching/"), place


def names_used(path: Path) -> set[str]:
    """Of attributes, and of what is imported by its own name: `fcntl.flock`, `from fcntl import flock`."""
    return {name.rsplit(".")[-1] for name in syntax(path).imports} | syntax(path).attributes


def test_the_reader_and_the_programs_import_nothing_of_ours() -> None:
    frameworks = ROOT / "containers" / "frameworks"
    programs = [path for path in frameworks.rglob("*.py") if path.parent != frameworks]
    assert {path.parent.name for path in programs} >= {"pytorch", "slipway_pytorch"}
    for path in [*(ROOT / "data_prep" / "reader").rglob("*.py"), *programs]:
        assert not imported(path) & set(ROOMS), path


def test_nobody_asks_an_engine_for_its_name() -> None:
    names = {path.stem for path in (ROOT / "containers" / "engines").glob("*.py")}
    names = {name for name in names if re.search(rf'"{name}": {name}\b', (ROOT / "containers/engines/__init__.py").read_text())}
    assert len(names) > 3
    named = {str(path.relative_to(ROOT)) for path in RULES if {*re.findall(r"[\"'](\w+)[\"']", rules_without_comments(path))} & names}
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            place = path.relative_to(ROOT)
            if not place.is_relative_to("containers/engines") and _names_one_of(path, names):
                named.add(str(place))
    assert named == set(ENGINES_BY_NAME)


def _names_one_of(path: Path, engines: set[str]) -> bool:
    """Whether a module holds the name of one as a constant, or imports the module of one."""
    modules = tuple(f"containers.engines.{one}." for one in engines)
    if any(f"{name}.".startswith(modules) for name in syntax(path).imports):
        return True
    return not engines.isdisjoint((*syntax(path).texts, *syntax(path).docs))


def test_no_expression_has_possessive_quantifiers_or_atomic_groups() -> None:
    """Python before 3.11.5, such as Debian 12's, matches some of them wrongly (CPython issue 106052)."""
    sign = re.compile(r"(?<!\\)[*+?})\]]\+\+|(?<!\\)[*?}]\+(?![^\[]*\])|\(\?>")
    paths = [path for room in ROOMS for path in (ROOT / room).rglob("*.py")]
    found = {
        str(path.relative_to(ROOT)): [text for text in syntax(path).texts if ("\\" in text or "(?" in text) and sign.search(text)]
        for path in paths
    }
    bad = {place: texts for place, texts in found.items() if texts}
    assert not bad, bad


def test_both_distributions_have_the_newest_version_of_the_changelog() -> None:
    historic = tomllib.loads((ROOT / "historic" / "pyproject.toml").read_text())["project"]["version"]
    newest = re.search(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert (VERSION, historic) == (newest[1], newest[1])
