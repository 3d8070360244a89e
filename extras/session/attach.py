"""Connect our terminal to a shell of a session: `python -m extras.session.attach DIR`, on the node where its socket is.

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
from typing import Final

PIECE: Final = 1 << 16
NO_SESSION: Final = 24


def attach(directory: Path) -> int:
    """Enter a shell until it ends, or the connection. Return the exit code of the shell."""
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

        resized, told = os.pipe()
        os.set_blocking(told, False)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)  # not sent by the handler: it would land in the middle of what is pasted
        signal.signal(signal.SIGWINCH, lambda *_: None)
        try:
            tty.setraw(0)
            return converse(link, resized)
        finally:
            signal.set_wakeup_fd(-1)
            termios.tcsetattr(0, termios.TCSADRAIN, before)


def frame(kind: bytes, content: bytes) -> bytes:
    """Return a frame as it is sent."""
    return kind + struct.pack(">I", len(content)) + content


def frames(data: bytes) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the frames that are whole, and the rest of the data."""
    found = []
    while len(data) >= 5:
        (length,) = struct.unpack(">I", data[1:5])
        if len(data) < 5 + length:
            break
        found.append((data[:1], data[5 : 5 + length]))
        data = data[5 + length :]
    return found, data


def converse(link: socket.socket, resized: int | None = None) -> int:
    """Pass on what is typed and printed until the session or the shell ends, and return the shell's exit code. `resized` can be read
    when the terminal has another size."""
    try:
        return _converse(link, resized)
    except ConnectionError:
        sys.stderr.write("\r\nthe session has ended\r\n")
        return NO_SESSION


def _converse(link: socket.socket, resized: int | None) -> int:
    unread, typing = b"", True
    while True:
        always = [link.fileno()] if resized is None else [link.fileno(), resized]
        ready, _, _ = select.select([*always, 0] if typing else always, [], [])
        if resized in ready:
            os.read(resized, PIECE)
            now = os.get_terminal_size(0)
            link.sendall(frame(b"r", json.dumps({"rows": now.lines, "columns": now.columns}).encode()))
        if 0 in ready:
            piece = os.read(0, PIECE)
            typing = bool(piece)
            link.sendall(frame(b"d", piece or b"\x04"))  # the end of a file is ^D in a terminal
        if link.fileno() in ready:
            piece = link.recv(PIECE)
            if not piece:
                raise ConnectionResetError
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
