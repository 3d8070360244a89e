"""What every source of images offers: it lists samples, and reads one of them later, perhaps in another process on another machine.

A source is a module with the functions of `Source`, listed in `data_prep.sources.SOURCES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

MAX_MEMBER_BYTES = 256 << 20
MAX_MEMBERS = 10**8


class BadSample(Exception):
    """One sample cannot be used; the message is the reason in the manifest. The rest of the source is not concerned."""


class Found(NamedTuple):
    """One sample: where it lies and what it is."""

    name: str  # unique in its split; undecodable bytes as surrogates, see naming.printable
    label: str  # the class's name, printable
    size: int  # bytes stored
    mtime_ns: int = 0  # of its own file; 0 where it lies in a file with others
    at: tuple[int | str, ...] = ()  # where the reader finds it, if the name does not say it
    split: str | None = None  # the source's own split, if it has any


class Refused(NamedTuple):
    """An entry that is no usable sample, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Root:
    """One place to take samples from. `whole` is the split all of it belongs to, for a split with a path of its own."""

    path: Path
    scratch: Path  # where unpacked files may be kept until the dataset is finished
    whole: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of the kind


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a source found out once, before listing: the files that hold its samples (watched for change) and JSON-able facts."""

    files: tuple[Path, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


class Reader(Protocol):
    """Reads samples. Both raise BadSample for this sample, DatasetError where the source is not what was listed."""

    def head(self, found: Found, limit: int) -> bytes:
        """The first `limit` bytes as stored, for the content hash."""

    def read(self, found: Found) -> bytes | Pixels:
        """An image file's bytes, or pixels (H, W) or (H, W, C), RGB."""


class Source(Protocol):
    """A kind of source, as a module of functions."""

    def prepare(self, root: Root) -> Prepared:
        """Look at the source as a whole; unpack what cannot be read in place. Raises DatasetError."""

    def scan(self, root: Root, prepared: Prepared) -> Iterator[Found | Refused]:
        """Every entry, in any order."""

    def open_reader(self, root: Root, prepared: Prepared) -> AbstractContextManager[Reader]:
        """A reader, also in a process that did not list."""

    def estimate(self, root: Root) -> int | None:
        """The number of samples, if it is known without listing. Raises nothing: None."""
