"""Read and write the lists of samples between plan and shards: one JSON array per line, [label, name, size, mtime_ns, root, *at]."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from base.errors import DatasetError
from data_prep.hashing import hash_file
from data_prep.sources.types import Found


class Listed(NamedTuple):
    """A sample of a shard. `label` is the position of its class, `root` the number of the place it lies in."""

    label: int
    root: int
    found: Found


def line_of(found: Found, root: int) -> bytes:
    """Format a sample without its label, which is known only when all classes are."""
    return json.dumps([found.name, found.size, found.mtime_ns, root, *found.at], separators=(",", ":")).encode()


def with_label(line: bytes, label: int) -> bytes:
    """Add the label to the line of a sample."""
    return b"[%d,%b\n" % (label, line[1:])


def found_of(line: bytes, label: str = "") -> Found:
    """Parse a line without a label."""
    name, size, mtime_ns, _, *at = json.loads(line)
    return Found(name, label, size, mtime_ns, tuple(at))


def read_samples(path: Path, classes: Sequence[str], digest: str) -> Iterator[Listed]:
    """Read the samples of a shard's list. Raises DatasetError when it is missing, or its blake3 is not the planned `digest`."""
    try:
        if hash_file(path).blake3 != digest:
            raise DatasetError(f"{path} is damaged: it is not the list that was planned; remove {path.parent.parent} and build again")
        with path.open("rb") as lines:
            for line in lines:
                label, name, size, mtime_ns, root, *at = json.loads(line)
                yield Listed(label, root, Found(name, classes[label], size, mtime_ns, tuple(at)))
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}; remove {path.parent.parent} and build again") from error
