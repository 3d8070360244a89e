"""Whose words stand in the log of a run: of two supervisors of one run only the holder begins it anew."""

from __future__ import annotations

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
print("before", file=sys.stderr)
relay.set_target(getattr(supervisor, sys.argv[2]))
print("after", file=sys.stderr)
relay.close()
"""


@pytest.mark.parametrize(
    ("what", "log", "beside"),
    [
        ("REPLACE_LOG", "before\nafter\n", None),
        ("APPEND_LOG", "of the holder\nbefore\nafter\n", None),
        ("SEPARATE_LOG", "of the holder\n", "before\nafter\n"),
    ],
)
def test_only_the_holder_begins_the_log_anew(tmp_path: Path, what: str, log: str, beside: str | None) -> None:
    path = tmp_path / "a-r1.log"
    path.write_text("of the holder\n")
    with path.open("ab") as stream:
        subprocess.run([sys.executable, "-c", PROGRAM, str(path), what], stderr=stream, check=True, cwd=ROOT, timeout=60)
    assert path.read_text() == log
    other = tmp_path / "a-r1.refused.log"
    assert (other.read_text() if other.exists() else None) == beside


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_in_the_place_of_the_other_log_is_not_written_to(tmp_path: Path, kind: str) -> None:
    path, other, precious = tmp_path / "a-r1.log", tmp_path / "a-r1.refused.log", tmp_path / "precious"
    precious.write_text("mine\n")
    other.symlink_to(precious) if kind == "link" else os.mkfifo(other)
    with path.open("ab") as stream:
        subprocess.run([sys.executable, "-c", PROGRAM, str(path), "SEPARATE_LOG"], stderr=stream, check=True, cwd=ROOT, timeout=60)
    assert (path.read_text(), precious.read_text()) == ("before\nafter\n", "mine\n")


def test_a_refusal_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "a-r1.log"
    for _ in range(2):
        with path.open("ab") as stream:
            subprocess.run([sys.executable, "-c", PROGRAM, str(path), "SEPARATE_LOG"], stderr=stream, check=True, cwd=ROOT, timeout=60)
    assert (tmp_path / "a-r1.refused.log").read_text() == "before\nafter\n"


WAITS = """
import pathlib, sys, time
from workflow.run.supervisor import supervisor
relay = supervisor.Relay(sys.argv[1])
relay.set_target(supervisor.SEPARATE_LOG)
print("waiting", file=sys.stderr)
other = pathlib.Path(sys.argv[1].replace(".log", ".refused.log"))
while not other.exists() or other.read_text() != "waiting\\n":
    time.sleep(0.01)
relay.set_target(getattr(supervisor, sys.argv[2]))
print("after", file=sys.stderr)
relay.close()
"""


@pytest.mark.parametrize(("what", "log"), [("REPLACE_LOG", "after\n"), ("APPEND_LOG", "of the holder\nafter\n")])
def test_who_has_waited_for_the_holder_writes_the_log_of_the_run_then(tmp_path: Path, what: str, log: str) -> None:
    path = tmp_path / "a-r1.log"
    path.write_text("of the holder\n")
    with path.open("ab") as stream:
        subprocess.run([sys.executable, "-c", WAITS, str(path), what], stderr=stream, check=True, cwd=ROOT, timeout=60)
    assert (path.read_text(), (tmp_path / "a-r1.refused.log").read_text()) == (log, "waiting\n")


REMOVED = """
import pathlib, sys, time
from workflow.run.supervisor import supervisor
path = pathlib.Path(sys.argv[1])
relay = supervisor.Relay(sys.argv[1])
relay.set_target(supervisor.REPLACE_LOG)
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
