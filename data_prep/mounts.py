"""Find the file system on which a path lies, by /proc/self/mountinfo."""

import re
from collections.abc import Sequence
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
    """A line of mountinfo. `root` is the directory of the file system that appears at `point`; `source` is the device or server."""

    point: str
    root: str
    type: str
    source: str
    device: str
    options: tuple[str, ...]

    @property
    def kind(self) -> str:
        """Return `network`, `local`, `memory`, or `other`: an overlay or an unknown type."""
        if self.type in NETWORK or (self.type.startswith("fuse.") and not self.type.startswith(("fuse.overlay", "fuse.fuse-overlay"))):
            return "network"
        if self.type in LOCAL or (self.type == "fuseblk" and self.source.startswith("/dev/")):
            return "local"
        return "memory" if self.type in MEMORY else "other"

    def describe(self) -> str:
        """Describe the mount, such as `nfs4 from server:/export at /nfs`."""
        return f"{self.type} from {self.source} at {self.point}"

    def option(self, name: str) -> str | None:
        """Return the value of `name=value`, the empty text for an option without a value, or None where it is absent."""
        for option in self.options:
            key, _, value = option.partition("=")
            if key == name:
                return value
        return None


def parse_mountinfo(text: str) -> tuple[Mount, ...]:
    """Parse all mounts in their order. Unreadable lines are left out."""
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
    """Find the mount of `path` (absolute, without links): the longest point above it, the last one where several are equal."""
    above = [mount for mount in mounts if path == mount.point or path.startswith(mount.point.rstrip("/") + "/")]
    return max(enumerate(above), key=lambda pair: (len(pair[1].point), pair[0]), default=(0, None))[1]


def read_mounts() -> tuple[Mount, ...]:
    """Read the mounts that this process sees."""
    return parse_mountinfo(MOUNTINFO.read_text(errors="replace"))


def nearest_mount(path: Path) -> tuple[Path, Mount | None]:
    """Find the nearest existing directory above `path`, without links, and its mount. It asks the file system and may hang."""
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    existing = existing.resolve()
    return existing, mount_of(read_mounts(), str(existing))


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
