"""Which file system a path lies on, by /proc/self/mountinfo."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MOUNTINFO: Final = Path("/proc/self/mountinfo")
NETWORK: Final = frozenset(
    ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "cifs", "smb3", "smbfs", "afs", "9p", "virtiofs", "pvfs2", "orangefs", "panfs")
    + ("wekafs", "glusterfs", "ocfs2", "gfs2", "acfs", "daos", "dvs")
)
LOCAL: Final = frozenset(("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "reiserfs", "bcachefs"))
MEMORY: Final = frozenset(("tmpfs", "ramfs", "rootfs"))
_ESCAPE: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, kw_only=True)
class Mount:
    """One line of mountinfo. `root`: the directory of the file system that appears at `point`; `source`: device or server."""

    point: str
    root: str
    type: str
    source: str
    device: str
    options: tuple[str, ...]

    @property
    def kind(self) -> str:
        """`network`, `local`, `memory`, or `other`: an overlay, or a type we do not know."""
        if self.type in NETWORK or (self.type.startswith("fuse.") and not self.type.startswith(("fuse.overlay", "fuse.fuse-overlay"))):
            return "network"
        if self.type in LOCAL or (self.type == "fuseblk" and self.source.startswith("/dev/")):
            return "local"
        return "memory" if self.type in MEMORY else "other"

    def describe(self) -> str:
        """Such as `nfs4 from server:/export at /nfs`."""
        return f"{self.type} from {self.source} at {self.point}"

    def option(self, name: str) -> str | None:
        """The value of `name=value`; the empty text where it is a word of its own; None where it is not there."""
        for option in self.options:
            key, _, value = option.partition("=")
            if key == name:
                return value
        return None


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """All mounts in their order; a line that cannot be read is left out."""
    found = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        left, right = before.split(), after.split()
        if dash and len(left) >= 6 and len(right) >= 2:
            found.append(
                Mount(
                    device=left[2],
                    root=_plain(left[3]),
                    point=_plain(left[4]),
                    type=right[0],
                    source=_plain(right[1]),
                    options=tuple(dict.fromkeys([*left[5].split(","), *(right[2].split(",") if len(right) > 2 else ())])),
                )
            )
    return tuple(found)


def mount_of(mounts: Sequence[Mount], path: str) -> Mount | None:
    """The mount that `path` (absolute, without links) lies on: the longest point above it, the last one where several are the same."""
    above = [mount for mount in mounts if path == mount.point or path.startswith(mount.point.rstrip("/") + "/")]
    return max(enumerate(above), key=lambda pair: (len(pair[1].point), pair[0]), default=(0, None))[1]


def read_mounts() -> tuple[Mount, ...]:
    """The mounts that this process sees."""
    return parse_mountinfo(MOUNTINFO.read_text(errors="replace"))


def place_of(path: Path) -> tuple[Path, Mount | None]:
    """The nearest directory above `path` that exists, without links, and its mount. Touches the file system: it may hang."""
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    existing = existing.resolve()
    return existing, mount_of(read_mounts(), str(existing))


def writable(mounts: Iterable[Mount]) -> list[Mount]:
    """Those that are not mounted read-only and that we may write."""
    return [mount for mount in mounts if "rw" in mount.options and os.access(mount.point, os.W_OK | os.X_OK)]


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
