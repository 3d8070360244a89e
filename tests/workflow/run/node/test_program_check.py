"""What a program of the study lacks on a node is said in words, with what to do."""

from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from base.errors import TrainingFailed
from workflow.run.node.program_check import refuse_what_is_missing, why_not_startable
from workflow.run.plan import Framework, Sidecar


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A node: a copy of a folder with a script that may be executed and one that may not, a directory to work in, a directory of tools."""
    for name in ("program", "out", "tools"):
        (tmp_path / name).mkdir()
    for name, mode in (("program/run.sh", 0o755), ("program/notes.txt", 0o644), ("tools/trainer", 0o755)):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(mode)
    return tmp_path


def why(here: Path, *command: str, contained: bool = False, **fields: Any) -> str | None:
    framework = Framework(name="gpt", own=True, folder="", launcher="ranks", command=command, **fields)
    return why_not_startable(framework, here / "program", here / "out", {"PATH": str(here / "tools")}, contained=contained)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("packages", "words"),
    [
        ((f"numpy=={version('numpy')}", "json", "xml.dom"), None),
        (
            ("numpy==0.1", "nowhere_1", "nowhere.at.all", "nowhere-2==1"),
            f"numpy==0.1 (found {version('numpy')}), nowhere_1, nowhere.at.all, nowhere-2==1; ",
        ),
    ],
)
def test_packages_that_its_interpreter_lacks_are_named(packages: tuple[str, ...], words: str | None) -> None:
    framework = Framework(name="gpt", own=True, folder="", launcher="ranks", command=("{python}",), packages=packages)
    refuse_what_is_missing(framework, contained=True)
    if words is None:
        refuse_what_is_missing(framework, contained=False)
        return
    with pytest.raises(TrainingFailed) as caught:
        refuse_what_is_missing(framework, contained=False)
    assert f"lacks packages that the program 'gpt' needs: {words}" in str(caught.value)


@pytest.mark.parametrize("command", ["{python}", "{folder}/run.sh", "trainer", "/bin/sh", "{args.binary}"])
def test_what_can_be_started_or_is_not_known_here(here: Path, command: str) -> None:
    assert why(here, command, python="python3") is None


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("{folder}/gone.sh", "'{folder}/gone.sh', the command of the program 'gpt', is not there: give a path"),
        ("{folder}/notes.txt", "may not be executed (chmod +x)"),
        ("{folder}", "is no file"),
        ("./run.sh", "'./run.sh', the command of the program 'gpt', is not there"),
        ("train.py", "'train.py', the command of the program 'gpt', is not on the PATH"),
    ],
)
def test_a_command_that_cannot_be_started(here: Path, command: str, words: str) -> None:
    assert words in str(why(here, command))


def test_a_sidecar_is_looked_at_too(here: Path) -> None:
    sidecars = (Sidecar(name="server", where="each", command=("no-such-server",)),)
    assert "'no-such-server', the sidecar server of the program 'gpt', is not on the PATH" in str(why(here, "trainer", sidecars=sidecars))


def test_an_interpreter_and_the_program_s_own_path(here: Path) -> None:
    assert "/no/python, the `python` of the program 'gpt', is not there: it must be on all nodes" in str(
        why(here, "x", python="/no/python")
    )
    assert why(here, "trainer", variables=(("PATH", "/nowhere"),)) is not None
    assert why(here, "run.sh", variables=(("PATH", str(here / "program")),)) is None


def test_of_a_container_only_mounts_and_its_own_files_can_be_looked_at(here: Path) -> None:
    for command in ("{folder}/run.sh", "{python}", "./run.sh"):
        assert why(here, command, contained=True, python="/no/python") is None
    assert "'{folder}/notes.txt', the command of the program 'gpt', may not be executed (chmod +x)" in str(
        why(here, "{folder}/notes.txt", contained=True)
    )
    assert why(here, "no-such", contained=True, python="/no/python") is None
    assert "/no/tokenizer, a mount" in str(why(here, "no-such", contained=True, mounts=(("/no/tokenizer", "/tokenizer", False),)))
