"""Call a function that may hang, such as one that touches network storage, in a child process with a time limit.

A process that waits for a dead network file system sits in uninterruptible sleep and cannot be killed; so the caller must be another
process, and must not wait for the child for ever either. fork, not spawn: the children are many and short, and an import costs more
than the work. The caller must have one thread only: a lock that another thread holds at the fork, such as that of a module which it is
importing, is never released in the child. A caller with threads asks an interpreter of its own: call_isolated().
"""

import gc
import importlib
import logging
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from subprocess import PIPE
from typing import Any, Final, NoReturn

from base import jsonfile, process
from base.errors import Defect, SlipwayError, StorageError, error_named

MOVED_EVERY_S: Final = 1.0
logger = logging.getLogger(__name__)


class _ProgressPipe:
    """The pipe by which a child reports that bytes move, and the time of its last report."""

    writer: int | None = None
    last = -math.inf


def moved() -> None:
    """Report that bytes have moved: the limit of the child that calls this begins anew, if it limits silence. Does nothing in other
    processes."""
    if _ProgressPipe.writer is not None and time.monotonic() - _ProgressPipe.last >= MOVED_EVERY_S:
        os.write(_ProgressPipe.writer, b"\n")
        _ProgressPipe.last = time.monotonic()


class LimitedCall:
    """A running child: poll `done()` from an event loop over `fileno()`, or `wait()`. The result travels as JSON, after an empty line
    for each `moved()`. With `renewed`, for what may have any number of bytes to copy, the limit is one of silence and begins anew at
    each `moved()`."""

    def __init__(self, what: str, function: Callable[..., Any], *arguments: Any, timeout_s: float, renewed: bool = False) -> None:
        self.what = what
        self.deadline = time.monotonic() + timeout_s
        self.timeout_s = timeout_s
        self.renewed = renewed
        self._chunks: list[bytes] = []
        self._ended = False
        self._reader, writer = os.pipe2(os.O_CLOEXEC)
        # Our garbage is not the child's: a destructor may wait for a thread that was not forked along, for ever. Off before the fork, since
        # Python calls functions of modules in the child before it returns there.
        collects = gc.isenabled()
        gc.disable()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # raised in such a function, KeyboardInterrupt is dropped
        try:
            self.pid = os.fork()
            if self.pid == 0:
                os.close(self._reader)
                _ProgressPipe.writer = writer if self.renewed else None
                _answer(writer, function, arguments)
        finally:
            if collects:
                gc.enable()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(writer)

    def fileno(self) -> int:
        """Return a descriptor that is readable when the child has answered or ended."""
        return self._reader

    def done(self) -> bool:
        """Take what the child has written; True when it has ended."""
        while not self._ended and process.is_readable(self._reader, 0.0):
            chunk = os.read(self._reader, 1 << 16)
            if chunk:
                self._chunks.append(chunk)
                if self.renewed:
                    self.deadline = time.monotonic() + self.timeout_s
                    moved()  # whoever waits for us knows it too
            else:
                self._ended = True
                os.close(self._reader)
                os.waitpid(self.pid, 0)
        return self._ended

    def result(self) -> Any:
        """Return the function's result. Raises what the function raised (of our tree), Defect for what it should never raise, or
        StorageError if it died without a whole answer."""
        return result_of(self.what, b"".join(self._chunks).lstrip(b"\n"))

    def late(self) -> StorageError:
        return too_late(self.what, self.timeout_s, "nothing moved for" if self.renewed else "no answer within")

    def abandon(self) -> None:
        """Kill the child and do not wait for it: in uninterruptible sleep it dies when the storage answers."""
        if not self._ended:
            os.kill(self.pid, signal.SIGKILL)
            os.close(self._reader)
            self._ended = True
            os.waitpid(self.pid, os.WNOHANG)

    def wait(self) -> Any:
        """Wait for the result, at most until the limit. Raises StorageError then."""
        while not self.done():
            left = self.deadline - time.monotonic()
            if left <= 0:
                self.abandon()
                raise self.late()
            process.is_readable(self._reader, left)
        return self.result()


def call_limited(what: str, function: Callable[..., Any], *arguments: Any, timeout_s: float, renewed: bool = False) -> Any:
    """Call `function(*arguments)` in a child process, for at most `timeout_s`. `what` begins the error message. The child inherits the
    arguments by fork. `renewed`: see LimitedCall."""
    return LimitedCall(what, function, *arguments, timeout_s=timeout_s, renewed=renewed).wait()


def result_of(what: str, answer: bytes) -> Any:
    """Return what LimitedCall.result() does, from the line that a child has answered."""
    if not answer.endswith(b"\n"):
        raise StorageError(f"{what}: the child process died {'in its' if answer else 'without an'} answer")
    kind, value, *trace = jsonfile.parse_json(answer, what, StorageError)
    if kind == "ok":
        return value
    if kind == Defect.__name__ and trace:
        logger.error("%s: %s", what, trace[0])  # by the caller, whose log is kept
        raise Defect(f"{what}: {value}: this is a defect of Slipway, not of the storage or of a program; the log above has its traceback")
    raise error_named(kind)(value)


def too_late(what: str, timeout_s: float, waited: str = "no answer within") -> StorageError:
    """Make the error for a call whose time is over."""
    return StorageError(f"{what}: {waited} {timeout_s:g} s; the storage behind it hangs, or is very slow")


def answer_of(function: Callable[..., Any], arguments: tuple[Any, ...]) -> bytes:
    """Call the function in the child, and return the line for result_of()."""
    try:
        on_signals(signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        signal.set_wakeup_fd(-1)
        answer: list[Any] = ["ok", function(*arguments)]
    except SlipwayError as error:
        answer = [type(error).__name__, str(error)]
    except OSError as error:
        answer = ["StorageError", f"{error.strerror}: {error.filename}" if error.filename else str(error)]
    except BaseException as error:  # the child must answer whatever happens: the parent turns this into its own error
        words = f"{type(error).__name__}: {error}"
        ours = isinstance(error, Exception) and not isinstance(error, MemoryError)
        answer = [Defect.__name__, words, traceback.format_exc().strip()] if ours else [SlipwayError.__name__, words]
    return jsonfile.json_line(answer)


def on_signals(handler: signal.Handlers) -> None:
    """Set the handler of the signals that end a program."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, handler)


def _answer(writer: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> NoReturn:
    try:
        data = answer_of(function, arguments)
        while data:
            data = data[os.write(writer, data) :]
    finally:
        os._exit(0)


# Call a function that may hang, for a caller that has threads and so must not fork (see above): in an interpreter of its own, which works
# in `/`, and in a process group of its own: Ctrl-C is for the caller, who decides how to end. It costs a tenth of a second to start, and
# the time to import the module of the function.


def call_isolated(what: str, function: Callable[..., Any], *arguments: Any, timeout_s: float) -> Any:
    """Call a function as call_limited() does, for a caller with threads. `function` is one of a module; arguments and result travel as
    JSON. Raises what it raises of our errors, and StorageError, whose message begins with `what`, where there is no answer in time or none
    at all."""
    call = jsonfile.json_line([function.__module__, function.__name__, arguments])
    environ = {**os.environ, **process.packages_environ(os.environ)}
    child = subprocess.Popen([sys.executable, "-P", "-m", "base.calls"], stdin=PIPE, stdout=PIPE, env=environ, process_group=0)
    try:
        return result_of(what, process.communicate(child, call, timeout_s).stdout.encode())
    except subprocess.TimeoutExpired:
        raise too_late(what, timeout_s) from None
    finally:
        process.end_child(child)


def answer_call() -> None:
    """Answer the call on standard input, in the interpreter of its own. What the function prints goes to standard error."""
    os.chdir("/")
    answers = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    _answer(answers, _call, (sys.stdin.buffer.read(),))


def _call(line: bytes) -> Any:
    module, name, arguments = jsonfile.parse_json(line, "the call")
    return getattr(importlib.import_module(module), name)(*arguments)


if __name__ == "__main__":
    answer_call()
