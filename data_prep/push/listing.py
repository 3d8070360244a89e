"""What of a result is pushed. A training program wrote it, so nothing in it is believed: links, pipes, devices, files of other users, what
we may not read, names that are ours, files that are mostly holes, and more files than a record can list are refused and named, never
followed or waited for."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from base.units import and_more
from base.untrusted import MOST_DEPTH, Entry, entries, kind_of, open_regular

MOST_FILES: Final = 10_000
"""A record lists them all, and a reader takes records of up to 4 MiB."""
MOST_LOOKED_AT: Final = 10 * MOST_FILES
MOST_REFUSED: Final = 1_000
PATH_BYTES: Final = 1 << 20
"""Of all paths together; a node that may push a part of the files may use that part of these bytes."""
HOLES_BYTES: Final = 1 << 30
_MOST_HOLES: Final = 10_000
_OURS: Final = re.compile(
    r"((record|cell|ended|delivered-\d+(\.node-\d+)?)\.json|logs/((node|rank)-[\d-]+|sidecar-[^/]+)\.log"
    r"|(not-pushed-[0-9a-f]{12}|load-\d+)\.jsonl|checkpoint\.safetensors\.chunks\.json|of-node-\d+)(/.*)?"
)
"""Files, and what a program would have below a directory of such a name."""
_EVENTS: Final = re.compile(r"events-\d+\.jsonl")
_UNFINISHED: Final = re.compile(r"\.[^/]*\.part")

Refusal = dict[str, str]  # {"path": in ASCII, "reason"}


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files to push, sorted by path, and what else was there, with the reason."""

    files: tuple[Entry, ...]
    refused: tuple[Refusal, ...]


def list_files(root: int, first: Sequence[str] = (), *, with_ours: bool = False, most: int = MOST_FILES) -> Listing:
    """What is to be pushed of the directory `root`, at most `most` files. `first`: names that are looked for before the others, so that no
    number of others keeps them out; events of other ranks are refused then. `with_ours`: whether names that Slipway itself writes are
    allowed."""
    files: dict[str, Entry] = {}
    refused: list[Refusal] = []
    expected = frozenset(first)
    path_bytes, most_path_bytes = 0, PATH_BYTES * most // MOST_FILES
    for entry in (*_named(root, first), *_bounded(root, refused)):
        if entry.path in files or _UNFINISHED.fullmatch(entry.path):
            continue  # of the latter: what was being written when its rank ended
        reason = _refusal(entry, expected, with_ours=with_ours)
        if reason is None and not stat.S_ISDIR(entry.status.st_mode):
            path_bytes += len(json.dumps(entry.path))
            if len(files) == most or path_bytes > most_path_bytes:
                reason = f"one too many: {most} files with paths of {most_path_bytes} bytes together are pushed"
            else:
                reason = _content_refusal(root, entry.path)
            if reason is None:
                files[entry.path] = entry
        if reason is not None:
            refused.append(refusal(entry.path, reason))
    return Listing(files=tuple(sorted(files.values(), key=lambda entry: entry.path)), refused=tuple(refused))


def refusal(path: str, reason: str) -> Refusal:
    """In ASCII: the name may be anything."""
    return {"path": ascii(path)[1:-1], "reason": reason}


def refused_text(refused: Iterable[Refusal]) -> bytes:
    """The file that names them, a line each; of very many the first."""
    ordered = sorted(refused, key=lambda entry: entry["path"])
    shown = ordered[:MOST_REFUSED]
    if more := and_more(len(ordered), len(shown)):
        shown.append({"path": "", "reason": more})
    return "".join(json.dumps(entry, sort_keys=True) + "\n" for entry in shown).encode()


def _named(root: int, names: Sequence[str]) -> Iterator[Entry]:
    for name in names:
        try:
            yield Entry(name, os.stat(name, dir_fd=root, follow_symlinks=False))
        except OSError:
            continue  # it is not there, or the listing of all tells why it cannot be looked at


def _bounded(root: int, refused: list[Refusal]) -> Iterator[Entry]:
    def closed(path: str, error: OSError) -> None:
        if len(refused) < MOST_LOOKED_AT:
            refused.append(refusal(path or ".", f"{error.strerror}: it was not looked into"))

    for number, entry in enumerate(entries(root, MOST_LOOKED_AT + 1, closed)):
        if number == MOST_LOOKED_AT:
            refused.append(refusal(entry.path, f"more than {MOST_LOOKED_AT} names: from here on nothing was looked at"))
            return
        yield entry


def _refusal(entry: Entry, expected: Collection[str], *, with_ours: bool) -> str | None:
    """By name and status; None for a file to be pushed, and for a directory that is looked into."""
    if stat.S_ISDIR(entry.status.st_mode):
        return f"below {MOST_DEPTH} directories: not looked into" if entry.path.count("/") >= MOST_DEPTH else None
    kind = kind_of(entry.status)
    if kind is not None:
        return kind
    if not entry.path.isprintable():
        return "its name holds control characters or is not UTF-8"
    if not with_ours and _OURS.fullmatch(entry.path):
        return "Slipway itself writes a file of this name"
    if not with_ours and expected and entry.path not in expected and _EVENTS.fullmatch(entry.path):
        return "events of a rank that is not on this node"
    return None


def _content_refusal(root: int, path: str) -> str | None:
    """What speaks against the file when it is open; None: nothing. Copied, holes would become bytes: terabytes from a file of no room."""
    try:
        descriptor = open_regular(root, path)
    except OSError as error:
        return str(error.strerror)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            return f"of uid {status.st_uid}, not this user's"
        if status.st_size - status.st_blocks * 512 > HOLES_BYTES and _holes(descriptor, status.st_size) > HOLES_BYTES:
            return f"a file of {status.st_size} bytes with holes of more than {HOLES_BYTES}"
        return None
    finally:
        os.close(descriptor)


def _holes(descriptor: int, size: int) -> int:
    """Bytes of holes in the first `size` bytes. File systems that compress have few blocks, and no holes."""
    position = total = 0
    for _ in range(_MOST_HOLES):
        try:
            data = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            return total + size - position if error.errno == errno.ENXIO else 0  # no data after this; or it tells nothing of holes
        total += data - position
        position = os.lseek(descriptor, data, os.SEEK_HOLE)
        if total > HOLES_BYTES or position >= size:
            break
    return total
