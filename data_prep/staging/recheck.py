"""Is a staged dataset still what it was when it was staged? Asked at every use.

A note of ours in the cache says what each file was when it was hashed last: inode, size, times of its last changes. A file that is
another since, or whose time of change moved, is hashed whole. What a disk loses by itself moves no time: of all other chunks as many
are hashed as a few seconds allow, each use going on where the last one ended. A dataset that can be hashed within them is hashed whole.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from base.errors import DigestMismatch, RecordError
from base.publish import publish
from base.seal import read_sealed, sealed_text
from base.units import some
from cluster.processes import boot_id
from data_prep.cache.layout import Cache, mark_of
from data_prep.file_set import FileSet
from data_prep.staging.copy import DIRECT_FROM_BYTES
from data_prep.staging.journal import Chunk
from data_prep.staging.readback import ReadBack

logger = logging.getLogger(__name__)

SCHEMA: Final = "slipway.checked/1"
_SHOWN: Final = 5


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A published directory of a cache; the digest of its manifest was compared with its name already."""

    cache: Cache
    root: Path
    file_set: FileSet


def recheck(entry: Entry, check_s: float | None, asked_ns: int, on_bytes: Callable[[int], None]) -> int:
    """Look whether the files are what the manifest promises; returns the bytes hashed for that, `on_bytes(n)` as it goes.

    `check_s`: how long chunks of unchanged files may be hashed, None: all of them. `asked_ns` (time.monotonic_ns): what another process of
    ours has found since then counts. Raises DigestMismatch naming files and chunks.
    """
    begun_ns = time.monotonic_ns()
    statuses = _statuses(entry)
    mark = _read_mark(entry)
    if mark.get("boot_id") == boot_id() and mark["begun_ns"] >= asked_ns and mark["shards"] == statuses:
        return 0
    known = mark.get("shards", {})
    files = entry.file_set.files
    moved = {number for number, file in enumerate(files) if known.get(file.name) != statuses[file.name]}
    chunks = [(number, chunk) for number, file in enumerate(files) for chunk in range(len(file.chunks))]
    first = mark["next"] % len(chunks) if mark and chunks else 0
    rest = [chunk for chunk in chunks[first:] + chunks[:first] if chunk[0] not in moved]
    looked: list[int] = []

    def count(num_bytes: int) -> None:
        looked.append(num_bytes)
        on_bytes(num_bytes)

    must = [chunk for chunk in chunks if chunk[0] in moved]
    past_cache = entry.file_set.bytes >= DIRECT_FROM_BYTES  # a smaller one is read from memory afterwards: what was right stays there
    try:
        with contextlib.closing(ReadBack(entry.root, files, past_cache=past_cache)) as read_back:
            wrong = read_back.wrong(must, on_bytes=count)
            wrong += read_back.wrong(rest, None if check_s is None else time.monotonic() + check_s, count)
    except OSError as error:
        raise DigestMismatch(f"{entry.root} cannot be read: {error.strerror}") from error
    if wrong:
        raise DigestMismatch(_problem(entry, wrong))
    position = len(looked) - len(must)
    after = rest[position % len(rest)] if rest else (0, 0)
    _write_mark(entry, {"begun_ns": begun_ns, "next": chunks.index(after) if chunks else 0, "shards": statuses})
    return sum(looked)


def note_checked(entry: Entry) -> None:
    """Note that all of it was just read back from the disk and is right."""
    _write_mark(entry, {"begun_ns": time.monotonic_ns(), "next": 0, "shards": _statuses(entry)})


def _statuses(entry: Entry) -> dict[str, list[int]]:
    found = {}
    for file in entry.file_set.files:
        status = (entry.root / file.path).lstat()
        found[file.name] = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
    return found


def _read_mark(entry: Entry) -> dict[str, Any]:
    """The note, if it is one of ours about this dataset: {boot_id, begun_ns, next, shards}; else {}."""
    path = mark_of(entry.cache, entry.root.name)
    try:
        if path.lstat().st_uid != os.geteuid():
            return {}
        mark = read_sealed(path)
    except (OSError, RecordError):
        return {}
    ours = isinstance(mark, dict) and mark.get("schema") == SCHEMA and mark.get("digest") == entry.file_set.digest and "seal" in mark
    return mark if ours else {}


def _write_mark(entry: Entry, content: dict[str, Any]) -> None:
    """Without it the next use hashes all: no reason to fail."""
    mark = {"schema": SCHEMA, "digest": entry.file_set.digest, "boot_id": boot_id(), **content}
    try:
        publish(mark_of(entry.cache, entry.root.name), sealed_text(mark), 0o600)
    except OSError as error:
        logger.warning("that %s was checked cannot be noted: %s; its next use hashes all of it", entry.root.name, error.strerror)


def _problem(entry: Entry, wrong: list[Chunk]) -> str:
    files = entry.file_set.files
    return f"{some([f'chunk {chunk} of {files[number].name}' for number, chunk in wrong], _SHOWN)} differ from the manifest"
