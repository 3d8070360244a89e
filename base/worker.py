"""Call a function that may hang, for a caller that has threads and so must not fork (base/limited.py): in an interpreter of its own.

An interpreter costs 0.1 s of a core to start; so one is kept and answers one call after the other. One that did not answer in time is
killed and never asked again: no answer is taken for that of another call. It works in `/`, with the umask that the caller has at the call,
and with the environment of when it was started.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from base.jsonfile import json_line
from base.limited import is_computing, result_of, too_late
from base.machine_files import machine_text
from base.packages import rooms_environ

CALLS_FD: Final = 3
_BLOCK: Final = 1 << 20


class _Interpreter:
    """A child `python -m base.worker_main`, and the socket that carries calls and answers, one a line. It ends when the socket is closed,
    and so with this process."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            argv = [sys.executable, "-P", "-m", "base.worker_main"]
            files = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, theirs.fileno(), CALLS_FD)]
            environ = {**os.environ, **rooms_environ(os.environ)}
            self._pid = os.posix_spawn(sys.executable, argv, environ, file_actions=files)

    def answer(self, call: bytes, deadline: float) -> bytes:
        """Send a call and return the line of the answer, which has no end where the interpreter died. Raises TimeoutError."""
        answer = bytearray()
        try:
            self._limit(deadline)
            self._socket.sendall(call)
            while not answer.endswith(b"\n"):
                self._limit(deadline)
                block = self._socket.recv(_BLOCK)
                if not block:
                    break
                answer += block
        except ConnectionError:
            pass
        return bytes(answer)

    def _limit(self, deadline: float) -> None:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)

    def lives(self) -> bool:
        try:
            return os.waitpid(self._pid, os.WNOHANG) == (0, 0)
        except ChildProcessError:  # somebody else took its exit status
            return False

    def forget(self) -> None:
        """Forget the interpreter in a child that was forked from us, to which it does not belong."""
        self._socket.close()

    def kill(self) -> bool:
        """Kill the process and return whether it was computing. Its end is not waited for: storage may hold it in uninterruptible sleep."""
        computes = is_computing(self._pid)
        self._socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        self.lives()
        return computes


_kept: list[_Interpreter] = []
"""The interpreters that wait for a call: as many as calls were made at the same time, which is one as a rule."""


def call_apart(what: str, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
    """Call a function as call_limited() does, for a caller with threads. `function` is one of a module; arguments and result travel as
    JSON. Raises what it raises of our errors, and StorageError, whose message begins with `what`, where there is no answer in time or none
    at all."""
    deadline = time.monotonic() + timeout_s
    asked = _waiting() or _Interpreter()
    try:
        answer = asked.answer(json_line([_umask(), function.__module__, function.__name__, arguments]), deadline)
    except TimeoutError:
        raise too_late(what, timeout_s, computes=asked.kill()) from None
    except BaseException:  # such as an interrupt: its answer is still to come, and would be that of the next call
        asked.kill()
        raise
    if answer.endswith(b"\n"):
        _kept.append(asked)
    else:
        asked.kill()
    return result_of(what, answer)


def _umask() -> int:
    """Return the umask of this process without changing it, as os.umask() would for all threads; 077 where the kernel does not show it."""
    lines = machine_text("/proc/self/status").splitlines()
    return next((int(line.split()[1], 8) for line in lines if line.startswith("Umask:")), 0o077)


def _waiting() -> _Interpreter | None:
    while True:
        try:
            found = _kept.pop()
        except IndexError:
            return None
        if found.lives():
            return found
        found.forget()


@atexit.register
def end_kept() -> None:
    """End the interpreters that wait for calls; the next call starts one anew."""
    while _kept:
        _kept.pop().kill()


def _forget_kept() -> None:
    while _kept:
        _kept.pop().forget()


os.register_at_fork(after_in_child=_forget_kept)
