"""Who typed a command gets an answer also where the command waits for storage. The storage is an ext4 that is frozen."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.data_prep.staging.disks import Disk, ext4

COMMAND = """
import os, signal, sys, threading
from cluster.storage_guard import guarded

def command():
    print("begun", flush=True)
    {command}
    return 7

sys.exit(guarded(command, {say_s}, {give_up_s}))
"""
pytestmark = pytest.mark.processes


def start(command: str, say_s: float = 60, give_up_s: float = 60) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", COMMAND.format(command=command, say_s=say_s, give_up_s=give_up_s)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    err = process.communicate(timeout=60)[1]
    return process.returncode, err


def wait_for_exit(process: subprocess.Popen[str]) -> None:
    """Return once the process has called exit: each thread of it that waits for storage has got SIGKILL then."""
    while True:
        with contextlib.suppress(OSError):  # a thread ended while its status was read
            states = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/status")]
            if not any("\nState:\tD" in state and "\nSigPnd:\t0000000000000000\n" in state for state in states):
                return
        time.sleep(0.01)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with ext4(tmp_path) as disk:
        yield disk


def test_a_command_ends_and_hears_signals_as_it_would_without() -> None:
    assert ended(start("sys.stderr.write('said')")) == (7, "said")
    process = start("signal.pause()")
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in ended(process)[1]


@pytest.mark.parametrize("beginning", ["os.close(1)", "os.close(2)", "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"])
def test_a_command_runs_without_standard_streams_and_where_its_starter_ignores_children(beginning: str) -> None:
    command = "sys.stdout.flush(), sys.stderr.flush(); assert os.waitstatus_to_exitcode(os.system('exit 3')) == 3"
    code = COMMAND.format(command=command, say_s=60, give_up_s=60)
    start = f"import os, signal, sys; {beginning}; os.execv(sys.executable, sys.argv[1:])"
    argv = [sys.executable, "-c", start, sys.executable, "-c", code]
    assert subprocess.run(argv, stdout=subprocess.DEVNULL, timeout=60).returncode == 7


def test_the_watch_goes_on_where_the_command_has_opened_all_that_it_may() -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/proc/self/fd')) - 1, 4096))"
    command = f"{limit}; threading.Event().wait(2.5); assert threading.active_count() == 2"
    assert ended(start(command)) == (7, "")


@pytest.mark.slow
@pytest.mark.parametrize("thread", ["os.mkdir('{}/x')", "it = threading.Thread(target=os.mkdir, args=['{}/x']); it.start(); it.join()"])
def test_a_wait_for_storage_is_told_and_given_up(disk: Disk, thread: str) -> None:
    with disk.frozen():
        process = start(thread.format(disk.place), 0.5, 2.0)
        assert process.stderr is not None
        assert "slipway: storage has not answered for" in process.stderr.readline()
        assert "ends when storage answers" in process.stderr.readline()
        wait_for_exit(process)
    assert ended(process) == (22, "")


@pytest.mark.slow
def test_ctrl_c_ends_a_command_that_waits_for_storage(disk: Disk) -> None:
    with disk.frozen():
        process = start(f"os.mkdir('{disk.place}/x')", 0.5)
        assert process.stderr is not None
        assert "and Ctrl-C ends it" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert "ends when storage answers" in process.stderr.readline()
        wait_for_exit(process)
    assert ended(process) == (26, "")


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["gone", "slow"])
def test_a_command_goes_on_when_storage_answers_also_where_nobody_reads_of_it(disk: Disk, reader: str) -> None:
    unread, full = os.pipe()
    os.set_blocking(full, False)
    with contextlib.suppress(BlockingIOError):
        while reader == "slow":
            os.write(full, bytes(1 << 12))
    os.set_blocking(full, True)
    if reader == "gone":
        os.close(unread)
    argv = [sys.executable, "-c", COMMAND.format(command=f"os.mkdir('{disk.place}/x')", say_s=0.5, give_up_s=60)]
    with disk.frozen():
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=full)
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
    assert process.wait(60) == 7
    assert (disk.place / "x").is_dir()
    process.stdout.close()
    os.close(full)
    if reader == "slow":
        os.close(unread)
