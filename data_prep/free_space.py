"""Ask the file system for free space, since a full disk shows as many different errors (LMDB says "Input/output error")."""

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

from base.errors import NotEnoughSpace, SlipwayError, StorageError
from base.humanize import format_size

RESERVE = 1 << 20
OWN_MEMORY = 32 << 30


def free_bytes(directory: Path) -> int:
    """Return the bytes that an ordinary user may still write below `directory`."""
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def free_inodes(directory: Path) -> int | None:
    """Return the files that may still be created, or None where the file system does not count them."""
    status = os.statvfs(directory)
    return status.f_favail if status.f_files else None


def not_enough_space(directory: Path, need: int, doing: str) -> NotEnoughSpace:
    """Make the error for `need` bytes that do not fit, with what is free and what to do."""
    inodes = free_inodes(directory)
    if inodes == 0:
        return NotEnoughSpace(f"{doing}: no inodes are left on the file system of {directory}, although bytes are; remove files there")
    found = f"{need} bytes ({format_size(need)}) are needed, {free_bytes(directory)} ({format_size(free_bytes(directory))}) are free"
    return NotEnoughSpace(f"{doing}: {found} in {directory}; remove something there, or use other storage, then run again")


def require_space(directory: Path, need: int, doing: str) -> None:
    """Check that `need` bytes can fit. Raises NotEnoughSpace."""
    if need > free_bytes(directory) or free_inodes(directory) == 0:
        raise not_enough_space(directory, need, doing)


def is_full(directory: Path, need: int) -> bool:
    """Return True if lack of room explains a failed write."""
    return free_bytes(directory) < max(need, RESERVE) or free_inodes(directory) == 0


@contextlib.contextmanager
def writing(directory: Path, need: int, doing: str) -> Iterator[None]:
    """Turn a failed write into the error for lack of space where the file system is full, whatever the kernel calls it."""
    try:
        yield
    except OSError as error:
        raise write_failed(directory, need, doing, error) from error


def write_failed(directory: Path, need: int, doing: str, error: Exception) -> SlipwayError:
    """Make the error for a failed write."""
    if is_full(directory, need):
        return not_enough_space(directory, max(need, RESERVE), doing)  # no value may be left to add, and the last ones not written
    return StorageError(f"{doing} in {directory} cannot be written: {error}; it is removed, and the same command makes it anew")


def limit_own_memory() -> int:
    """Limit this process's own memory to half of the machine's, at most OWN_MEMORY, and return the limit in bytes. Mapped files do not
    count; beyond the limit it gets MemoryError. An untrusted file must not be able to take the whole machine."""
    half = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize() // 2
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = min(OWN_MEMORY, half, *(bound for bound in (soft, hard) if bound != resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return limit


def limit_address_space(more: int) -> None:
    """Limit the address space of this process to `more` bytes beyond what it has: it gets MemoryError before the machine runs out."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + more if hard == resource.RLIM_INFINITY else min(used + more, hard), hard))
