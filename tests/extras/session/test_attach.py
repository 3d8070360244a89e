"""A terminal at a session's shell: what is pasted arrives as it is, whatever becomes of the window meanwhile."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

import pytest

from extras.session.attach import frame, frames

LIMIT_S = 60.0
PASTED = b"".join(b"%07d\n" % number for number in range(100_000))


@pytest.mark.processes
def test_a_window_that_is_resized_while_something_is_pasted_breaks_no_frame(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("T")
    found: list[tuple[bytes, bytes]] = []
    master, slave = pty.openpty()
    with socket.socket(socket.AF_UNIX) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        server.bind(str(tmp_path / "s.sock"))
        server.listen()
        server.settimeout(LIMIT_S)
        argv = [sys.executable, "-P", "-m", "extras.session.attach", str(tmp_path)]
        process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, start_new_session=True, preexec_fn=own_terminal)
        try:
            client, _ = server.accept()
            with client:
                client.settimeout(LIMIT_S)
                while client.recv(1) != b"\n":
                    continue
                wait_raw(slave)
                pasting = threading.Thread(target=paste, args=(master,), daemon=True)
                pasting.start()
                unread, rows = b"", 20
                while sum(len(content) for kind, content in found if kind == b"d") < len(PASTED):
                    rows = 20 + (rows - 19) % 50
                    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
                    piece = client.recv(1 << 14)
                    assert piece, found[-1]
                    new, unread = frames(unread + piece)
                    found += new
                pasting.join(LIMIT_S)
                client.sendall(frame(b"x", b"3"))
                assert process.wait(LIMIT_S) == 3
        finally:
            process.kill()
            process.wait()
            os.close(master)
            os.close(slave)
    assert b"".join(content for kind, content in found if kind == b"d") == PASTED
    sizes = [json.loads(content) for kind, content in found if kind == b"r"]
    assert len(sizes) > 5
    assert {kind for kind, _ in found} == {b"d", b"r"}


def own_terminal() -> None:
    """That of its standard input: it is told of a new size."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def wait_raw(terminal: int) -> None:
    """Until lines are no longer gathered by the kernel."""
    end = time.monotonic() + LIMIT_S
    while termios.tcgetattr(terminal)[3] & termios.ICANON:
        assert time.monotonic() < end
        time.sleep(0.01)


def paste(terminal: int) -> None:
    left = PASTED
    while left:
        left = left[os.write(terminal, left[:1024]) :]
