"""Read and write the manifest of a tree: its files, with the hash of every chunk. Its own digest is the dataset's name.

Like that of images it holds no place, time or permissions, so that the same files have the same digest anywhere. The place of the tree on
storage is in `place.json` beside it, which may change.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from base.errors import DatasetError
from base.jsonfile import parse_json, read_content
from base.typed import Count, Name, PathText, read_as
from data_prep.hashing import ChunkedFile, require
from data_prep.manifest import AGAIN, MAX_BYTES
from data_prep.sources.naming import printable, to_raw

# Names


MAX_NAME_BYTES: Final = 1000
"""The limit of the length of a path below the tree. The node's cache adds a path before it, and 4096 bytes are the limit of both."""
MAX_DEPTH: Final = 64
MAX_FILES: Final = 100_000
"""Each costs the storage and every node a millisecond or more (10,000 files of 4 KiB on an ext4 at work: 25 s): more are to be packed."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LOST: Final = re.compile(r"\.nfs[0-9a-f]{8,}")
SNAPSHOTS: Final = frozenset({".snapshot", ".snapshots", ".zfs", "lost+found"})


def name_fault(name: str) -> str | None:
    """Return what is wrong with a path below the tree, or None. The path is `to_text` of its bytes. It must be printable and short enough
    for every node."""
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if _CONTROL.search(name):
        return "its name holds a control character"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "its name is no path inside of the tree"
    if len(raw) > MAX_NAME_BYTES or any(len(part.encode()) > 255 for part in parts):
        return f"its path has more than {MAX_NAME_BYTES} bytes"
    return f"nested deeper than {MAX_DEPTH} directories" if len(parts) > MAX_DEPTH + 1 else None


def is_of_storage(name: str) -> bool:
    """Return True if an entry of this name belongs to the storage and is no data: snapshots, or what NFS keeps of a removed file."""
    return name in SNAPSHOTS or _LOST.fullmatch(name) is not None


def advice(command: str) -> str:
    """Advise what to do about a tree that has changed. `command` makes a dataset of it as it is now."""
    return f"put it back as it was, or have a dataset made of what is there now: `{command}`"


def advice_of(name: str) -> str:
    """Advise what to do about the changed tree of this dataset, where the study is not known."""
    return advice(f"slipway dataset build {name} --fresh")


SCHEMA: Final = "slipway.files/1"
LOCATION_SCHEMA: Final = "slipway.place/1"
LOCATION_NAME: Final = "place.json"
FOLDER: Final = "files"
"""The directory of the files in a staged copy. The manifest lies beside it, since a file of the tree may have the manifest's name."""


@dataclass(frozen=True, kw_only=True)
class TreeFile(ChunkedFile):
    """A file of the tree, which may be empty. `name` is its path below the tree."""

    bytes: Count

    def __post_init__(self) -> None:
        fault = name_fault(self.name)
        require(fault is None, f"{printable(self.name)}: {fault}")
        super().__post_init__()

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.name}"


@dataclass(frozen=True, kw_only=True)
class TreeManifest:
    """The content of `manifest.json`, with the files in the order of their names' bytes."""

    name: Name
    bytes: Count
    files: tuple[TreeFile, ...]
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        require(0 < len(self.files) <= MAX_FILES, f"it lists {len(self.files)} files, expected 1 to {MAX_FILES}")
        names = [file.name for file in self.files]
        require(names == sorted(set(names), key=to_raw), "its files are not in the order of their names, or one is listed twice")
        folders = {name[:at] for name in names for at in range(len(name)) if name[at] == "/"}
        require(folders.isdisjoint(names), "a file of it has the name of a directory of it")
        require(self.bytes == sum(file.bytes for file in self.files), "bytes is not the sum over the files")


@dataclass(frozen=True, kw_only=True)
class TreeLocation:
    """The place of a published tree's files on storage. `links` maps names that are links to their targets below `path`."""

    path: PathText
    links: Mapping[str, str] = field(default_factory=dict)
    schema: str = LOCATION_SCHEMA

    def __post_init__(self) -> None:
        require(self.schema == LOCATION_SCHEMA, f"schema {self.schema!r} is not {LOCATION_SCHEMA!r}: written by another version of Slipway")
        require(Path(self.path).is_absolute(), f"path: {self.path!r} is not absolute")
        wrong = [name for pair in self.links.items() for name in pair if name_fault(name)]
        require(not wrong, f"links: {printable(wrong[0]) if wrong else ''} is no path inside of the tree")

    def of(self, file: ChunkedFile) -> Path:
        return Path(self.path, self.links.get(file.name, file.name))


def read_location(root: Path) -> TreeLocation:
    """Read the place of the tree that is published in `root`. Raises DatasetError."""
    return parse_location(read_content(root / LOCATION_NAME, DatasetError, MAX_BYTES), str(root / LOCATION_NAME))


def parse_location(content: bytes, where: str) -> TreeLocation:
    """Parse the bytes of `place.json`. Raises DatasetError."""
    return read_as(TreeLocation, parse_json(content, where, DatasetError), f"{where} does not say where the files lie", DatasetError, AGAIN)
