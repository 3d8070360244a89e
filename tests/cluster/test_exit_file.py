"""The exit code of a job's command, in a file."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from base.process import CODE_ROOT
from cluster.exit_file import read_exit

pytestmark = pytest.mark.processes


def start(file: Path, command: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-P", "-m", "cluster.exit_file", str(file), command]
    return subprocess.Popen(
        argv, env={**os.environ, "PYTHONPATH": str(CODE_ROOT)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.parametrize(
    ("command", "code"), [("exec true", 0), ("false; true", 1), ("exit 21", 21), ("kill -9 $$", 137), ("echo $nothing", 1)]
)
def test_the_code_is_in_the_file_and_is_ours(tmp_path: Path, command: str, code: int) -> None:
    file = tmp_path / "a.exit"
    file.write_text("99")
    process = start(file, command)
    process.communicate()
    assert (process.returncode, read_exit(file)) == (code, code)
    assert [path.name for path in tmp_path.iterdir()] == ["a.exit"]


def test_the_file_of_an_earlier_start_is_gone_while_the_command_runs_and_signals_wait_for_it(tmp_path: Path) -> None:
    file = tmp_path / "a.exit"
    file.write_text("1")
    process = start(file, "trap 'exit 3' TERM; echo started; while :; do sleep 0.1; done")
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    assert read_exit(file) is None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, children)):
        os.kill(pid, signal.SIGTERM)
    process.communicate()
    assert (process.returncode, read_exit(file)) == (3, 3)


def test_a_code_that_cannot_be_left_is_told(tmp_path: Path) -> None:
    process = start(tmp_path / "nowhere" / "a.exit", "exit 4")
    _, said = process.communicate()
    assert process.returncode == 4
    assert "the exit code 4 cannot be left" in said
