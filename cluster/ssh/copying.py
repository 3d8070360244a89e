"""Files over any transport that can run a program there: for hosts without rsync, and login shells that talk."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, Protocol

from base.errors import RemoteError
from cluster.ssh import Sink

UNPACK: Final = 'mkdir -p -- "$1" && exec tar -xf - -C "$1"'


class Streams(Protocol):
    """What is needed of a transport."""

    host: str

    def stream(self, argv: Sequence[str], out: Sink, err: Sink, *, stdin: IO[bytes] | None = None, limit_s: float | None = None) -> int:
        """As Transport.stream."""


def put(line: Streams, source: Path, target: str) -> None:
    """As Transport.put; after a cut it begins anew. Raises as Transport.stream, RemoteError where tar refuses."""
    said = bytearray()
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(source, arcname=".")
        packed.seek(0)
        code = line.stream(["/bin/sh", "-c", UNPACK, "sh", target], said.extend, said.extend, stdin=packed)
    if code:
        raise RemoteError(f"{source} could not be unpacked in {target} on {line.host} (exit code {code}): {_text(said)}")


def get(line: Streams, source: str, files: Sequence[str], target: Path) -> None:
    """As Transport.get: new files come in one stream, others are added to. Raises as Transport.stream, RemoteError."""
    new = [name for name in files if not (target / name).exists()]
    whole = _get_new(line, source, new, target) if new else set()
    for name in (name for name in files if name not in whole):
        said, there, here = bytearray(), f"{source}/{name}", target / name
        here.parent.mkdir(parents=True, exist_ok=True)
        with here.open("ab") as file:
            code = line.stream(["tail", "-c", f"+{file.tell() + 1}", "--", there], _writer(file), said.extend)
        if code:
            raise RemoteError(f"{there} on {line.host} could not be read (exit code {code}): {_text(said)}")


def _get_new(line: Streams, source: str, names: Sequence[str], target: Path) -> set[str]:
    """Those that came whole; what came before a cut is kept too."""
    with tempfile.TemporaryFile() as listed, tempfile.TemporaryFile() as packed:
        listed.write("".join(f"{name}\0" for name in names).encode(errors="surrogateescape"))
        listed.seek(0)
        whole: set[str] = set()
        try:
            line.stream(["tar", "-cf", "-", "-C", source, "--null", "-T", "-"], _writer(packed), lambda _: None, stdin=listed)
        finally:
            packed.seek(0)
            with suppress(tarfile.TarError):  # it ends where the line was cut
                _unpack(packed, frozenset(names), target, whole)
        return whole


def _unpack(packed: IO[bytes], names: frozenset[str], target: Path, whole: set[str]) -> None:
    with tarfile.open(fileobj=packed) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.name in names and member.isreg() else None
            if content is not None:
                here = target / member.name
                here.parent.mkdir(parents=True, exist_ok=True)
                with here.open("wb") as file:
                    shutil.copyfileobj(content, file)
                whole.add(member.name)


def _writer(file: IO[bytes]) -> Sink:
    def write(data: bytes) -> None:
        file.write(data)

    return write


def _text(said: bytearray) -> str:
    return said.decode(errors="replace").strip()
