"""Pipe bytes out of an engine's command or into it, with a time limit: a daemon may hang.

skopeo was tried in its place: an image of 148 MB out of podman's store took it 2.0 and 2.3 s, `podman save` with zstd 2.3 and 2.9 s on a
busy machine; but it writes the archive to a disk uncompressed (148 MB, not 47), and has to be installed (2026-11-27).
"""

import contextlib
import hashlib
import os
import shlex
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

import xxhash
import zstandard

from base.chunks import ChunkHasher
from base.errors import ContainerError, NotEnoughSpace
from base.humanize import format_size
from base.process import CommandResult, describe, dies_with_us, end_child
from containers.limits import ARCHIVE_S

LEVEL: Final = 3


def save_compressed(argv: Sequence[str], target: Any, limit_s: float = ARCHIVE_S) -> None:
    """Pass all that `argv` prints, through zstd, into `target.write`. Raises ContainerError; OSError of the writing."""
    with _started(argv, limit_s, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        zstandard.ZstdCompressor(level=LEVEL, threads=-1, write_checksum=True).copy_stream(child.stdout, target)


def feed_decompressed(archive: Path, argv: Sequence[str], env: Mapping[str, str] | None = None, limit_s: float = ARCHIVE_S) -> None:
    """Feed the archive, unpacked from zstd, into the standard input of `argv`. Raises ContainerError."""
    with archive.open("rb") as file, _started(argv, limit_s, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env) as child:
        assert child.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError), child.stdin:  # it reads no more: its own words say why
                zstandard.ZstdDecompressor().copy_stream(file, child.stdin)
        except zstandard.ZstdError as error:
            raise ContainerError(f"{archive} is not what zstd writes: {error}") from error


@contextlib.contextmanager
def _started(argv: Sequence[str], limit_s: float, **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command, and wait for its end after the block; it is killed after `limit_s`, or where the block fails. Raises
    ContainerError."""
    with tempfile.TemporaryFile() as words:
        try:
            child = subprocess.Popen(list(argv), stderr=words, preexec_fn=dies_with_us(), **{"stdin": subprocess.DEVNULL, **streams})
        except OSError as error:
            raise ContainerError(f"{argv[0]!r} cannot be started: {error.strerror or error}") from error
        is_late = threading.Event()

        def kill() -> None:
            is_late.set()
            child.kill()

        timer = threading.Timer(limit_s, kill)
        timer.start()
        try:
            yield child
            code = child.wait()
        finally:
            timer.cancel()
            end_child(child)
        if is_late.is_set():
            raise ContainerError(f"{shlex.join(argv)} did not end within {limit_s:g} s and was killed")
        if code:
            words.seek(0)
            text = words.read().decode(errors="replace")
            raise ContainerError(describe(CommandResult(argv=tuple(argv), returncode=code, stdout="", stderr=text)))


# Room on a disk, asked before the first byte; and files copied with their hash taken on the way.


BLOCK: Final = 4 << 20
RESERVE: Final = 16 << 20


def free_bytes(path: Path) -> int:
    """Return what an ordinary user may still write on the disk of `path`, which may not exist yet, or not be ours to look into."""
    status = os.statvfs(_visible(path))
    return status.f_bavail * status.f_frsize


def _visible(path: Path) -> Path:
    while True:
        try:
            path.stat()
        except OSError:
            if path == path.parent:
                raise
            path = path.parent
        else:
            return path


def require(needs: dict[Path, int], doing: str) -> None:
    """Raise NotEnoughSpace unless all of `needs` (place -> bytes) fit at the same time; places on one disk add up."""
    disks: dict[int, list[Path]] = {}
    for place in needs:
        disks.setdefault(_visible(place).stat().st_dev, []).append(place)
    for places in disks.values():
        need, free = sum(needs[place] for place in places) + RESERVE, free_bytes(places[0])
        if need > free:
            raise not_enough(places[0], need, doing)


def not_enough(place: Path, need: int, doing: str) -> NotEnoughSpace:
    """Return the error, with what is free now."""
    return NotEnoughSpace(
        f"{doing}: {need} bytes ({format_size(need)}) are needed, {free_bytes(place)} ({format_size(free_bytes(place))}) are free in "
        f"{place}; make room there, then run again"
    )


class HashingWriter(ChunkHasher):
    """A file that is hashed as it is written, by SHA-256 and in chunks."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(hashlib.sha256(), xxhash.xxh3_128)
        self._file = file

    def write(self, block: bytes) -> int:
        self.update(block)
        return self._file.write(block)


def copy_hashed(source: Path, target: Path) -> HashingWriter:
    """Copy a file to the new name `target`. On failure that is removed. Raises OSError."""
    try:
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            return _hashed(source, file)
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def hash_file(source: Path) -> HashingWriter:
    """Read a file and keep nothing but its hashes. Raises OSError."""
    with open(os.devnull, "wb") as nowhere:
        return _hashed(source, nowhere)


def _hashed(source: Path, target: IO[bytes]) -> HashingWriter:
    writer = HashingWriter(target)
    with source.open("rb") as reader:
        while block := reader.read(BLOCK):
            writer.write(block)
    return writer
