"""Work directories: those at work stay, those of the dead go, those that wait for storage stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from workflow.run.work_locks import hold, let_go, sweep
from workflow.run.workdir import WorkDirectory

HOLDER = """
import signal, sys
from pathlib import Path
from workflow.run.workdir import WorkDirectory
WorkDirectory(Path(sys.argv[1]), sys.argv[2]).create({}, sys.argv[3])
print("held", flush=True)
signal.pause()
"""


def test_what_a_killed_node_program_left_goes_with_the_next_start_of_any_run(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path), "one-r1-a1-0123", "one-r1"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        left = tmp_path / "runs" / "one-r1-a1-0123"
        WorkDirectory(tmp_path, "two-r1-a1-4567").create({}, "two-r1")
        assert left.is_dir()
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    WorkDirectory(tmp_path, "three-r1-a1-89ab").create({}, "three-r1")
    assert not left.exists()
    assert not list((tmp_path / "runs").glob(".one*"))


def test_our_own_and_what_waits_for_storage_stay(tmp_path: Path) -> None:
    ours, waiting = WorkDirectory(tmp_path, "one-r1-a1-0123"), WorkDirectory(tmp_path, "two-r1-a1-4567")
    for directory in (ours, waiting):
        directory.create({}, directory.path.name[:6])
    waiting.keep({"target": str(tmp_path / "target"), "reason": "storage is away"})
    assert sweep(tmp_path / "runs") == []
    assert ours.exists()
    assert waiting.exists()
    ours.remove()
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["two-r1-a1-4567"]


def test_a_lock_without_its_directory_goes(tmp_path: Path) -> None:
    os.close(hold(tmp_path / "one"))
    assert sweep(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    held = hold(tmp_path / "two")
    assert sweep(tmp_path) == []
    let_go(tmp_path / "two", held)
    assert list(tmp_path.iterdir()) == []


def test_a_kill_in_the_middle_of_a_sweep_loses_nothing(tmp_path: Path) -> None:
    os.close(hold(tmp_path / "one"))
    (tmp_path / "one").mkdir()

    def die(_path: Path) -> None:
        raise KeyboardInterrupt

    try:
        sweep(tmp_path, die)
    except KeyboardInterrupt:
        assert sweep(tmp_path) == ["one"]
    assert list(tmp_path.iterdir()) == []
