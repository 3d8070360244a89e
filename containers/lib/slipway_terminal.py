"""Serve terminals on a unix socket: each connection that shows the token gets a shell.

The first line of a client is a JSON object: `token`, `rows`, `columns`, `term`. Then both sides send frames: a letter, four bytes of
length, the content. `d`: what was typed, or printed; `r`: a new size; `m`: a line for the user; `x`: the shell has ended, with this code.

Python 3.6, standard library only.
"""

import contextlib
import fcntl
import hmac
import json
import os
import pty
import select
import signal
import socket
import struct
import termios
import threading
import time
from typing import Any, Callable, Dict, Optional, Tuple

from slipway_proxy import Listener, Use

MAX_FIRST = 4096
FIRST_LIMIT_S = 10.0
PIECE = 1 << 16
MAX_UNSENT = 1 << 20
"""Bytes that are printed, and that the client has not taken: then the program waits. What is typed waits here, however much."""
NOTICE = "notice"
"""File in the directory of the session: a line for all who are at it."""


class Shells(Use):  # type: ignore[misc]
    """The shells that are open, and when something was last typed or printed in one of them."""

    def __init__(self) -> None:
        super().__init__()
        self.ended = threading.Event()
        """Somebody has left a shell, and there is no other one."""


def serve(directory: str, stopping: threading.Event) -> int:
    """Give a shell to each connection until the last shell is left, or `stopping`. Return the exit code."""
    shells = Shells()
    Listener(directory, "s.sock", lambda client, token, proved: answer(client, token, directory, shells, proved))
    while not stopping.is_set() and not shells.ended.wait(0.5):
        pass
    return 0


def answer(client: socket.socket, token: str, directory: str, shells: Shells, proved: Callable[[], None]) -> None:
    """Give one client a shell, or answer the question of the supervisor. `proved` is called once it has shown the token."""
    with client:
        client.settimeout(FIRST_LIMIT_S)
        try:
            first = read_first(client)
        except (OSError, ValueError):
            return
        if first is None or not hmac.compare_digest(str(first.get("token")).encode(), token.encode()):
            client.sendall(frame(b"m", b"the token is not that of this session\n"))
            return
        proved()
        client.settimeout(None)
        if first.get("ask") == "status":
            said = {"open": shells.open, "idle_s": time.monotonic() - shells.last, "answers": True}
            client.sendall(json.dumps(said).encode() + b"\n")
            return
        try:
            shell = start_shell(first)
        except OSError as error:
            words = "no terminal is to be had here for a shell: %s; the session goes on\n" % error
            client.sendall(frame(b"m", words.encode()) + frame(b"x", b"1"))
            return
        shells.count(1)
        try:
            left = converse(client, shell, directory, shells)
        except (OSError, ValueError):  # ValueError: a size that is no JSON
            left = False
        shells.count(-1)
        if left and not shells.open:
            shells.ended.set()


def read_first(client: socket.socket) -> Optional[Dict[str, Any]]:
    """Read the first line, a byte at a time: frames follow."""
    data = b""
    while not data.endswith(b"\n"):
        piece = client.recv(1)
        if not piece or len(data) > MAX_FIRST:
            return None
        data += piece
    found = json.loads(data.decode())
    return found if isinstance(found, dict) else None


def start_shell(first: Dict[str, Any]) -> Tuple[int, int]:
    """Start a shell, and return its number and the descriptor of its terminal. Raises OSError where there is no terminal for it."""
    shell = os.environ.get("SHELL") or "/bin/bash"
    shell = shell if os.access(shell, os.X_OK) else "/bin/sh"
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = str(first.get("term") or "xterm")
        os.execv(shell, [shell, "-i"])
    resize(terminal, first)
    return pid, terminal


def converse(client: socket.socket, shell: Tuple[int, int], directory: str, shells: Shells) -> bool:
    """Pass on what is typed and printed until the shell ends (True), or the client is gone. Neither side waits for the other: a program
    that reads only when what it prints is taken, and a client that reads only when what it sends is taken, would wait for ever.
    """
    pid, terminal = shell
    os.set_blocking(terminal, False)
    shown = notice(directory)
    unread, typed, said, left = b"", b"", b"", False
    try:
        while not left or said:
            readers = [client.fileno()] + ([terminal] if len(said) < MAX_UNSENT and not left else [])
            writers = ([client.fileno()] if said else []) + ([terminal] if typed and not left else [])
            ready, free, _ = select.select(readers, writers, [], 1.0)
            message = notice(directory)
            if message is not None and message != shown:
                shown = message
                said += frame(b"m", message[1].encode() + b"\n")
            if client.fileno() in free:
                said = said[client.send(said, socket.MSG_DONTWAIT) :]
            if terminal in free:
                typed = typed[os.write(terminal, typed) :]
            if terminal in ready:
                try:
                    piece = os.read(terminal, PIECE)
                except OSError:
                    piece = b""
                left = not piece
                said += frame(b"d", piece) if piece else frame(b"x", str(exit_code(pid)).encode())
                shells.touch()
            if client.fileno() in ready:
                piece = client.recv(PIECE)
                if not piece:
                    return False
                shells.touch()
                new, unread = take(unread + piece, terminal)
                typed += new
        return True
    finally:
        os.close(terminal)
        leave(pid, left)


def leave(pid: int, ended: bool) -> None:
    """Hang up a shell that has not `ended`, and whose client is gone. A thread waits for it: it may take its time."""
    if ended:
        return
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGHUP)
    threading.Thread(target=exit_code, args=(pid,), daemon=True).start()


def take(data: bytes, terminal: int) -> Tuple[bytes, bytes]:
    """Return what was typed in the frames that are whole, whose sizes are set, and the rest of the data."""
    typed = b""
    while len(data) >= 5:
        (length,) = struct.unpack(">I", data[1:5])
        if len(data) < 5 + length:
            break
        kind, content, data = data[:1], data[5 : 5 + length], data[5 + length :]
        if kind == b"d":
            typed += content
        elif kind == b"r":
            resize(terminal, json.loads(content.decode()))
    return typed, data


def resize(terminal: int, asked: Dict[str, Any]) -> None:
    """Set rows and columns of a terminal, where the client has sent them."""
    rows, columns = asked.get("rows"), asked.get("columns")
    if isinstance(rows, int) and isinstance(columns, int):
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows % 65536, columns % 65536, 0, 0))


def notice(directory: str) -> Optional[Tuple[float, str]]:
    """Return the line for all who are at the session, and since when it is there."""
    path = os.path.join(directory, NOTICE)
    try:
        with open(path) as file:
            return os.stat(path).st_mtime, file.read().strip()
    except OSError:
        return None


def exit_code(pid: int) -> int:
    status = os.waitpid(pid, 0)[1]
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


def frame(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack(">I", len(content)) + content
