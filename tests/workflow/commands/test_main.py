"""The command line itself: what there is, exit codes, and what is not imported for a help text."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from base import VERSION
from base.errors import StorageError
from tests.workflow.commands.conftest import House
from workflow.commands import main

ROOT = Path(__file__).parents[3]
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["--version"]) == 0
    assert capsys.readouterr().out == f"slipway {VERSION}\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)


@pytest.mark.parametrize(
    "words",
    [
        ["plna"],
        ["plan", "--bar"],
        [],
        ["logs"],
        ["dataset"],
        ["cache", "rm"],
        ["logs", "x", "--rank", "-1"],
        ["dataset", "build", "-j", "0"],
    ],
)
def test_wrong_usage_is_2(house: House, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(words) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_a_word_too_many_is_answered_with_what_to_do(house: House, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["plan", "a.yaml", "b c.yaml"]) == 2
    assert "slipway plan takes fewer words: leave out 'b c.yaml', or type a command for each" in " ".join(capsys.readouterr().err.split())


def test_outside_of_the_checkout_a_study_must_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run(["plan"]) == 10
    assert capsys.readouterr().err == (
        f"slipway: the study file config/study.yaml cannot be read: No such file or directory in {tmp_path}; "
        f"name a study, as in `slipway plan STUDY` or `slipway logs RUN --study STUDY`; `slipway init DIR` writes one\n"
    )


def test_an_error_of_the_system_is_one_of_storage(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    (house.root / "storage").write_text("no directory")
    study = house.load()
    assert study.site.storage.is_file()
    said = house("dataset", "build", "digits")
    assert said.code == StorageError.exit_code
    assert said.err.startswith("slipway: ")
    assert "Traceback" not in said.err


def test_control_characters_do_not_reach_the_terminal(house: House) -> None:
    house.path = house.root / "\x1b[31m.yaml"
    said = house("plan")
    assert "\x1b" not in said.err


def test_a_foreign_allocation_is_refused(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    said = house("plan")
    assert said.code == 10
    assert "inside an allocation of slurm (SLURM_JOB_ID=17)" in said.err


@pytest.mark.processes
def test_help_imports_nothing_that_takes_time() -> None:
    heavy = {"pydantic", "yaml", "numpy", "rich", "polars", "torch", "lmdb", "PIL", "blake3"}
    code = f"import sys\nfrom workflow.commands import main\nmain.run(['--help'])\nprint('loaded', *{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "loaded"


@pytest.mark.processes
@pytest.mark.parametrize("words", [["plan", "{study}", "--json"], ["cache", "ls"]], ids=["in the midst", "at the end"])
def test_who_stops_reading_gets_the_code_of_a_closed_pipe(house: House, words: list[str]) -> None:
    house.study(axes={"batch_size": list(range(1, 31))})  # a plan that is larger than a buffer
    argv = [sys.executable, "-m", "workflow.commands.main", *(word.format(study=house.path) for word in words), "--site", str(house.site)]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(argv, stdout=writer, stderr=subprocess.PIPE, env=BUFFERED, cwd=ROOT, check=False, timeout=60)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.processes
def test_in_one_pipe_a_refusal_stands_behind_the_plan(house: House) -> None:
    house.study(axes={"nodes": [1], "batch_size": [100_000]})
    argv = [sys.executable, "-m", "workflow.commands.main", "plan", str(house.path), "--site", str(house.site)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    done = subprocess.run(argv, **streams, env=BUFFERED, cwd=ROOT, check=False, timeout=60)
    lines = done.stdout.splitlines()
    assert done.returncode != 0
    assert lines[-1].startswith("slipway: "), done.stdout
    assert "1797 samples" in lines[-1]
    assert len(lines) > 5


@pytest.mark.processes
def test_an_error_keeps_its_code_where_nobody_can_be_told(tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "workflow.commands.main", "plan", str(tmp_path / "none.yaml")]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(argv, stdout=full, stderr=full, cwd=ROOT, check=False, timeout=60)
    assert done.returncode == 10


def test_the_list_of_commands_is_whole_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in (["dataset"], ["cache"], []):
        assert main.run([*words, "--help"]) == 0
        commands = capsys.readouterr().out.partition("Commands:")[2].splitlines()
        assert not [line for line in commands if line.endswith("...")]
    assert {command.name for command in main.COMMANDS if not command.hidden} <= {line.split()[0] for line in commands if line}
