"""Define what every source of images offers: it lists samples, and reads one of them later, perhaps in a process on another machine.

A source is a module with the functions of `Source`, listed in `data_prep.sources.SOURCES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Pixels: TypeAlias = "NDArray[np.uint8]"

MAX_MEMBER_BYTES = 256 << 20
MAX_MEMBERS = 10**8


class BadSample(Exception):
    """A sample that cannot be used. The message is its reason in the manifest; the rest of the source is not concerned."""


class ListedSample(NamedTuple):
    """A listed sample: its place and what it is."""

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
    """A place to take samples from. `whole` is the split all of it belongs to, for a split with a path of its own."""

    path: Path
    scratch: Path  # where unpacked files may be kept until the dataset is finished
    whole: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of the kind


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The facts that a source finds out once, before listing: the files that hold its samples (watched for change) and values for JSON."""

    files: tuple[Path, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


class Reader(Protocol):
    """A reader of samples. Both functions raise BadSample for this sample, DatasetError where the source is not what was listed."""

    def head(self, found: ListedSample, limit: int) -> bytes:
        """Return the first `limit` bytes as stored, for the content hash."""

    def read(self, found: ListedSample) -> bytes | Pixels:
        """Return an image file's bytes, or pixels (H, W) or (H, W, C), RGB."""


class Source(Protocol):
    """A kind of source, as a module of functions."""

    def prepare(self, root: Root) -> Prepared:
        """Look at the source as a whole; unpack what cannot be read in place. Raises DatasetError."""

    def scan(self, root: Root, prepared: Prepared) -> Iterator[ListedSample | Refused]:
        """List every entry, in any order."""

    def open_reader(self, root: Root, prepared: Prepared) -> AbstractContextManager[Reader]:
        """Open a reader, also in a process that did not list."""
