"""Serve terminals on a unix socket: each connection that shows the token gets a shell.

A client sends one line, a JSON object: `token`, `term`. The answer is a line, with it the descriptor of the shell's terminal (its side that
a terminal program has), and a second line when the shell has ended: `code`, and perhaps `message`. The client says that it has read this by
a line of its own, so that a shell that was left is not taken for a connection that was lost.

Python 3.6, standard library only.
"""

import array
import contextlib
import fcntl
import hmac
import json
import os
import pty
import socket
import subprocess
import termios
import threading
import time
from typing import Any, Callable, Dict

from slipway_proxy import Listener

MAX_FIRST = 4096
ANSWER_LIMIT_S = 10.0
NOTICE = "notice"
"""File in the directory of the session: a line for all who are at it."""


class Shells:
    """The shells that are open, by the paths of their terminals, and when the last one began or ended."""

    def __init__(self) -> None:
        self.open: Dict[str, None] = {}
        self.last = time.time()
        self.ended = threading.Event()
        """Somebody has left a shell, and there is no other one."""

    def idle_s(self) -> float:
        """Return how long nothing was typed or printed. The kernel notes that for each terminal, within 8 seconds."""
        times = [self.last]
        for path in list(self.open):
            with contextlib.suppress(OSError):
                status = os.stat(path)
                times += [status.st_atime, status.st_mtime]
        return max(0.0, time.time() - max(times))

    def show(self, text: str) -> None:
        """Print a line on all terminals, without waiting for one that is stopped."""
        for path in list(self.open):
            with contextlib.suppress(OSError):
                terminal = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
                try:
                    os.write(terminal, ("\r\nslipway: %s\r\n" % text).encode())
                finally:
                    os.close(terminal)


def serve(directory: str, stopping: threading.Event) -> int:
    """Give a shell to each connection until the last shell is left, or `stopping`. Return the exit code."""
    shells, shown = Shells(), ""
    Listener(directory, "s.sock", lambda client, token, proved: answer(client, token, shells, proved))
    while not stopping.is_set() and not shells.ended.wait(0.5):
        with contextlib.suppress(OSError), open(os.path.join(directory, NOTICE)) as file:
            text = file.read().strip()
            if text != shown:
                shown = text
                shells.show(text)
    return 0


def answer(client: socket.socket, token: str, shells: Shells, proved: Callable[[], None]) -> None:
    """Give one client a shell, or answer the question of the supervisor. `proved` is called once it has shown the token."""
    with client:
        client.settimeout(ANSWER_LIMIT_S)
        first = json.loads(client.makefile().readline(MAX_FIRST))
        if not hmac.compare_digest(str(first.get("token")).encode(), token.encode()):
            send(client, message="the token is not that of this session", code=1)
            return
        proved()
        if first.get("ask") == "status":
            send(client, open=len(shells.open), idle_s=shells.idle_s(), answers=True)
            return
        try:
            give_shell(client, str(first.get("term") or "xterm"), shells)
        except OSError as error:
            send(client, message="no terminal is to be had here for a shell: %s; the session goes on" % error, code=1)


def give_shell(client: socket.socket, term: str, shells: Shells) -> None:
    """Start a shell, pass its terminal on, and wait for its end. A client that goes takes the other side of the terminal with it, so that
    the kernel hangs up the shell."""
    shell = os.environ.get("SHELL") or "/bin/bash"
    shell = shell if os.access(shell, os.X_OK) else "/bin/sh"
    outer, inner = pty.openpty()
    path = os.ttyname(inner)
    try:
        process = subprocess.Popen(
            [shell, "-i"],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=dict(os.environ, TERM=term),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        shells.open[path], shells.last = None, time.time()
        with contextlib.suppress(OSError):  # it has gone already
            client.sendmsg([b"{}\n"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [outer]))])
    finally:
        os.close(outer)
        os.close(inner)
    code = process.wait()
    shells.last = time.time()
    del shells.open[path]
    with contextlib.suppress(OSError):
        send(client, code=code if code >= 0 else 128 - code)
        if client.recv(1) and not shells.open:
            shells.ended.set()


def send(client: socket.socket, **words: Any) -> None:
    client.sendall((json.dumps(words) + "\n").encode())
