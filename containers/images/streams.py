"""Pipe bytes out of an engine's command or into it, with an end when nothing moves: a hung daemon is silent, a slow one is not.

skopeo was tried in its place: an image of 148 MB out of podman's store took it 2.0 and 2.3 s, `podman save` with zstd 2.3 and 2.9 s on a
busy machine; but it writes the archive to a disk uncompressed (148 MB, not 47), and has to be installed (2026-11-27).
"""

from __future__ import annotations

import hashlib
import os
import select
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

import xxhash
import zstandard

from base.chunks import ChunkHasher
from base.errors import ContainerError, NotEnoughSpace
from base.humanize import format_size
from base.process import CommandResult, describe, dies_with_us, end_child
from containers.limits import ARCHIVE_FIRST_BYTE_S, ARCHIVE_STALL_S, ARCHIVE_UNPACK_S

LEVEL: Final = 3


def save_compressed(argv: Sequence[str], target: Any, first_s: float = ARCHIVE_FIRST_BYTE_S) -> None:
    """Pass all that `argv` prints, through zstd, into `target.write`. Raises ContainerError; OSError of the writing."""
    compressor = zstandard.ZstdCompressor(level=LEVEL, threads=-1, write_checksum=True)
    with tempfile.TemporaryFile() as words, _started(argv, words, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        with compressor.stream_writer(target, closefd=False) as writer:
            limit_s = first_s
            while block := _read(child, child.stdout, limit_s):
                writer.write(block)
                limit_s = ARCHIVE_STALL_S
        _finish(child, words, ARCHIVE_STALL_S)


def feed_decompressed(archive: Path, argv: Sequence[str], env: Mapping[str, str] | None = None, stall_s: float = ARCHIVE_STALL_S) -> None:
    """Feed the archive, unpacked from zstd, into the standard input of `argv`. Raises ContainerError."""
    limit_s = ARCHIVE_UNPACK_S
    with (
        archive.open("rb") as file,
        tempfile.TemporaryFile() as words,
        _started(argv, words, stdin=subprocess.PIPE, stdout=words, env=env) as child,
    ):
        assert child.stdin is not None
        os.set_blocking(child.stdin.fileno(), False)
        try:
            for block in zstandard.ZstdDecompressor().read_to_iter(file):
                _write(child, child.stdin, block, stall_s)
        except zstandard.ZstdError as error:
            raise ContainerError(f"{archive} is not what zstd writes: {error}") from error
        except BrokenPipeError:  # it reads no more: its own words say why
            limit_s = stall_s
        child.stdin.close()
        _finish(child, words, limit_s)


@contextmanager
def _started(argv: Sequence[str], words: IO[bytes], **streams: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command, which is dead at the end of the block. Without buffers: what a dead one did not take is dropped."""
    try:
        child = subprocess.Popen(list(argv), stderr=words, bufsize=0, preexec_fn=dies_with_us(), **{"stdin": subprocess.DEVNULL, **streams})
    except OSError as error:
        raise ContainerError(f"{argv[0]!r} cannot be started: {error.strerror or error}") from error
    try:
        yield child
    finally:
        end_child(child)


def _read(child: subprocess.Popen[bytes], stream: IO[bytes], stall_s: float) -> bytes:
    if not select.select([stream], [], [], stall_s)[0]:
        raise _stalled(child, "gave no byte", stall_s)
    return os.read(stream.fileno(), 1 << 20)


def _write(child: subprocess.Popen[bytes], stream: IO[bytes], block: bytes, stall_s: float) -> None:
    view = memoryview(block)
    while view:
        if not select.select([], [stream], [], stall_s)[1]:
            raise _stalled(child, "took no byte", stall_s)
        view = view[os.write(stream.fileno(), view) :]


def _finish(child: subprocess.Popen[bytes], words: IO[bytes], limit_s: float) -> None:
    try:
        code = child.wait(limit_s)
    except subprocess.TimeoutExpired as error:
        raise _stalled(child, "did not end", limit_s) from error
    if code:
        words.seek(0)
        result = CommandResult(argv=_argv(child), returncode=code, stdout="", stderr=words.read().decode(errors="replace"))
        raise ContainerError(describe(result))


def _stalled(child: subprocess.Popen[bytes], what: str, limit_s: float) -> ContainerError:
    return ContainerError(f"{' '.join(_argv(child))} {what} within {limit_s:g} s and was killed")


def _argv(child: subprocess.Popen[bytes]) -> tuple[str, ...]:
    return tuple(map(str, child.args)) if isinstance(child.args, list) else (str(child.args),)


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
