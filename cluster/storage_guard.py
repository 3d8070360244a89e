"""Keep a typed command answering while storage hangs: a thread of it, which touches no storage, watches the others.

Who waits for storage in uninterruptible sleep can neither say so nor hear a signal.
"""

import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from base import errors, system
from cluster.limits import STORAGE_LOOK_S, STORAGE_WAIT_S, STORAGE_WAIT_SHOWN_S

ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def guarded(command: Callable[[], int], say_s: float = STORAGE_WAIT_SHOWN_S, give_up_s: float = STORAGE_WAIT_S) -> int:
    """Return `command()`. A wait for storage of `say_s` is told on standard error. A signal then ends this process, and so does a wait of
    `give_up_s` where it has started nothing."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:  # a stream that who started us has closed: else a file of ours becomes it
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdout, sys.stderr = sys.stdout or os.fdopen(1, "w"), sys.stderr or os.fdopen(2, "w")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who started us may ignore it, and then the exit codes of children are lost
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # the thread, which inherits that, hears none of them
    threading.Thread(target=_watch, args=(say_s, give_up_s), daemon=True).start()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return command()


def _watch(say_s: float, give_up_s: float) -> None:
    since: dict[tuple[str, str], float] = {}
    said = False
    while True:
        time.sleep(STORAGE_LOOK_S)
        now = time.monotonic()
        since = {sleep: since.get(sleep, now) for sleep in _sleeps()}
        seconds = now - min(since.values(), default=now)
        if seconds < min(say_s, give_up_s):
            continue
        problem, begun = f"storage has not answered for {seconds:.0f} s", system.machine_text(f"/proc/self/task/{os.getpid()}/children")
        is_told = any(signal.sigpending() & {*ENDS})  # of this process, whose other threads cannot take it
        if is_told or (seconds >= give_up_s and not begun):
            _print(f"{problem}; process {os.getpid()} ends when storage answers")
            os._exit(errors.Cancelled.exit_code if is_told else errors.StorageError.exit_code)
        if not said:
            said = True
            _print(f"{problem}; the command goes on when it does, and Ctrl-C ends it")


def _sleeps() -> list[tuple[str, str]]:
    """Return the threads in uninterruptible sleep, each with its number of switches, which tells one sleep from the next."""
    states = dict[str, str]()
    with suppress(OSError):  # the command may have opened all that it may
        states = {thread: system.machine_text(f"/proc/self/task/{thread}/status") for thread in os.listdir("/proc/self/task")}
    return [(thread, state.partition("\nvoluntary_ctxt_switches:")[2]) for thread, state in states.items() if "\nState:\tD" in state]


def _print(text: str) -> None:
    if not stat.S_ISREG(os.fstat(2).st_mode) and select.select([], [2], [], 0)[1]:  # a pipe may be full, a file lie on that storage
        with suppress(OSError):  # nobody may read it any more
            os.write(2, f"slipway: {text}\n".encode())
