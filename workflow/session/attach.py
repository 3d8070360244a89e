"""A terminal of ours at a shell of a session: `python -m workflow.session.attach DIR`, on the node where its socket is.

The protocol is that of containers/lib/slipway_terminal.py.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import tty
from pathlib import Path
from types import FrameType
from typing import Final

PIECE: Final = 1 << 16
NO_SESSION: Final = 24


def attach(directory: Path) -> int:
    """Until the shell ends, or the connection; the exit code of the shell."""
    try:
        token = (directory / "token").read_text().strip()
        link = socket.socket(socket.AF_UNIX)
        link.connect(str(directory / "s.sock"))
    except OSError as error:
        sys.stderr.write(f"no session answers at {directory} on {os.uname().nodename}: {error.strerror}\n")
        return NO_SESSION
    with link:
        size = os.get_terminal_size(0) if os.isatty(0) else os.terminal_size((80, 24))
        first = {"token": token, "rows": size.lines, "columns": size.columns, "term": os.environ.get("TERM", "xterm")}
        link.sendall(json.dumps(first).encode() + b"\n")
        if not os.isatty(0):
            return converse(link)
        before = termios.tcgetattr(0)

        def resized(_number: int, _frame: FrameType | None) -> None:
            now = os.get_terminal_size(0)
            link.sendall(frame(b"r", json.dumps({"rows": now.lines, "columns": now.columns}).encode()))

        signal.signal(signal.SIGWINCH, resized)
        try:
            tty.setraw(0)
            return converse(link)
        finally:
            termios.tcsetattr(0, termios.TCSADRAIN, before)


def frame(kind: bytes, content: bytes) -> bytes:
    """As it is sent."""
    return kind + struct.pack(">I", len(content)) + content


def frames(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Pure: those that are whole, and the rest."""
    found = []
    while len(data) >= 5:
        (length,) = struct.unpack(">I", data[1:5])
        if len(data) < 5 + length:
            break
        found.append((data[:1], data[5 : 5 + length]))
        data = data[5 + length :]
    return found, data


def converse(link: socket.socket) -> int:
    """Until the shell ends, whose exit code it is, or the session, also while something is typed."""
    try:
        return _converse(link)
    except ConnectionError:
        return _ended()


def _ended() -> int:
    sys.stderr.write("\r\nthe session has ended\r\n")
    return NO_SESSION


def _converse(link: socket.socket) -> int:
    unread, typing = b"", True
    while True:
        ready, _, _ = select.select([link.fileno(), 0] if typing else [link.fileno()], [], [])
        if 0 in ready:
            piece = os.read(0, PIECE)
            typing = bool(piece)
            link.sendall(frame(b"d", piece or b"\x04"))  # the end of a file is ^D in a terminal
        if link.fileno() in ready:
            piece = link.recv(PIECE)
            if not piece:
                return _ended()
            found, unread = frames(unread + piece)
            for kind, content in found:
                if kind == b"d":
                    _write(1, content)
                elif kind == b"m":
                    _write(2, b"\r\nslipway: " + content.rstrip() + b"\r\n")
                elif kind == b"x":
                    return int(content)


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


if __name__ == "__main__":
    sys.exit(attach(Path(sys.argv[1])))
