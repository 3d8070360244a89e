"""The manifest of a tree: its files, with the hash of every chunk. Its own digest is the dataset's name.

Like that of images it says nothing of place, time or permissions, so that the same files have the same digest anywhere. Where the tree lies
is in `place.json` beside it, which may change.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from base.errors import DatasetError
from base.jsonfile import canonical_json, parse_json, read_content
from base.typed import Count, Name, PathText, read_as
from data_prep.hashing import ChunkedFile, require
from data_prep.manifest import AGAIN, MAX_BYTES, read_manifest_as, schema_in
from data_prep.sources.naming import printable, to_raw

# Which names of files a tree may hold: a path below it, in printable text, that every node can have. Pure.


MOST_NAME_BYTES: Final = 1000
"""Of a path below the tree: the cache of a node has some place before it, and 4096 bytes in all."""
MAX_DEPTH: Final = 64
MAX_FILES: Final = 100_000
"""Each costs the storage and every node a millisecond or more (10,000 files of 4 KiB on an ext4 at work: 25 s): more are to be packed."""
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LOST: Final = re.compile(r"\.nfs[0-9a-f]{8,}")
SNAPSHOTS: Final = frozenset({".snapshot", ".snapshots", ".zfs", "lost+found"})


def name_fault(name: str) -> str | None:
    """What is wrong with a path below the tree, `to_text` of its bytes; None: nothing."""
    try:
        raw = name.encode()
    except UnicodeEncodeError:
        return "its name is not UTF-8"
    if _CONTROL.search(name):
        return "its name holds a control character"
    parts = name.split("/")
    if any(part in ("", ".", "..") for part in parts):
        return "its name is no path inside of the tree"
    if len(raw) > MOST_NAME_BYTES or any(len(part.encode()) > 255 for part in parts):
        return f"its path has more than {MOST_NAME_BYTES} bytes"
    return f"nested deeper than {MAX_DEPTH} directories" if len(parts) > MAX_DEPTH + 1 else None


def is_of_storage(name: str) -> bool:
    """Whether an entry of this name is the storage's own, and no data: what NFS keeps of a removed file, a directory of snapshots."""
    return name in SNAPSHOTS or _LOST.fullmatch(name) is not None


def advice(command: str) -> str:
    """What to do about a tree that has changed. `command`: what makes a dataset of it as it is."""
    return f"put it back as it was, or have a dataset made of what is there now: `{command}`"


def advice_of(name: str) -> str:
    """The same for the dataset of that name, where the study is not known."""
    return advice(f"slipway dataset build {name} --fresh")


SCHEMA: Final = "slipway.files/1"
PLACE_SCHEMA: Final = "slipway.place/1"
PLACE_NAME: Final = "place.json"
FOLDER: Final = "files"
"""Of a staged copy: beside it lies the manifest, whose name a file of the tree may have too."""


@dataclass(frozen=True, kw_only=True)
class TreeFile(ChunkedFile):
    """A file of the tree; `name` is its path below it. It may be empty."""

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
    """Everything of `manifest.json`; files in the order of their names' bytes."""

    name: Name
    bytes: Count
    files: tuple[TreeFile, ...]
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        require(self.schema == SCHEMA, f"schema {self.schema!r} is not {SCHEMA!r}: written by another version of Slipway")
        require(0 < len(self.files) <= MAX_FILES, f"it lists {len(self.files)} files, expected 1 to {MAX_FILES}")
        names = [file.name for file in self.files]
        require(names == sorted(set(names), key=to_raw), "its files are not in the order of their names, or one is listed twice")
        folders = {name[:at] for name in names for at in range(len(name)) if name[at] == "/"}
        require(folders.isdisjoint(names), "a file of it has the name of a directory of it")
        require(self.bytes == sum(file.bytes for file in self.files), "bytes is not the sum over the files")

    def to_json(self) -> dict[str, Any]:
        """The content of `manifest.json`."""
        return {**vars(self), "files": [vars(file) for file in self.files]}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the files of a published tree lie on storage. `links`: names that are links -> what they lead to, below `path`."""

    path: PathText
    links: Mapping[str, str] = field(default_factory=dict)
    schema: str = PLACE_SCHEMA

    def __post_init__(self) -> None:
        require(self.schema == PLACE_SCHEMA, f"schema {self.schema!r} is not {PLACE_SCHEMA!r}: written by another version of Slipway")
        require(Path(self.path).is_absolute(), f"path: {self.path!r} is not absolute")
        wrong = [name for pair in self.links.items() for name in pair if name_fault(name)]
        require(not wrong, f"links: {printable(wrong[0]) if wrong else ''} is no path inside of the tree")

    def of(self, file: ChunkedFile) -> Path:
        """Where that file is to be read."""
        return Path(self.path, self.links.get(file.name, file.name))


def to_bytes(manifest: TreeManifest) -> bytes:
    """The bytes of `manifest.json`, a newline at the end."""
    return canonical_json(manifest.to_json()) + b"\n"


def read_tree_manifest(root: Path) -> TreeManifest:
    """The manifest in the directory `root`. Raises DatasetError."""
    return read_manifest_as(TreeManifest, root)


def is_tree(root: Path) -> bool:
    """Whether the dataset in `root` is a tree of files. Raises DatasetError where it has no manifest."""
    return bool(schema_in(root) == SCHEMA)


def read_place(root: Path) -> Place:
    """Where the files of the tree that is published in `root` lie. Raises DatasetError."""
    return parse_place(read_content(root / PLACE_NAME, DatasetError, MAX_BYTES), str(root / PLACE_NAME))


def parse_place(content: bytes, where: str) -> Place:
    """From the bytes of `place.json`. Raises DatasetError."""
    return read_as(Place, parse_json(content, where, DatasetError), f"{where} does not say where the files lie", DatasetError, AGAIN)
