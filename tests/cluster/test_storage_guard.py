"""Who typed a command gets an answer also where the command waits for storage. The storage is an ext4 that is frozen."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.base.test_frozen import still_frozen
from tests.data_prep.staging.disks import Disk, ext4

COMMAND = """
import os, signal, sys, threading
from pathlib import Path
from cluster.storage_guard import guarded

def command():
    print(os.getpid(), flush=True)
    {command}
    return 7

sys.exit(guarded(command, {say_s}, {give_up_s}))
"""
pytestmark = pytest.mark.processes


def start(command: str, say_s: float = 60, give_up_s: float = 60) -> subprocess.Popen[str]:
    """The guard of a child that has begun the `command`."""
    argv = [sys.executable, "-c", COMMAND.format(command=command, say_s=say_s, give_up_s=give_up_s)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert int(process.stdout.readline()) != process.pid
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code, and what it has printed on standard error; a child that waits for storage still has that open."""
    code = process.wait(60)
    assert process.stderr is not None
    assert process.stdout is not None
    process.stdout.close()
    with process.stderr:
        os.set_blocking(process.stderr.fileno(), False)
        return code, (process.stderr.buffer.read() or b"").decode()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with ext4(tmp_path) as disk:
        yield disk


def test_a_command_ends_as_it_would_without() -> None:
    assert ended(start("pass")) == (7, "")
    assert ended(start("sys.exit(3)")) == (3, "")
    assert ended(start("os.execv('/bin/sh', ['sh', '-c', 'exit 5'])")) == (5, "")
    assert ended(start("os.kill(os.getpid(), signal.SIGKILL)")) == (-signal.SIGKILL, "")
    assert ended(start("sys.stderr.write('said')")) == (7, "said")


def test_signals_go_to_the_command() -> None:
    process = start("signal.pause()")
    process.terminate()
    assert ended(process) == (-signal.SIGTERM, "")
    process = start("signal.pause()")
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in ended(process)[1]


def test_a_command_dies_with_who_waits_for_it() -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND.format(command="signal.pause()", say_s=60, give_up_s=60)],
        stdout=subprocess.PIPE,
        pass_fds=[writer],
    )
    os.close(writer)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate(timeout=60)
    assert os.read(reader, 1) == b"", "all who had it have ended"
    os.close(reader)


def test_the_hangup_of_its_own_terminal_ends_the_command() -> None:
    """The kernel sends that SIGHUP to the leader of the session alone, which is who waits for the command under `ssh -t HOST slipway`."""
    master, slave = os.openpty()
    code = "import os; os.login_tty(0)" + COMMAND.format(command="signal.pause()", say_s=60, give_up_s=60)
    process = subprocess.Popen([sys.executable, "-c", code], stdin=slave)
    os.close(slave)
    try:
        assert int(os.read(master, 100)) != process.pid
        os.close(master)
        assert process.wait(60) == -signal.SIGHUP
    finally:
        process.kill()
        process.wait()


def test_a_ctrl_c_of_its_terminal_before_there_is_a_command_ends_it() -> None:
    master, slave = os.openpty()
    waits = 'lambda: (print("begun", flush=True), sys.stdin.readline())'
    patch = f"os.login_tty(0); guard.process = types.SimpleNamespace(**{{**vars(guard.process), 'prepare_prctl': {waits}}})"
    code = f"import os, sys, types; from cluster import storage_guard as guard; {patch}" + COMMAND.format(
        command="pass", say_s=60, give_up_s=60
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=slave)
    os.close(slave)
    try:
        assert os.read(master, 100).startswith(b"begun")
        os.write(master, b"\x03\n")
        assert process.wait(60) == -signal.SIGINT
    finally:
        process.kill()
        process.wait()
        os.close(master)


@pytest.mark.parametrize("beginning", ["os.close(1)", "os.close(2)", "signal.signal(signal.SIGCHLD, signal.SIG_IGN)"])
def test_a_command_runs_without_standard_streams_and_where_its_starter_ignores_children(beginning: str) -> None:
    code = COMMAND.format(command="sys.stdout.flush(), sys.stderr.flush()", say_s=60, give_up_s=60)
    start = f"import os, signal, sys; {beginning}; os.execv(sys.executable, sys.argv[1:])"
    argv = [sys.executable, "-c", start, sys.executable, "-c", code]
    assert subprocess.run(argv, stdout=subprocess.DEVNULL, timeout=60).returncode == 7


@pytest.mark.slow
@pytest.mark.parametrize("thread", ["os.mkdir('{}/x')", "it = threading.Thread(target=os.mkdir, args=['{}/x']); it.start(); it.join()"])
def test_a_wait_for_storage_is_told_and_given_up(disk: Disk, thread: str) -> None:
    with still_frozen(disk):
        code, err = ended(start(thread.format(disk.place), 0.5, 2.0))
        assert code == 22
        assert "slipway: storage has not answered for" in err
        assert err.endswith("is killed, and ends when storage answers\n")


@pytest.mark.slow
def test_ctrl_c_ends_a_command_that_waits_for_storage(disk: Disk) -> None:
    with still_frozen(disk):
        process = start(f"os.mkdir('{disk.place}/x')", 0.5)
        assert process.stderr is not None
        assert "and Ctrl-C ends it" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert ended(process)[0] == 26


@pytest.mark.slow
def test_a_command_goes_on_when_storage_answers_again(disk: Disk) -> None:
    with disk.frozen():
        process = start(f"os.mkdir('{disk.place}/x')", 0.5)
        assert process.stderr is not None
        assert "the command goes on when it does" in process.stderr.readline()
    assert ended(process)[0] == 7
    assert (disk.place / "x").is_dir()


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["gone", "slow"])
def test_a_wait_for_storage_ends_no_command_where_nobody_reads_of_it(disk: Disk, reader: str) -> None:
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
    process.stdout.close()
    os.close(full)
    if reader == "slow":
        os.close(unread)


@pytest.mark.slow
def test_a_thread_that_waits_for_storage_keeps_no_command_from_its_end(disk: Disk) -> None:
    with still_frozen(disk):
        thread = f"threading.Thread(target=os.mkdir, args=['{disk.place}/x'], daemon=True).start()"
        assert ended(start(thread, 0.5, 2.0)) == (7, "")
