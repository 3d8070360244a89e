"""The Snakemake below `slipway run`: which signals reach it, and that it is asked before it is killed."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from base.errors import StorageError
from cluster.limits import SAME_INTERRUPT_S
from tests.base.test_frozen import still_frozen
from tests.data_prep.staging.disks import ext4
from workflow.commands.run import Child
from workflow.commands.watching.live_table import Lines

pytestmark = pytest.mark.processes

ASKED = """
import pathlib, signal, sys, time
def end(*_):
    pathlib.Path(sys.argv[1]).write_text("asked")
    sys.exit(0)
signal.signal(signal.SIGINT, end)
pathlib.Path(sys.argv[1] + ".ready").touch()
while True:
    time.sleep(0.05)
"""


def test_what_nohup_ignores_stays_ignored(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Child([sys.executable, "-c", ""], tmp_path / "log", os.environ) as child:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGHUP)
            while child.wait(1) is None:
                continue
        assert child.told == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_who_is_left_early_is_asked_to_end(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with Child([sys.executable, "-c", ASKED, str(mark)], tmp_path / "log", os.environ) as child:
        while not Path(f"{mark}.ready").exists():
            assert child.wait(0.05) is None, (tmp_path / "log").read_text()
    assert mark.read_text() == "asked"


def test_a_terminal_that_is_closed_is_an_interrupt(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with Child([sys.executable, "-c", ASKED, str(mark)], tmp_path / "log", os.environ) as child:
        while not Path(f"{mark}.ready").exists():
            assert child.wait(0.05) is None, (tmp_path / "log").read_text()
        os.kill(os.getpid(), signal.SIGHUP)
        assert child.wait(30) == 0
    assert (mark.read_text(), child.told) == ("asked", [signal.SIGHUP])


def test_a_second_term_ends_the_runs_too(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    stubborn = f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{ASKED}"
    with Child([sys.executable, "-c", stubborn, str(mark)], tmp_path / "log", os.environ) as child:
        while not Path(f"{mark}.ready").exists():
            assert child.wait(0.05) is None, (tmp_path / "log").read_text()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(SAME_INTERRUPT_S)  # what comes before is the same one
        os.kill(os.getpid(), signal.SIGTERM)
        assert child.wait(30) == 0
    assert mark.read_text() == "asked"
    assert child.told == [signal.SIGTERM, signal.SIGTERM]


def test_lines_that_nobody_reads_end_nothing() -> None:
    with Path("/dev/full").open("w") as full:
        lines = Lines(full, lambda: 0.0)
        lines.say("nobody reads this")
        lines.say("nor this")
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())


def test_a_ctrl_c_that_comes_three_times_is_one(tmp_path: Path) -> None:
    """Snakemake that is interrupted while it ends its runs leaves them to themselves."""
    mark = tmp_path / "mark"
    counts = ASKED.replace('    pathlib.Path(sys.argv[1]).write_text("asked")\n    sys.exit(0)', '    print("interrupted", flush=True)')
    assert "interrupted" in counts
    with Child([sys.executable, "-c", counts, str(mark)], tmp_path / "log", os.environ) as child:
        while not Path(f"{mark}.ready").exists():
            assert child.wait(0.05) is None, (tmp_path / "log").read_text()
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(SAME_INTERRUPT_S)
        os.kill(os.getpid(), signal.SIGTERM)
        assert child.wait(30) == -signal.SIGTERM
    assert (tmp_path / "log").read_text() == "interrupted\n"
    assert child.told == [signal.SIGINT, signal.SIGTERM]


@pytest.mark.slow
def test_who_was_told_to_end_and_waits_for_storage_is_not_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    with ext4(tmp_path) as disk:
        job = f"trap '' INT; echo begun; mkdir {disk.place}/x & wait; wait"
        with still_frozen(disk), Child(["/bin/sh", "-c", job], log, os.environ) as child:
            while child.wait(0.1) is None and ("begun" not in log.read_text() or child.storage_wait_s == 0.0):
                assert not child.is_stuck(0.0), "nobody has told it to end"
            os.kill(os.getpid(), signal.SIGINT)
            while not child.is_stuck(0.0):
                assert child.wait(0.1) is None
            with pytest.raises(StorageError, match="it or a job of it waits for storage"):
                child.abandon()
        child._process.wait(60)
