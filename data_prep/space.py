"""Is there room? Asked of the file system itself, since a full disk shows as many different errors (LMDB says "Input/output error")."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from base.errors import NotEnoughSpace
from base.units import format_size

RESERVE = 1 << 20
OWN_MEMORY = 32 << 30


def free_bytes(directory: Path) -> int:
    """Bytes an ordinary user may still write below `directory`."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def free_inodes(directory: Path) -> int | None:
    """Files that may still be created; None where the file system does not count."""
    status = os.statvfs(directory)
    return status.f_favail if status.f_files else None


def not_enough_space(directory: Path, need: int, doing: str) -> NotEnoughSpace:
    """The error for `need` bytes that do not fit, with what is free and what to do."""
    inodes = free_inodes(directory)
    if inodes == 0:
        return NotEnoughSpace(f"{doing}: no inodes are left on the file system of {directory}, although bytes are; remove files there")
    found = f"{need} bytes ({format_size(need)}) are needed, {free_bytes(directory)} ({format_size(free_bytes(directory))}) are free"
    return NotEnoughSpace(f"{doing}: {found} in {directory}; remove something there, or use other storage, then run again")


def require_space(directory: Path, need: int, doing: str) -> None:
    """Raises NotEnoughSpace when `need` bytes cannot fit."""
    if need > free_bytes(directory) or free_inodes(directory) == 0:
        raise not_enough_space(directory, need, doing)


def is_full(directory: Path, need: int) -> bool:
    """After a failed write: whether lack of room explains it."""
    return free_bytes(directory) < max(need, RESERVE) or free_inodes(directory) == 0


def limit_own_memory() -> int:
    """This process may have half of the machine's memory, at most OWN_MEMORY, as memory of its own (mapped files do not count); beyond that
    it gets MemoryError. A foreign file must not be able to take the whole machine. Returns the limit in bytes."""
    half = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize() // 2
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = min(OWN_MEMORY, half, *(bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return limit


def limit_address_space(more: int) -> None:
    """This process may map `more` bytes besides what it has; beyond that it gets MemoryError, before the machine runs out."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more if hard == resource.RLIM_INFINITY else min(used + more, hard), hard))
