"""Where the node program and the watchdog in a container meet: a unix socket in a directory of ours alone, JSON lines, descriptors."""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from base.errors import ContainerError
from base.machine_files import machine_text
from base.typed import json_as
from cluster import processes
from containers.engines.words import MAX_WORDS, Words

SOCKET: Final = "control"
MOST_AT_ONCE: Final = 200
"""Descriptors of one message: the kernel takes 253."""


def prepare(directory: Path, files: Sequence[tuple[str, str]], owner: tuple[int, int] | None) -> None:
    """Write what the container reads. `owner`: the uid and gid inside, where they are not ours (we are root then)."""
    directory.mkdir(mode=0o700, exist_ok=True)
    paths = [directory]
    for name, text in files:
        path = directory / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text(text)
        paths.append(path)
    if owner is not None:
        for path in paths:
            os.chown(path, *owner)


def listen(directory: Path, owner: tuple[int, int] | None) -> socket.socket:
    """By a short name of the directory: a unix socket's path may have 107 bytes, and a cache's is longer soon."""
    (directory / SOCKET).unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{descriptor}/{SOCKET}")
    finally:
        os.close(descriptor)
    if owner is not None:
        os.chown(directory / SOCKET, *owner)
    listener.listen(1)
    listener.setblocking(False)
    return listener


class Link:
    """The connection to a watchdog."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unread = b""
        self.pid = int(struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0])
        """The watchdog's, in our pid namespace."""
        self.ended = False
        connection.setblocking(False)

    def fileno(self) -> int:
        """Readable when it has said something."""
        return self._connection.fileno()

    def read(self) -> list[Words]:
        """What it has said since. `ended` afterwards, if that was all. Raises ContainerError for what no watchdog says."""
        while not self.ended:
            try:
                data = self._connection.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._unread += data
            self.ended = not data
            if len(self._unread) > MAX_WORDS:
                break
        *lines, self._unread = self._unread.split(b"\n")
        if len(self._unread) > MAX_WORDS:
            self._unread, self.ended = b"", True
            raise ContainerError(f"its first process says more than {MAX_WORDS} bytes at once, which no watchdog does")
        return [json_as(Words, line.decode(errors="replace"), "the words of its first process", ContainerError) for line in lines]

    def order(self, do: str, descriptors: Sequence[int] = (), **fields: Any) -> None:
        """Tell it to do something; nothing if it has ended. The messages are so small that they always fit. More descriptors than one of
        them can carry come before it: it keeps them in their order."""
        left = list(descriptors)
        try:
            while len(left) > MOST_AT_ONCE:
                socket.send_fds(self._connection, [b'{"do": "keep"}\n'], left[:MOST_AT_ONCE])
                del left[:MOST_AT_ONCE]
            socket.send_fds(self._connection, [json.dumps({"do": do, **fields}).encode() + b"\n"], left)
        except OSError:
            return  # `read` will find the end

    def close(self) -> None:
        """The watchdog takes this for our end."""
        self._connection.close()


def host_pids(watchdog: int, inner: Sequence[int]) -> list[int]:
    """The pids here of children of the watchdog, which it knows by their pids in there; 0 for one that cannot be found."""
    found = {}
    for state in processes.all_processes():
        if state.parent == watchdog:
            found[_innermost_pid(state.pid)] = state.pid
    return [found.get(pid, 0) for pid in inner]


def _innermost_pid(pid: int) -> int:
    lines = machine_text(f"/proc/{pid}/status").splitlines()
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), pid)
