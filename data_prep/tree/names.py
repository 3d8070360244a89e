"""Which names of files a tree may hold: a path below it, in printable text, that every node can have. Pure."""

from __future__ import annotations

import re
from typing import Final

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
