"""Run child processes in one of five ways: to the end, fed while they run, as a limited call, bound to our life, in our place.

* A program to its end, with a time limit and bounded output: `run`, or `communicate` and `wait_or_end` where the caller starts it.
* A program that is fed and heard while it runs: `pass_on`, and for a Python of ours `PipedChild`. Programs with an event loop watch the
  streams by themselves.
* A function of ours that may hang: `base/calls.py`, in a fork of us, or in an interpreter of its own.
* A program that must not outlive us: `dies_with_us`, in a session of its own where it is ended with all that it has started.
* Another program in our place: exec, or `subprocess.run` without a limit where it has our terminal.
"""

import codecs
import contextlib
import math
import os
import re
import resource
import select
import selectors
import shlex
import signal
import site
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Final, Self

from base.errors import SlipwayError

LAST_LINES = 20
GOODBYE_S = 1.0
"""How long the end of a child is waited for that was killed."""
MAX_OUTPUT = 64 << 20
"""Bytes of an answer: `scontrol show node` of 10,000 nodes has 15 MB."""
BLOCK = 1 << 16
PIPE_BYTES = 512
"""What a pipe that is ready takes without blocking."""
_NO_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""Surrogates that stand for no byte; those that stand for one, as in `os.environ`, are U+DC80 to U+DCFF."""
Sink = Callable[[bytes], None]
codecs.register_error("each_byte", lambda error: ("?" * (error.end - error.start), error.end))  # type: ignore[attr-defined]


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """What a finished command left: `returncode` is negative for a signal, as in subprocess."""

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str = "",
) -> CommandResult:
    """Run `argv` to its end. Raises SlipwayError when it cannot be started, does not end within `timeout_s`, or says more than MAX_OUTPUT:
    it is killed then, and not waited for, since what waits for a dead network file system does not die before that answers."""
    try:
        process = subprocess.Popen(list(argv), stdin=PIPE, stdout=PIPE, stderr=PIPE, env=env, cwd=cwd)
        try:
            return communicate(process, _NO_BYTE.sub("?", stdin).encode(errors="surrogateescape"), timeout_s)
        finally:
            end_child(process)
    except subprocess.TimeoutExpired as error:
        raise SlipwayError(f"{shlex.join(argv)} did not end within {timeout_s:g} s and was killed") from error
    except (OSError, ValueError) as error:  # ValueError: a word of it holds a null character
        raise SlipwayError(f"{shlex.join(argv)} cannot be started: {getattr(error, 'strerror', None) or error}") from error


def communicate(process: subprocess.Popen[bytes], stdin: bytes, timeout_s: float) -> CommandResult:
    """Give a program its input and take what it says to its end, as Popen.communicate does, but at most MAX_OUTPUT bytes. Raises
    TimeoutExpired, SlipwayError; the caller ends the program then."""
    argv = tuple(map(str, process.args))  # type: ignore[arg-type]
    return collect(argv, shlex.join(argv), lambda out, err: pass_on(process, out, err, stdin=stdin, limit_s=timeout_s))


def collect(
    argv: Sequence[str], name: str, passing: Callable[[Sink, Sink], int], error: type[SlipwayError] = SlipwayError
) -> CommandResult:
    """Collect what a program says, which `passing(out, err)` hands over and returns its exit code. Raises `error` for more than MAX_OUTPUT
    bytes: an answer of gigabytes is none, and must not fill our memory."""

    def into(output: bytearray) -> Sink:
        def sink(data: bytes) -> None:
            output.extend(data)
            if len(output) > MAX_OUTPUT:
                raise error(f"{name} says more than {MAX_OUTPUT >> 20} MiB and was ended: that is no answer")

        return sink

    output = (bytearray(), bytearray())
    code = passing(into(output[0]), into(output[1]))
    stdout, stderr = (one.decode(errors="each_byte") for one in output)  # as wide as it was, for tables with columns of bytes
    return CommandResult(argv=tuple(argv), returncode=code, stdout=stdout, stderr=stderr)


def pass_on(process: subprocess.Popen[bytes], out: Sink, err: Sink, *, stdin: bytes = b"", limit_s: float | None = None) -> int:
    """Feed a program its input, hand over what it says as it comes, and return its exit code. Raises TimeoutExpired; the caller ends the
    program then."""
    deadline = math.inf if limit_s is None else time.monotonic() + limit_s
    left = memoryview(stdin)
    with selectors.DefaultSelector() as waiting:
        for stream, sink in ((process.stdout, out), (process.stderr, err)):
            if stream is not None:
                waiting.register(stream, selectors.EVENT_READ, sink)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            waiting.register(process.stdin, selectors.EVENT_WRITE)
        while waiting.get_map():
            ready = waiting.select(_left_s(deadline))
            if not ready and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(process.args, limit_s or 0.0)
            for key, _ in ready:
                if key.data is None:
                    left = _fed(key.fd, left)
                    is_over = not left
                else:
                    data = os.read(key.fd, BLOCK)
                    key.data(data)
                    is_over = not data
                if is_over:
                    waiting.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
    return process.wait(_left_s(deadline))


def _left_s(deadline: float) -> float | None:
    return None if deadline == math.inf else max(0.0, deadline - time.monotonic())


def _fed(descriptor: int, left: memoryview) -> memoryview:
    """Write to a pipe, and return what is left; nothing if the program has closed it."""
    try:
        return left[os.write(descriptor, left[:PIPE_BYTES]) :] if left else left
    except BrokenPipeError:
        return left[:0]


def wait_or_end(process: subprocess.Popen[bytes], limit_s: float) -> int | None:
    """Wait for the end of a child and return its exit code. After `limit_s` it is killed, and the code is None."""
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end_child(process)


def end_child(process: subprocess.Popen[bytes]) -> None:
    """Kill a child unless it has ended, and close its streams. One that hangs in a file system is not waited for: it dies when that
    answers, which may be after us."""
    if process.poll() is None:
        process.kill()
        try:
            process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            process.returncode = -signal.SIGKILL
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):  # what was not written to its end
                stream.close()


# A child that the kernel ends with us.


PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def dies_with_us() -> Callable[[], None]:
    """Return a `preexec_fn` that has the child killed when the thread that starts it ends."""
    prepare_prctl()
    return partial(die_with_parent, os.getpid())


def die_with_parent(parent: int) -> None:
    """Let the kernel kill us when the thread that forked us ends; to be called between fork and exec. `parent` is the forking process."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def become_subreaper() -> None:
    """Make orphans among our descendants our children from now on, so that none gets away."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def raise_file_limit() -> None:
    """Raise our limit of open files as far as it goes."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # the hard one is above what the kernel gives now
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def prepare_prctl() -> None:
    """Load what `die_with_parent` needs, so that nothing is imported between fork and exec."""
    global _call  # noqa: PLW0603
    if _call is None:
        import ctypes

        function = ctypes.CDLL(None, use_errno=True).prctl
        _call = lambda option, value: int(function(option, value, 0, 0, 0))  # noqa: E731


_call: Callable[[int, int], int] | None = None


def _prctl(option: int, value: int) -> None:
    prepare_prctl()
    if _call is None or _call(option, value) != 0:
        raise OSError(f"prctl({option}, {value}) failed on {sys.platform}")


# What a program said, for messages.


def describe(result: CommandResult) -> str:
    """Describe a result in one paragraph for an error message: argv, exit code, the last lines of stderr."""
    return f"{shlex.join(result.argv)} ended with {result.returncode}\n{last_lines(result.stderr)}".rstrip()


def last_lines(text: str, count: int = LAST_LINES) -> str:
    """Return the last `count` lines that are not blank."""
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:])


# The first line of a descriptor, which somebody may hold open who never writes, or never ends his line.


MAX_BYTES: Final = 4096


def first_line(descriptor: int, limit_s: float) -> bytes:
    """Read the first line with its end, or what there is of it where the descriptor ends or the line is longer than MAX_BYTES. Raises
    TimeoutError."""
    content, give_up = b"", time.monotonic() + limit_s
    while b"\n" not in content and len(content) < MAX_BYTES:
        if not is_readable(descriptor, max(0.0, give_up - time.monotonic())):
            raise TimeoutError(f"no line came within {limit_s:g} s")
        piece = os.read(descriptor, MAX_BYTES)
        if not piece:
            break
        content += piece
    line, end, _ = content.partition(b"\n")
    return line + end


def is_readable(descriptor: int, limit_s: float) -> bool:
    """Wait for bytes or the end, at most `limit_s`. The descriptor may have any number: select() takes none above 1023, and others may
    connect so often that a supervisor opens more."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(1000 * limit_s))


# Where our packages lie, and the environment that makes every Python we start find them, whatever directory it is started in.
#
# Such a Python is started with `-P`: without it `python -m` looks into the working directory first, which is the user's, and runs or reads
# what lies there by the name of a module of ours or of the standard library.


CODE_ROOT: Final = Path(__file__).resolve().parents[1]
"""The directory that base, cluster, containers, data_prep, workflow and extras lie in: a checkout, or site-packages."""


def packages_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the environment of a Python of ours gains, so that it finds the packages that we run from: a checkout goes before all
    else. A wheel adds nothing, since its interpreter finds it, and site-packages in front would hide modules of the standard library."""
    if CODE_ROOT in {Path(found).resolve() for found in (*site.getsitepackages(), site.getusersitepackages())}:
        return {}
    before = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(CODE_ROOT)]
    return {"PYTHONPATH": os.pathsep.join([str(CODE_ROOT), *before])}


# A Python of ours as a child that is asked on its standard input and answers on its standard output, by a caller that waits for it.


class PipedChild:
    """A child `python -m module words`, with `environ` besides ours; it is gone at the end of its context, however that comes."""

    def __init__(self, module: str, *words: str, stderr: int | None = None, **environ: str) -> None:
        argv = [sys.executable, "-P", "-m", module, *words]
        env = {**os.environ, **packages_environ(os.environ), **environ}
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.requests, self.answers = self.process.stdin, self.process.stdout

    def ask(self, request: bytes) -> None:
        """Send a request. Raises BrokenPipeError where the child has ended."""
        self.requests.write(request)
        self.requests.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        end_child(self.process)
