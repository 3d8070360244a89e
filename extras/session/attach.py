"""Connect our terminal to a shell of a session: `python -m extras.session.attach DIR`, on the node where its socket is.

containers/lib/slipway_terminal.py says what is sent.
"""

import contextlib
import json
import math
import os
import select
import signal
import socket
import sys
import termios
import time
import tty
from pathlib import Path
from typing import Any, Final

PIECE: Final = 1 << 16
LAST_S: Final = 0.2
"""How long is waited for what an ended shell has printed, where a program that it has left holds its terminal; ten times that where the
program prints."""
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
        try:
            link.sendall(json.dumps({"token": token, "term": os.environ.get("TERM", "xterm")}).encode() + b"\n")
            answer, received, _, _ = socket.recv_fds(link, PIECE, 1)
            ended = _converse(link, received[0]) if received else json.loads(answer or _gone())
        except ConnectionError:
            sys.stderr.write("\r\nthe session has ended\r\n")
            return NO_SESSION
    if "message" in ended:
        sys.stderr.write(f"slipway: {ended['message']}\n")
    return int(ended["code"])


def _converse(link: socket.socket, shell: int) -> dict[str, Any]:
    """Pass on what is typed and printed until the shell ends, and return how it did."""
    if not os.isatty(0):
        termios.tcsetwinsize(shell, (24, 80))
        return _pass_on(link, shell, None)
    before = termios.tcgetattr(0)
    resized, told = os.pipe()
    os.set_blocking(told, False)
    signal.set_wakeup_fd(told, warn_on_full_buffer=False)
    signal.signal(signal.SIGWINCH, lambda *_: None)
    try:
        termios.tcsetwinsize(shell, termios.tcgetwinsize(0))
        tty.setraw(0)
        return _pass_on(link, shell, resized)
    finally:
        signal.set_wakeup_fd(-1)
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def _pass_on(link: socket.socket, shell: int, resized: int | None) -> dict[str, Any]:
    """Pass on without waiting for either side: a program that reads only when what it prints is taken would wait for ever."""
    os.set_blocking(shell, False)
    readers = {link.fileno(), shell, 0} | ({resized} if resized is not None else set())
    typed, ended, last = b"", b"", math.inf
    while not ended or (shell in readers and time.monotonic() < last):
        writers = [shell] if typed and shell in readers else []
        heard = readers if len(typed) < PIECE else readers - {0}  # what is piped in may come faster than the shell reads it
        ready, free, _ = select.select(heard, writers, [], LAST_S if ended else None)
        if not ready and not free:
            break
        if resized in ready:
            os.read(resized, PIECE)
            termios.tcsetwinsize(shell, termios.tcgetwinsize(0))
        if 0 in ready:
            piece = os.read(0, PIECE)
            if not piece:
                readers.remove(0)
            typed += piece or b"\x04"  # the end of a file is ^D in a terminal
        printed = b""
        try:
            if free:
                typed = typed[os.write(shell, typed) :]
            if shell in ready:
                printed = os.read(shell, PIECE)
        except OSError:  # all that held the terminal have ended
            readers.remove(shell)
        _write(1, printed)
        if link.fileno() in ready:
            ended, last = link.recv(PIECE) or _gone(), time.monotonic() + 10 * LAST_S
            readers.remove(link.fileno())
    with contextlib.suppress(ConnectionError):  # the server waits for 10 s only, and the session goes on then
        link.sendall(b"\n")
    found: dict[str, Any] = json.loads(ended)
    return found


def _gone() -> bytes:
    raise ConnectionResetError


def _write(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]


if __name__ == "__main__":
    sys.exit(attach(Path(sys.argv[1])))
