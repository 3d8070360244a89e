"""Calls of an engine's client: each has a time limit of its own, because a client waits for a daemon that hangs for ever."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO

from base.command import CommandResult, communicate, last_lines
from base.errors import ContainerError, SlipwayError
from cluster.processes import bury, die_with_parent, prepare_prctl, send, session_of
from containers.limits import ENGINE_CALL_LEAST_S, ENGINE_CALL_S


def environment(hidden: Sequence[str]) -> dict[str, str]:
    """Ours, without the variables that begin so."""
    return {name: value for name, value in os.environ.items() if not name.startswith(tuple(hidden))} if hidden else dict(os.environ)


def call(argv: Sequence[str], where: str, limit_s: float = ENGINE_CALL_S, env: Mapping[str, str] | None = None) -> CommandResult:
    """Run it to its end, or to ours, since nobody reads its answer then. Raises ContainerError naming `where` when it hangs, or when the
    client is not here."""
    process = spawn(argv, subprocess.PIPE, environment(()) if env is None else env, outlives_us=False)
    try:
        return communicate(process, b"", limit_s)
    except subprocess.TimeoutExpired as error:
        end(process)
        raise ContainerError(
            f"{where} does not answer: `{shlex.join(argv)}` had not ended after {limit_s:g} s; on this node, ask whether it hangs"
        ) from error
    except SlipwayError as error:
        end(process)
        raise ContainerError(f"{where}: {error}") from error


def spawn(argv: Sequence[str], output: int | IO[bytes], env: Mapping[str, str], *, outlives_us: bool = True) -> subprocess.Popen[bytes]:
    """In a session of its own: a signal to our group shall reach the ranks by the orderly shutdown only. Raises ContainerError."""
    try:
        return subprocess.Popen(
            list(argv),
            env=dict(env),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=None if outlives_us else dies_with_us(),
        )
    except OSError as error:
        raise ContainerError(
            f"{argv[0]!r} cannot be started: {error.strerror}; is it on this node's PATH (`setup` in the site file)?"
        ) from error


def dies_with_us() -> Callable[[], None]:
    """For `preexec_fn`: killed when we are, however: a client that waits for a daemon would stay."""
    prepare_prctl()
    return partial(die_with_parent, os.getpid())


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a client with what it started, in whatever process group (the file system of an image, which some engines serve by a process),
    and bury it."""
    if process.poll() is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            process.kill()
        bury(process)
    send(session_of(process.pid), signal.SIGKILL)
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def is_there(find: Sequence[str], where: str, limit_s: float = ENGINE_CALL_S) -> bool:
    """Whether the container that `find` looks for exists. Raises ContainerError when that cannot be told."""
    result = call(find, where, limit_s)
    if result.returncode:
        raise ContainerError(f"{where}: `{shlex.join(find)}` ended with {result.returncode}: {last_lines(result.stderr, 3)}")
    return bool(result.stdout.strip())


def remove_container(name: str, find: Sequence[str], remove: Sequence[str], where: str, limit_s: float = ENGINE_CALL_S) -> None:
    """Until it is gone, by whomever: the engine itself may be removing it. Raises ContainerError naming it, after some `limit_s`."""
    give_up = time.monotonic() + limit_s
    said = ""
    while is_there(find, where, max(ENGINE_CALL_LEAST_S, give_up - time.monotonic())):
        if time.monotonic() > give_up:
            raise ContainerError(f"the container {name!r} is still there after `{shlex.join(remove)}`: {said}; {where}: remove it by hand")
        said = last_lines(call(remove, where, max(ENGINE_CALL_LEAST_S, give_up - time.monotonic())).stderr, 3)


def tail(path: Path) -> str:
    """The last words of a client, from the file it wrote them to."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 4096))
            return last_lines(file.read().decode(errors="replace"), 5)
    except OSError:
        return ""
