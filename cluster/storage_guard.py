"""Keep a typed command answering while storage hangs: it runs in a child process, which this one watches.

Who waits for storage in uninterruptible sleep can neither say so nor be ended, and this process touches no storage.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import stat
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Final

from base import errors, process, system
from cluster.limits import SAME_INTERRUPT_S, STORAGE_LOOK_S, STORAGE_WAIT_S, STORAGE_WAIT_SHOWN_S

PASSED_ON: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SI_KERNEL: Final = 0x80
"""The origin of a signal that a terminal sends, to the child too; but SIGHUP may go to the leader of the session alone."""


class StorageWait:
    """The longest time that a thread of a process has been in one and the same uninterruptible sleep: a first thread that waits for others,
    which read or write, sleeps otherwise."""

    def __init__(self, pid: int) -> None:
        self._threads = f"/proc/{pid}/task"
        self._since: dict[tuple[str, str], float] = {}
        """The time at which each sleep, of a thread with its number of switches, was seen first."""

    def seconds(self) -> float:
        """Return the seconds of the longest present sleep since the first call that saw it; 0.0 while no thread is in one."""
        now, threads, since = time.monotonic(), [], {}
        with suppress(OSError):
            threads = os.listdir(self._threads)
        for thread in threads:
            status = system.machine_text(f"{self._threads}/{thread}/status")
            if "\nState:\tD" in status:
                sleep = (thread, status.partition("\nvoluntary_ctxt_switches:")[2])
                since[sleep] = self._since.get(sleep, now)
        self._since = since
        return now - min(since.values(), default=now)


def guarded(command: Callable[[], int], say_s: float = STORAGE_WAIT_SHOWN_S, give_up_s: float = STORAGE_WAIT_S) -> int:
    """Return the exit code of `command()`, which runs in a child process. Both processes return; the child as `command()` does.

    Signals to us go to the child. A wait for storage of `say_s` is told on standard error. A signal then ends the command, and so does a
    wait of `give_up_s` where it has started nothing: the child is killed, and ends when storage answers.
    """
    _open_missing_streams()
    parent, heard = os.getpid(), [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*heard, signal.SIGCHLD})
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who started us may ignore it, and then the child's exit code is lost
    process.prepare_prctl()
    reader, writer = os.pipe()
    early = signal.sigpending() & {*heard}  # of those that a terminal sends now, the child is not told
    pid = os.fork()
    if pid:
        os.close(writer)
        for number in early:
            os.kill(pid, number)
        return _Guard(pid, reader, heard, say_s, give_up_s).exit_code()
    os.close(reader)
    process.die_with_parent(parent)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    ended: list[int] = []
    atexit.register(lambda: os.write(writer, bytes(ended[:1])))  # called last; a thread that waits for storage may keep us from ending
    ended.append(command())
    return ended[0]


def _open_missing_streams() -> None:
    """Open /dev/null for the standard streams that who started us has closed: else the next file that is opened becomes one of them."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout, sys.stderr = sys.stdout or os.fdopen(1, "w"), sys.stderr or os.fdopen(2, "w")


def _interrupted(number: int, frame: FrameType | None) -> None:
    now = time.monotonic()
    if now - _last_interrupt[0] >= SAME_INTERRUPT_S:
        _last_interrupt[0] = now
        signal.default_int_handler(number, frame)


_last_interrupt = [-SAME_INTERRUPT_S]


class _Guard:
    """The process that waits for the command: it passes signals on and watches for a wait for storage."""

    def __init__(self, pid: int, reader: int, heard: list[signal.Signals], say_s: float, give_up_s: float) -> None:
        self._pid, self._reader, self._heard = pid, reader, heard
        self._say_s, self._give_up_s = say_s, give_up_s
        self._wait = StorageWait(pid)
        self._told = self._said = False
        self._prints = not stat.S_ISREG(os.fstat(2).st_mode)  # a file may lie on the storage that does not answer

    def exit_code(self) -> int:
        while True:
            heard = signal.sigtimedwait({*self._heard, signal.SIGCHLD}, STORAGE_LOOK_S)
            if heard is not None and heard.si_signo != signal.SIGCHLD:
                self._told = True
                if heard.si_code != SI_KERNEL or heard.si_signo == signal.SIGHUP:
                    os.kill(self._pid, heard.si_signo)
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                return _as_it_ended(os.waitstatus_to_exitcode(status))
            if select.select([self._reader], [], [], 0)[0] and (code := os.read(self._reader, 1)):
                signal.sigtimedwait({signal.SIGCHLD}, STORAGE_LOOK_S)
                return code[0]
            if (problem := self._given_up(self._wait.seconds())) is not None:
                os.kill(self._pid, signal.SIGKILL)
                self._print(f"{problem}; process {self._pid} is killed, and ends when storage answers")
                return errors.Cancelled.exit_code if self._told else errors.StorageError.exit_code

    def _given_up(self, seconds: float) -> str | None:
        if seconds < min(self._say_s, self._give_up_s):
            return None
        problem = f"storage has not answered for {seconds:.0f} s"
        begun = system.machine_text(f"/proc/{self._pid}/task/{self._pid}/children")
        if self._told or (seconds >= self._give_up_s and not begun):
            return problem
        if not self._said:
            self._said = True
            self._print(f"{problem}; the command goes on when it does, and Ctrl-C ends it")
        return None

    def _print(self, text: str) -> None:
        if self._prints and select.select([], [2], [], 0)[1]:  # a pipe may be full
            with suppress(OSError):  # nobody may read it any more
                os.write(2, f"slipway: {text}\n".encode())


def _as_it_ended(code: int) -> int:
    """Return the exit code of the child. A signal that has ended it ends us too."""
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    return code
