"""Run other programs: to their end with a time limit, or as a child of ours that is asked and answers."""

from __future__ import annotations

import contextlib
import os
import re
import select
import selectors
import shlex
import signal
import site
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from typing import IO, Final, Self

from base.errors import SlipwayError

LAST_LINES = 20
GOODBYE_S = 2.0
MAX_OUTPUT = 64 << 20
"""Bytes of an answer: `scontrol show node` of 10,000 nodes has 15 MB."""
PIPE_BYTES = 512
"""What a pipe that is ready takes without blocking."""
_NO_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""What stands in text for no character and, unlike what `os.environ` holds of bytes that are no text, for no byte."""


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
            _end(process)
    except subprocess.TimeoutExpired as error:
        raise SlipwayError(f"{shlex.join(argv)} did not end within {timeout_s:g} s and was killed") from error
    except (OSError, ValueError) as error:  # ValueError: a word of it holds a null character
        raise SlipwayError(f"{shlex.join(argv)} cannot be started: {getattr(error, 'strerror', None) or error}") from error


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        try:
            process.wait(GOODBYE_S)
        except subprocess.TimeoutExpired:
            process.returncode = -signal.SIGKILL  # it dies of it when the storage answers; nobody is to wait for that
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError):  # what was not written to its end
                stream.close()


def communicate(process: subprocess.Popen[bytes], stdin: bytes, timeout_s: float) -> CommandResult:
    """Give a program its input and take what it says to its end, as Popen.communicate does, but at most MAX_OUTPUT bytes: an answer of
    gigabytes is none, and must not fill our memory. Raises TimeoutExpired, SlipwayError; the caller ends the program then."""
    deadline = time.monotonic() + timeout_s
    said: dict[IO[bytes], bytearray] = {stream: bytearray() for stream in (process.stdout, process.stderr) if stream is not None}
    left = memoryview(stdin)
    with selectors.DefaultSelector() as waiting:
        for stream in said:
            waiting.register(stream, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            waiting.register(process.stdin, selectors.EVENT_WRITE)
        while waiting.get_map():
            ready = waiting.select(max(0.0, deadline - time.monotonic()))
            if not ready and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(process.args, timeout_s)
            for key, _ in ready:
                if key.fileobj is process.stdin:
                    left = _fed(process.stdin, left)
                    is_over = not left
                else:
                    is_over = not _heard(key.fd, said[key.fileobj], process)  # type: ignore[index]
                if is_over:
                    waiting.unregister(key.fileobj)
                    key.fileobj.close()  # type: ignore[union-attr]
    process.wait(max(0.0, deadline - time.monotonic()))
    stdout, stderr = (said.get(stream, b"").decode(errors="replace") for stream in (process.stdout, process.stderr))  # type: ignore[arg-type]
    argv = tuple(map(str, process.args))  # type: ignore[arg-type]
    return CommandResult(argv=argv, returncode=process.returncode, stdout=stdout, stderr=stderr)


def _fed(stream: IO[bytes], left: memoryview) -> memoryview:
    """Write to the stream, and return what is left; nothing if the program has closed it."""
    try:
        return left[os.write(stream.fileno(), left[:PIPE_BYTES]) :] if left else left
    except BrokenPipeError:
        return left[:0]


def _heard(descriptor: int, said: bytearray, process: subprocess.Popen[bytes]) -> bool:
    """Read what there is. Return False at the end."""
    data = os.read(descriptor, 1 << 16)
    said += data
    if len(said) > MAX_OUTPUT:
        raise SlipwayError(f"{shlex.join(map(str, process.args))} says more than {MAX_OUTPUT >> 20} MiB and was ended: that is no answer")  # type: ignore[arg-type]
    return bool(data)


def describe(result: CommandResult) -> str:
    """Describe a result in one paragraph for an error message: argv, exit code, the last lines of stderr."""
    return f"{shlex.join(result.argv)} ended with {result.returncode}\n{last_lines(result.stderr)}".rstrip()


def last_lines(text: str, count: int = LAST_LINES) -> str:
    """Return the last `count` lines that are not blank."""
    return "\n".join([line for line in text.splitlines() if line.strip()][-count:])


# The first line of a descriptor, which somebody may hold open who never writes, or never ends his line.


MOST_BYTES: Final = 4096


def first_line(descriptor: int, limit_s: float) -> bytes:
    """Read the first line with its end, or what there is of it where the descriptor ends or the line is longer than MOST_BYTES. Raises
    TimeoutError."""
    said, give_up, waiting = b"", time.monotonic() + limit_s, select.poll()
    waiting.register(descriptor, select.POLLIN)
    while b"\n" not in said and len(said) < MOST_BYTES:
        if not waiting.poll(max(0.0, give_up - time.monotonic()) * 1000):
            raise TimeoutError(f"no line came within {limit_s:g} s")
        piece = os.read(descriptor, MOST_BYTES)
        if not piece:
            break
        said += piece
    line, end, _ = said.partition(b"\n")
    return line + end


# Where our packages lie, and the environment that makes every Python we start find them, whatever directory it is started in.
#
# Such a Python is started with `-P`: without it `python -m` looks into the working directory first, which is the user's, and runs or reads
# what lies there by the name of a module of ours or of the standard library.


ROOMS: Final = Path(__file__).resolve().parents[1]
"""The directory that base, cluster, containers, data_prep, workflow and extras lie in: a checkout, or site-packages."""


def rooms_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the environment of a Python of ours gains, so that it finds the packages that we run from: a checkout goes before all
    else. A wheel adds nothing, since its interpreter finds it, and site-packages in front would hide modules of the standard library."""
    if ROOMS in {Path(found).resolve() for found in (*site.getsitepackages(), site.getusersitepackages())}:
        return {}
    before = [entry for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(ROOMS)]
    return {"PYTHONPATH": os.pathsep.join([str(ROOMS), *before])}


# A Python of ours as a child that is asked on its standard input and answers on its standard output, by a caller that waits for it.


class PipedChild:
    """A child `python -m module words`, with `environ` besides ours; it is gone at the end of its context, however that comes."""

    def __init__(self, module: str, *words: str, stderr: int | None = None, **environ: str) -> None:
        argv = [sys.executable, "-P", "-m", module, *words]
        env = {**os.environ, **rooms_environ(os.environ), **environ}
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
        self.process.kill()
        for pipe in (self.requests, self.answers, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):  # a request that nobody will read
                    pipe.close()
        self.process.wait()
