"""Call a function that may hang, such as one that touches network storage, in a short-lived child process.

A process that waits for a dead network file system sits in uninterruptible sleep and cannot be killed; so the caller must be another
process, and must not wait for the child for ever either. fork, not spawn: the children are many and short, and an import costs more
than the work. The caller must have one thread only.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any, Final

from base.errors import SlipwayError, StorageError
from base.jsonfile import json_line, parse_json


def _tree(root: type[SlipwayError]) -> dict[str, type[SlipwayError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


_BY_NAME: Final = _tree(SlipwayError)


class LimitedCall:
    """A running child: poll `done()` from an event loop over `fileno()`, or `wait()`. The result travels as JSON."""

    def __init__(self, what: str, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> None:
        self.what = what
        self.deadline = time.monotonic() + timeout_s
        self.timeout_s = timeout_s
        self._chunks: list[bytes] = []
        self._ended = False
        reader, writer = os.pipe2(os.O_CLOEXEC)
        self.pid = os.fork()
        if self.pid == 0:
            os.close(reader)
            _child(writer, function, arguments)
        os.close(writer)
        self._reader = reader

    def fileno(self) -> int:
        """Readable when the child has said something or ended."""
        return self._reader

    def done(self) -> bool:
        """Take what the child has written; True when it has ended."""
        while not self._ended and select.select([self._reader], [], [], 0)[0]:
            chunk = os.read(self._reader, 1 << 16)
            if chunk:
                self._chunks.append(chunk)
            else:
                self._ended = True
                os.close(self._reader)
                os.waitpid(self.pid, 0)
        return self._ended

    def overdue(self) -> bool:
        """Whether the limit has passed."""
        return not self._ended and time.monotonic() > self.deadline

    def result(self) -> Any:
        """The function's result. Raises what the function raised (of our tree), or StorageError if it died without a whole answer."""
        answer = b"".join(self._chunks)
        if not answer.endswith(b"\n"):
            raise StorageError(f"{self.what}: the child process died {'in its' if answer else 'without an'} answer")
        kind, value = parse_json(answer, self.what, StorageError)
        if kind == "ok":
            return value
        raise _BY_NAME.get(kind, SlipwayError)(value)

    def abandon(self) -> None:
        """Kill the child and do not wait for it: in uninterruptible sleep it dies when the storage answers."""
        if not self._ended:
            os.kill(self.pid, signal.SIGKILL)
            os.close(self._reader)
            self._ended = True
            os.waitpid(self.pid, os.WNOHANG)

    def wait(self) -> Any:
        """The result, waiting at most until the limit. Raises StorageError then."""
        while not self.done():
            left = self.deadline - time.monotonic()
            if left <= 0:
                self.abandon()
                raise StorageError(f"{self.what}: no answer within {self.timeout_s:g} s; the storage behind it hangs, or is very slow")
            select.select([self._reader], [], [], left)
        return self.result()


def call_limited(what: str, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
    """`function(*arguments)` in a child process, at most `timeout_s`. `what` starts the error message. Arguments are inherited by fork."""
    return LimitedCall(what, function, *arguments, timeout_s=timeout_s).wait()


def _child(writer: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    gc.disable()  # a destructor of a library may wait for a thread that was not forked along, for ever
    try:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        answer: list[Any] = ["ok", function(*arguments)]
    except SlipwayError as error:
        answer = [type(error).__name__, str(error)]
    except OSError as error:
        answer = ["StorageError", f"{error.strerror}: {error.filename}" if error.filename else str(error)]
    except BaseException as error:  # the child must answer whatever happens: the parent turns this into its own error
        answer = ["SlipwayError", f"{type(error).__name__}: {error}"]
    try:
        data = json_line(answer)
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os._exit(0)
