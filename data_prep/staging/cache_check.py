"""Check a dataset that is in the cache already, at each use, and remove a damaged one."""

import contextlib
import errno
import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from base import humanize, logs, publish, seal
from base.errors import DigestMismatch, RecordError, SlipwayError, StagingError
from cluster.processes import boot_id
from data_prep.cache.layout import Cache, mark_of
from data_prep.cache.lock import live_leases
from data_prep.cache.stored import check_entry, remove_entry, remove_unlisted
from data_prep.file_set import FileSet
from data_prep.staging import copy
from data_prep.staging.chunk_journal import ChunkTable

logger = logging.getLogger(__name__)


SCHEMA: Final = "slipway.checked/1"
_SHOWN: Final = 5
OF_THIS_PROCESS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that say nothing of the files which are read."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A published directory of a cache, whose name matches the digest of its manifest."""

    cache: Cache
    root: Path
    file_set: FileSet


def recheck(entry: Entry, check_s: float | None, asked_ns: int, on_bytes: Callable[[int], None]) -> int:
    """Check that the files are what the manifest promises, and return the bytes hashed for that.

    A note in the cache keeps the inode, size and times of each file when it was hashed last. A file that differs from it is hashed whole. A
    disk that loses data moves no time, so chunks of the other files are hashed too, for `check_s` seconds (None: all of them); each use
    continues where the last one ended. What another process of this user has checked since `asked_ns` (time.monotonic_ns) counts.
    `on_bytes(n)` is called on the way. Raises DigestMismatch naming files and chunks.
    """
    begun_ns = time.monotonic_ns()
    statuses = _statuses(entry)
    mark = _read_mark(entry)
    if mark.get("boot_id") == boot_id() and mark["begun_ns"] >= asked_ns and mark["shards"] == statuses:
        return 0
    known = mark.get("shards", {})
    files = entry.file_set.files
    table = ChunkTable(files)
    chunks = range(table.num_chunks)
    moved = [number for number, file in enumerate(files) if known.get(file.name) != statuses[file.name]]
    must = {chunk for number in moved for chunk in table.of_file(number)}
    first = mark["next"] % len(chunks) if mark and chunks else 0
    rest = [chunk for chunk in (*chunks[first:], *chunks[:first]) if chunk not in must]
    looked: list[int] = []

    def count(num_bytes: int) -> None:
        looked.append(num_bytes)
        on_bytes(num_bytes)

    past_cache = entry.file_set.bytes >= copy.DIRECT_FROM_BYTES  # a smaller one is read from memory afterwards: what was right stays there
    try:
        with contextlib.closing(copy.ReadBack(entry.root, table, past_cache=past_cache)) as read_back:
            wrong = read_back.wrong(sorted(must), on_bytes=count)
            wrong += read_back.wrong(rest, None if check_s is None else time.monotonic() + check_s, count)
    except OSError as error:
        if error.errno in OF_THIS_PROCESS:
            raise
        raise DigestMismatch(f"{entry.root} cannot be read: {error.strerror}") from error
    if wrong:
        raise DigestMismatch(f"{humanize.some([table.describe(chunk) for chunk in wrong], _SHOWN)} differ from the manifest")
    position = len(looked) - len(must)
    after = rest[position % len(rest)] if rest else 0
    _write_mark(entry, {"begun_ns": begun_ns, "next": after, "shards": statuses})
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
    """Read the note {boot_id, begun_ns, next, shards} about this dataset. It is empty where there is none of this user."""
    path = mark_of(entry.cache, entry.root.name)
    try:
        if path.lstat().st_uid != os.geteuid():
            return {}
        mark = seal.read_sealed(path)
    except (OSError, RecordError):
        return {}
    ours = isinstance(mark, dict) and mark.get("schema") == SCHEMA and mark.get("digest") == entry.file_set.digest and "seal" in mark
    return mark if ours else {}


def _write_mark(entry: Entry, content: dict[str, Any]) -> None:
    """Write the note. A failure is only logged, since the next use then hashes everything."""
    mark = {"schema": SCHEMA, "digest": entry.file_set.digest, "boot_id": boot_id(), **content}
    try:
        publish.publish(mark_of(entry.cache, entry.root.name), seal.sealed_text(mark), 0o600)
    except OSError as error:
        logger.warning("that %s was checked cannot be noted: %s; its next use hashes all of it", entry.root.name, error.strerror)


def find_hit(cache: Cache, name: str, check: Callable[[Entry], int]) -> tuple[Entry, int] | None:
    """Find the published dataset and return it with the bytes that `check` hashed, or None if there is no whole one.

    `check` raises DigestMismatch for a damaged dataset, which is removed. Raises StagingError when it cannot be removed because it belongs
    to another user, or cannot be read for want of memory or descriptors.
    """
    root = cache.datasets / name
    if not os.path.lexists(root):
        return None
    try:
        file_set = check_entry(root)
        if _take_unlisted_away(root, file_set):
            check_entry(root)  # a link in the place of a directory led to files until now
    except SlipwayError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in OF_THIS_PROCESS:
            raise
        _remove(cache, name, error)
        return None
    entry = Entry(cache=cache, root=root, file_set=file_set)
    try:
        return entry, check(entry)
    except DigestMismatch as error:
        _remove(cache, name, error)
        return None


def _take_unlisted_away(root: Path, file_set: FileSet) -> bool:
    """Remove what programs have put among the files of a tree, and return True if there was any. The files of the tree stay, since another
    run may be reading them."""
    try:
        removed = [str(path.relative_to(root)) for path in remove_unlisted(root, file_set)]
    except OSError as error:
        raise StagingError(f"what was put among its files cannot be removed: {error.filename}: {error.strerror}") from error
    if removed:
        logger.warning("%s: a program has put %s among its files, which was removed", root, logs.printable(humanize.some(removed, _SHOWN)))
    return bool(removed)


def _remove(cache: Cache, name: str, why: SlipwayError) -> None:
    root = cache.datasets / name
    users = "; ".join(str(lease) for lease in live_leases(cache, name)) or "nobody"
    logger.warning("%s is damaged and staged again (in use by %s): %s", root, users, why)
    remove_entry(cache, root)
