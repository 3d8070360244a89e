"""Copy files to and from a host by tar, which every host has; a copy that is cut begins anew."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO

from base.errors import RemoteError
from cluster.ssh import Sink, Transport
from cluster.ssh.limits import COPY_START_S, MEMBER_BYTES, SLOWEST_BYTES_PER_S

UNPACK = 'mkdir -p -- "$1" && exec tar -xf - -C "$1"'


def put(line: Transport, source: Path, target: str) -> None:
    """Copy the tree `source` to the directory `target` there, which is made. Raises as Transport.stream, RemoteError where tar refuses."""
    output = bytearray()
    with tempfile.TemporaryFile() as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            tar.add(source, arcname=".")
        limit_s = _limit_s(packed.tell())
        packed.seek(0)
        code = line.stream(["/bin/sh", "-c", UNPACK, "sh", target], output.extend, output.extend, stdin=packed, limit_s=limit_s)
    if code:
        shown = output.decode(errors="replace").strip()
        raise RemoteError(f"{source} could not be unpacked in {target} on {line.host} (exit code {code}): {shown}")


def get(line: Transport, source: str, files: Mapping[str, int], target: Path) -> None:
    """Copy `files`, by name with their bytes, from the directory `source` there below `target`: regular files alone, and those that came
    whole before a cut too. Raises as Transport.stream, and RemoteError for more bytes than the files have."""
    most = sum(files.values()) + MEMBER_BYTES * (len(files) + 8)
    with tempfile.TemporaryFile() as listed, tempfile.TemporaryFile(dir=target) as packed:
        listed.write("".join(f"{name}\0" for name in files).encode(errors="surrogateescape"))
        listed.seek(0)
        try:
            argv = ["tar", "-cf", "-", "-C", source, "--null", "-T", "-"]
            line.stream(argv, _writer(packed, most, line.host), lambda _: None, stdin=listed, limit_s=_limit_s(most))
        finally:
            packed.seek(0)
            with suppress(
                tarfile.TarError, ValueError, OverflowError, MemoryError, RecursionError
            ):  # it ends where the line was cut, or is damaged
                _unpack(packed, files, target)


def _limit_s(num_bytes: int) -> float:
    return COPY_START_S + num_bytes / SLOWEST_BYTES_PER_S


def _unpack(packed: IO[bytes], files: Mapping[str, int], target: Path) -> None:
    with tarfile.open(fileobj=packed, mode="r:") as tar:  # compressed, or with holes, it could be larger than what was sent
        for member in tar:
            whole = member.size == files.get(member.name) and member.isreg() and not member.issparse()
            content = tar.extractfile(member) if whole else None
            if content is not None:
                here = target / member.name
                here.parent.mkdir(parents=True, exist_ok=True)
                with here.open("wb") as file:
                    shutil.copyfileobj(content, file)


def _writer(file: IO[bytes], most: int, host: str) -> Sink:
    def write(data: bytes) -> None:
        file.write(data)
        if file.tell() > most:
            raise RemoteError(f"{host} sends more than the {most} bytes of the files that were listed")

    return write
