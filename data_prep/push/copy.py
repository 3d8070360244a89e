"""Copy a local result into a hidden directory on storage, durably, hashing every byte that is written.

One thread: it runs in forked children.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from blake3 import blake3

from base.chunks import ChunkHasher, chunks_name
from base.errors import StorageError, StorageFull
from base.jsonfile import json_text
from base.limited import moved
from base.publish import sync_directory
from base.refusals import DISK_FULL
from base.units import format_size
from base.untrusted import directory, make_directories, open_regular
from data_prep.hashing import new_hasher
from data_prep.push.listing import MOST_FILES, Refusal, list_files, refusal, refused_text

LOG_BYTES = 64 << 20
_READ_BYTES = 4 << 20
_SYNC_BYTES = 256 << 20
"""So much is in memory only, at most: what is written goes on to storage meanwhile, and no sync lasts as long as a whole file's would."""
_OF_THE_NAME = (errno.EEXIST, errno.EINVAL, errno.EILSEQ, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOTDIR)
"""What storage answers to a name, not to its content: no time heals it."""

PushedFile = dict[str, Any]  # {"path": relative, "bytes", "blake3"}


class Naming(NamedTuple):
    """How the program's files of a node are called on storage: `first` as they are, and before all others; the others below the directory
    `below`, where other nodes have files of the same names. Beside those that are `passed_on` later, from node to node, the list of their
    chunks is put."""

    first: tuple[str, ...] = ()
    below: str | None = None
    passed_on: tuple[str, ...] = ()

    def path(self, path: str) -> str:
        """On storage."""
        return path if self.below is None or path in self.first else f"{self.below}/{path}"


AS_THEY_ARE: Final = Naming()


def push_files(
    local_dir: Path,
    part_dir: Path,
    log_bytes: int = LOG_BYTES,
    *,
    own_dir: Path | None = None,
    naming: Naming = AS_THEY_ARE,
    most: int = MOST_FILES,
) -> list[PushedFile]:
    """Copy the files of `local_dir` into `part_dir`, beside what other nodes put there; returns {"path", "bytes", "blake3"} of each.

    `local_dir` is what a program wrote; `own_dir` what Slipway wrote beside it, which comes first and whose names the program's files
    cannot have (without it they may: a result of an earlier version). See listing.py for what is refused, and `most`; a file of the program
    whose name storage does not take is refused too. It is listed in a file `not-pushed-<hash>.jsonl`. A log longer than `log_bytes`
    (`*.log`, and all below a directory `logs`) keeps its head and its tail. Raises StorageFull where it is (what this call wrote is
    removed, the local copy stays), StorageError where it fails.
    """
    with contextlib.ExitStack() as open_:
        sources, refused = [], []
        for place in (own_dir, local_dir):
            if place is None:
                continue
            try:
                root = open_.enter_context(directory(place))
            except OSError as error:
                refused.append(refusal(place.name, str(error.strerror)))
                continue
            listing = list_files(root, naming.first, with_ours=place == own_dir or own_dir is None, most=most)
            refused += listing.refused
            theirs = place == local_dir
            for entry in listing.files:
                target = naming.path(entry.path) if theirs else entry.path
                sources.append(_Source(root, entry.path, target, theirs, entry.status.st_size))
        return _Push(local_dir, part_dir, log_bytes).run(sources, refused, naming)


class _Source(NamedTuple):
    """A file below the directory `root`, and its path on storage. `theirs`: the program named it."""

    root: int
    path: str
    target: str
    theirs: bool
    size: int


class _Push:
    """One call of push_files."""

    def __init__(self, local_dir: Path, part_dir: Path, log_bytes: int) -> None:
        self._local, self._part, self._log_bytes = local_dir, part_dir, log_bytes
        self._written: list[Path] = []

    def run(self, sources: Sequence[_Source], refused: list[Refusal], naming: Naming) -> list[PushedFile]:
        need = sum(self._limited(source.path, source.size) for source in sources)
        try:
            make_directory(self._part)
            if need > _free_bytes(self._part):
                raise OSError(errno.ENOSPC, "not enough room")
            with directory(self._part) as part:
                files = list(self._copied(part, sources, refused, naming.passed_on))
                if refused:
                    text = refused_text(refused)
                    files.append(self._write(part, f"not-pushed-{blake3(text).hexdigest()[:12]}.jsonl", text))
            for place in {path.parent for path in self._written}:
                sync_directory(place)
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise StorageError(
                    f"{self._local} cannot be pushed to {self._part}: {error.strerror}: {error.filename}; it stays on the node"
                ) from error
            for path in self._written:
                path.unlink(missing_ok=True)
            raise _full(self._local, self._part, need, str(error.strerror)) from error
        return sorted(files, key=lambda file: str(file["path"]))

    def _copied(self, part: int, sources: Sequence[_Source], refused: list[Refusal], passed_on: Sequence[str]) -> Iterator[PushedFile]:
        """What has become something else since it was listed is refused now, as is a name of the program's that storage does not take."""
        for source in sources:
            try:
                descriptor = open_regular(source.root, source.path)
            except OSError as error:
                refused.append(refusal(source.path, str(error.strerror)))
                continue
            with os.fdopen(descriptor, "rb") as file:
                try:
                    target = self._opened(part, source.target)
                except OSError as error:
                    if not source.theirs or error.errno not in _OF_THE_NAME:
                        raise
                    refused.append(refusal(source.path, f"storage takes no file of this name: {error.strerror}"))
                    continue
                hashes = self._filled(target, _pieces(file, self._log_bytes if _is_log(source.path) else None))
            yield _pushed(source.target, hashes)
            if source.path in passed_on:
                yield self._write(part, chunks_name(source.target), json_text(hashes.chunk_list(Path(source.target).name)))

    def _limited(self, path: str, size: int) -> int:
        return min(size, self._log_bytes) if _is_log(path) else size

    def _write(self, part: int, path: str, content: bytes) -> PushedFile:
        return _pushed(path, self._filled(self._opened(part, path), [content]))

    def _opened(self, part: int, path: str) -> int:
        """For writing. What a killed push left under the same name is overwritten: nobody reads a part directory."""
        parents = path.rpartition("/")[0]
        if parents:
            make_directories(part, parents)
        descriptor = open_regular(part, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._written.append(self._part / path)
        return descriptor

    def _filled(self, descriptor: int, pieces: Iterable[bytes]) -> ChunkHasher:
        """Write and sync one file."""
        hasher, synced = new_hasher(), 0
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            for piece in pieces:
                hasher.update(piece)
                view = memoryview(piece)
                while view:
                    view = view[file.write(view) or 0 :]
                if hasher.bytes - synced >= _SYNC_BYTES:
                    os.fdatasync(file.fileno())
                    synced = hasher.bytes
                moved()
            os.fsync(file.fileno())
        return hasher


def _pushed(path: str, hashes: ChunkHasher) -> PushedFile:
    return {"path": path, "bytes": hashes.bytes, "blake3": hashes.hexdigest()}


def make_directory(path: Path) -> None:
    """Create `path` and its parents, each durable in its own parent. Raises OSError."""
    missing = [path]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for place in reversed(missing):
        try:
            place.mkdir()
        except FileExistsError:
            continue
        sync_directory(place.parent)


def _is_log(path: str) -> bool:
    return path.endswith(".log") or "logs" in path.split("/")[:-1]


def _pieces(source: BinaryIO, limit: int | None) -> Iterator[bytes]:
    """The content; with a `limit` that is passed, whole lines from both ends and one line that says what is missing between."""
    size = os.fstat(source.fileno()).st_size
    if limit is None or size <= limit:
        left = size  # it may grow: what could not be ended may still write
        while left and (piece := source.read(min(_READ_BYTES, left))):
            left -= len(piece)
            yield piece
        return
    head = source.read(limit // 2)
    head = head[: head.rfind(b"\n") + 1] or head
    source.seek(size - limit // 2)
    tail = source.read(limit // 2)
    tail = tail[tail.find(b"\n") + 1 :] or tail
    yield head
    yield f"[slipway: {size - len(head) - len(tail)} bytes left out here]\n".encode()
    yield tail


def _free_bytes(place: Path) -> int:
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize


def _full(local_dir: Path, part_dir: Path, need: int, reason: str) -> StorageFull:
    return StorageFull(
        f"storage is full: the result {local_dir} needs {format_size(need)}, {part_dir.parent} has "
        f"{format_size(_free_bytes(part_dir.parent))} free ({reason}); free room or quota"
    )
