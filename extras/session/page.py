"""Ask a session's program, by its sockets, whether it answers and how long nobody has used it. In a child with a time limit."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from base.errors import RecordError

LIMIT_S: Final = 5.0
PROXY_STATUS: Final = "/.slipway/status"
MOST_BYTES: Final = 1 << 20


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
        return answer.status, answer.read(MOST_BYTES)
    except http.client.HTTPException as error:
        raise OSError(f"no answer in HTTP: {error}") from error
    finally:
        connection.close()


def ask(kind: str, sockets: Sequence[str], token_file: str) -> dict[str, Any]:
    """Return {"answers": whether all of it does, "idle_s": how long nobody has used any of it, None where that is not known}."""
    token = Path(token_file).read_text().strip()
    told = []
    for path in sockets:
        try:
            told.append(_ask_one(kind, path, token))
        except (OSError, ValueError, KeyError, TypeError, RecordError):
            return {"answers": False, "idle_s": None}
    idle = [one["idle_s"] for one in told if one["idle_s"] is not None]
    return {"answers": all(one["answers"] for one in told), "idle_s": min(idle, default=None)}


def _ask_one(kind: str, path: str, token: str) -> dict[str, Any]:
    if kind == "shell":
        return _ask_terminals(path, token)
    if kind == "notebook":
        return _ask_jupyter(path, token)
    status, body = get(path, PROXY_STATUS, token)
    found: dict[str, Any] = json.loads(body)
    if kind == "tensorboard" and found["answers"]:  # its port is open before it can answer
        return {**found, "answers": get(path, "/", token)[0] == 200}
    return {**found, "answers": found["answers"] and status == 200}


def _ask_terminals(path: str, token: str) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(LIMIT_S)
        link.connect(path)
        link.sendall(json.dumps({"token": token, "ask": "status"}).encode() + b"\n")
        with link.makefile("rb") as file:
            found: dict[str, Any] = json.loads(file.readline(1 << 16))
            return found


def _ask_jupyter(path: str, token: str) -> dict[str, Any]:
    """Ask Jupyter. A kernel that computes is used, though nobody types."""
    status, body = get(path, "/api/status", token)
    if status != 200:
        return {"answers": False, "idle_s": None}
    last = datetime.fromisoformat(json.loads(body)["last_activity"])
    kernels = json.loads(get(path, "/api/kernels", token)[1])
    busy = any(kernel.get("execution_state") == "busy" for kernel in kernels)
    return {"answers": True, "idle_s": 0.0 if busy else max(0.0, (datetime.now(UTC) - last).total_seconds())}
