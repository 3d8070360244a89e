"""Look at the program of a session, in children with a time limit: whether it answers by its sockets, how long nobody has used it, and what
it has printed."""

import http.client
import json
import os
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from msgspec import DecodeError, Struct
from msgspec.json import decode

from base.errors import StagingError
from base.humanize import expanded_path
from extras.session.request import OUTPUT, STOP
from workflow.run.node.workdir import of_run

LIMIT_S: Final = 5.0
PROXY_STATUS: Final = "/.slipway/status"
MAX_BYTES: Final = 1 << 20


class Use(Struct, frozen=True):
    """The use of a program: whether it answers, and how long nobody has used it; None where that is not known."""

    answers: bool
    idle_s: float | None = None


Seen = tuple[bool, Use | None, int]
"""What a look has found: whether the session's end is requested, how its program is used, how much of its output is on storage."""


class JupyterStatus(Struct, frozen=True):
    """The answer of Jupyter about itself."""

    last_activity: datetime


class JupyterKernel(Struct, frozen=True):
    """The answer of Jupyter about a kernel."""

    execution_state: str = ""


class SocketConnection(http.client.HTTPConnection):
    """A connection for HTTP on a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("127.0.0.1", timeout=LIMIT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LIMIT_S)
        self.sock.connect(self._path)


def get(path: str, target: str, token: str) -> tuple[int, bytes]:
    """Return status and body of the answer to GET. Raises OSError."""
    connection = SocketConnection(path)
    try:
        connection.request("GET", target, headers={"Authorization": f"token {token}", "Connection": "close"})
        answer = connection.getresponse()
        return answer.status, answer.read(MAX_BYTES)
    except http.client.HTTPException as error:
        raise OSError(f"no answer in HTTP: {error}") from error
    finally:
        connection.close()


def look(directory: str, program: tuple[str, Sequence[str], str] | None, cache: str, brought: int) -> Seen:
    """Look at a session. `program`: its kind, its sockets, the file with the token; None before its start. Raises StagingError,
    OSError."""
    stop = Path(directory, STOP).exists()
    if stop or program is None:  # the end is reported also where the rest of a look would fail
        return stop, None, brought
    kind, sockets, token_file = program
    if kind == "run":
        return False, None, bring_output(cache, directory, brought)
    token = Path(token_file).read_text().strip()
    try:
        found = [_ask_one(kind, path, token) for path in sockets]
    except (OSError, DecodeError):
        return False, Use(answers=False), brought
    idle = [one.idle_s for one in found if one.idle_s is not None]
    return False, Use(answers=all(one.answers for one in found), idle_s=min(idle, default=None)), brought


def _ask_one(kind: str, path: str, token: str) -> Use:
    if kind == "shell":
        return _ask_terminals(path, token)
    if kind == "notebook":
        return _ask_jupyter(path, token)
    status, body = get(path, PROXY_STATUS, token)
    found = decode(body, type=Use)
    if kind == "tensorboard" and found.answers:  # its port is open before it can answer
        status = get(path, "/", token)[0]
    return Use(answers=found.answers and status == 200, idle_s=found.idle_s)


def _ask_terminals(path: str, token: str) -> Use:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(LIMIT_S)
        link.connect(path)
        link.sendall(json.dumps({"token": token, "ask": "status"}).encode() + b"\n")
        with link.makefile("rb") as file:
            return decode(file.readline(1 << 16), type=Use)


def _ask_jupyter(path: str, token: str) -> Use:
    """Ask Jupyter. A kernel that computes is used, though nobody types."""
    status, body = get(path, "/api/status", token)
    if status != 200:
        return Use(answers=False)
    last = decode(body, type=JupyterStatus).last_activity
    busy = any(kernel.execution_state == "busy" for kernel in decode(get(path, "/api/kernels", token)[1], type=list[JupyterKernel]))
    return Use(answers=True, idle_s=0.0 if busy else max(0.0, (datetime.now(UTC) - last).total_seconds()))


# What the command of `run` prints, copied from its log on the first node to storage, as it comes.


RANK_LOG: Final = "own/logs/rank-0.log"
PIECE: Final = 1 << 20


def bring_output(cache: str, directory: str, start: int) -> int:
    """Copy what came behind the first `start` bytes of the log to the same place in the file on storage, so that it may be done twice.
    `cache`: its path with variables. Return how much is there then. Raises StagingError if one of them is not set here, OSError."""
    try:
        cache_path = expanded_path(cache, os.environ)
    except ValueError as error:
        raise StagingError(f"cache.path: {error}") from error
    log = next((path for work in of_run(cache_path, Path(directory)) if (path := work / RANK_LOG).is_file()), None)
    if log is None:
        return start
    with log.open("rb") as source:
        source.seek(start)
        piece = source.read(PIECE)
        if not piece:
            return start
        target = os.open(Path(directory, OUTPUT), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while piece:
                for_storage = memoryview(piece)
                while for_storage:
                    written = os.pwrite(target, for_storage, start)
                    start, for_storage = start + written, for_storage[written:]
                piece = source.read(PIECE)
        finally:
            os.close(target)
    return start
