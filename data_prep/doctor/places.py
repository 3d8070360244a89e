"""Where storage and cache could be, by looking: the variables that sites set, network mounts, local disks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from data_prep.doctor.mounts import Mount, mount_of, read_mounts, writable

VARIABLES: Final = ("SCRATCH", "WORK", "PROJECT", "WORKDIR", "GROUP_SCRATCH")
USUAL: Final = (
    *("/local/scratch", "/local", "/scratch/local", "/localscratch", "/lscratch", "/nvme", "/nvme0", "/mnt/nvme", "/mnt/nvme0", "/ssd"),
    *("/mnt/ssd", "/mnt/local", "/data/local", "/raid", "/disk/scratch", "/var/scratch"),
)
"""Where sites mount the local disk of a compute node."""
SYSTEM: Final = ("/", "/boot", "/usr", "/var", "/home", "/root", "/tmp", "/run", "/dev", "/etc", "/sys", "/proc", "/opt")


def shared_places(environ: Mapping[str, str]) -> list[tuple[Path, str]]:
    """Directories of network storage that we may write, best first, each with where it comes from. It may hang."""
    mounts = read_mounts()
    found = [
        (Path(environ[name]), f"${name}")
        for name in VARIABLES
        if environ.get(name, "").startswith("/") and os.access(environ[name], os.W_OK | os.X_OK)
    ]
    home = environ.get("HOME", "")
    for mount in writable(mount for mount in mounts if mount.kind == "network"):
        if mount.point != home and not home.startswith(f"{mount.point}/"):
            found.append((Path(mount.point), f"{mount.type} from {mount.source}, and writable"))
    own = mount_of(mounts, os.path.realpath(home)) if home else None
    if own is not None and own.kind == "network" and os.access(home, os.W_OK):
        found.append((Path(home), f"your home, {own.type} from {own.source}"))
    return found


def local_places() -> list[Path]:
    """Directories on local disks that we may write, best first."""
    mounts = read_mounts()
    usual = [Path(name) for name in USUAL if os.path.isdir(name) and os.access(name, os.W_OK | os.X_OK)]
    chosen = [path for path in usual if _is_local(mounts, path)]
    others = [Path(mount.point) for mount in writable(mounts) if mount.kind == "local" and os.path.isdir(mount.point)]
    return list(dict.fromkeys([*chosen, *(path for path in others if not _is_system(path))]))


def _is_local(mounts: Sequence[Mount], path: Path) -> bool:
    mount = mount_of(mounts, os.path.realpath(path))
    return mount is not None and mount.kind == "local"


def _is_system(path: Path) -> bool:
    return str(path) in SYSTEM or path.is_relative_to("/run") or path.is_relative_to("/etc") or path.is_relative_to("/tmp")  # noqa: S108
