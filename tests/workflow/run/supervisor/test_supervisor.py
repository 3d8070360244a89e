"""The log of a run, which another process writes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

ROOT = Path(__file__).parents[4]
PROGRAM = """
import sys
from workflow.run.supervisor import supervisor
relay = supervisor.Relay(sys.argv[1])
print("ours", file=sys.stderr)
relay.close()
"""


def test_two_supervisors_of_a_run_write_one_log(tmp_path: Path) -> None:
    path = tmp_path / "a-r1.log"
    path.write_text("of the holder\n")
    with path.open("ab") as stream:
        subprocess.run([sys.executable, "-c", PROGRAM, str(path)], stderr=stream, check=True, cwd=ROOT, timeout=60)
    assert path.read_text() == "of the holder\nours\n"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_in_the_place_of_the_log_is_not_written_to(tmp_path: Path, kind: str) -> None:
    path, precious = tmp_path / "a-r1.log", tmp_path / "precious"
    precious.write_text("mine\n")
    path.symlink_to(precious) if kind == "link" else os.mkfifo(path)
    said = subprocess.run([sys.executable, "-c", PROGRAM, str(path)], capture_output=True, check=True, cwd=ROOT, timeout=60)
    assert (said.stderr, precious.read_text()) == (b"ours\n", "mine\n")


REMOVED = """
import pathlib, sys, time
from workflow.run.supervisor import supervisor
path = pathlib.Path(sys.argv[1])
relay = supervisor.Relay(sys.argv[1])
print("before", file=sys.stderr)
while path.read_text() != "before\\n":
    time.sleep(0.01)
path.unlink()
if sys.argv[2] == "made":
    path.write_text("")
print("after", file=sys.stderr)
relay.close()
"""


@pytest.mark.parametrize("by_now", ["made", "gone"])
def test_a_log_that_another_snakemake_has_removed_comes_back(tmp_path: Path, by_now: str) -> None:
    path = tmp_path / "a-r1.log"
    with path.open("ab") as stream:
        subprocess.run([sys.executable, "-c", REMOVED, str(path), by_now], stderr=stream, check=True, cwd=ROOT, timeout=60)
    assert path.read_text() == "after\n"


def test_a_bug_of_ours_ends_the_run_with_an_exit_code_that_is_no_success(tmp_path: Path) -> None:
    program = """
import sys
from workflow.run.supervisor import supervisor
supervisor.Supervisor.main = None
sys.exit(supervisor.main(["--results", sys.argv[1], "--run", "a-r1"]))
"""
    said = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert said.returncode == 1
    assert "a bug in Slipway; the run is ended" in said.stderr
