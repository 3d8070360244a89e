"""Read and write files at offsets, bypassing the page cache where the file system allows it.

O_DIRECT wants buffers, offsets and sizes in multiples of the block: buffers come from mmap, chunks are multiples of 4096.
"""

import contextlib
import ctypes
import errno
import mmap
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

BLOCK: Final = 4096
HUGE_PAGE: Final = 2 << 20


def aligned_buffer(num_bytes: int) -> memoryview:
    """Allocate a buffer of at least `num_bytes` that O_DIRECT accepts.

    A large one lies in huge pages where the kernel has them. A request of 4 MiB then has 2 pieces of memory instead of 1,024: it is not
    split, and takes half the time. A forked child does not get it: a direct read into memory that a fork has shared may be lost.
    """
    size = rounded_up(num_bytes)
    if size < HUGE_PAGE:
        return memoryview(mmap.mmap(-1, size))
    memory = mmap.mmap(-1, size + HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_DONTFORK)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return whole_buffer(memoryview(memory))


def whole_buffer(buffer: memoryview) -> memoryview:
    """Return the whole of a buffer that `aligned_buffer` has made, given its front."""
    memory = buffer.obj
    assert isinstance(memory, mmap.mmap)
    if len(memory) <= HUGE_PAGE:
        return memoryview(memory)
    start = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % HUGE_PAGE
    return memoryview(memory)[start : start + len(memory) - HUGE_PAGE]


class Buffers:
    """A buffer for each thread that asks for one."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._of_thread = threading.local()

    def mine(self) -> memoryview:
        if not hasattr(self._of_thread, "buffer"):
            self._of_thread.buffer = aligned_buffer(self._num_bytes)
        buffer: memoryview = self._of_thread.buffer
        return buffer


def rounded_up(num_bytes: int) -> int:
    """Return the size rounded up to whole blocks, at least one."""
    return max(BLOCK, -(-num_bytes // BLOCK) * BLOCK)


def open_file(path: Path, flags: int, direct: bool) -> int:
    """Open a regular file, but no link. O_DIRECT is used if `direct` is true and the file system has it. Raises OSError."""
    flags |= os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags | os.O_DIRECT if direct else flags, 0o600)
    except OSError as error:
        if not direct or error.errno != errno.EINVAL:
            raise
        descriptor = os.open(path, flags, 0o600)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return descriptor


@contextlib.contextmanager
def opened(path: Path, flags: int, direct: bool) -> Iterator[int]:
    """Open a file as `open_file` does, and close it in the end."""
    descriptor = open_file(path, flags, direct)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def supports_direct_read(path: Path) -> bool:
    """Return True if this file can be read past the page cache. Some file systems open it with O_DIRECT and refuse to read."""
    return _is_direct(path, os.O_RDONLY, os.preadv)


def supports_direct_write(directory: Path) -> bool:
    """Return True if files in `directory` can be written past the page cache."""
    probe = directory / "direct.probe"
    try:
        return _is_direct(probe, os.O_WRONLY | os.O_CREAT, os.pwritev)
    finally:
        probe.unlink(missing_ok=True)


def _is_direct(path: Path, flags: int, use: Callable[[int, list[memoryview], int], int]) -> bool:
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_DIRECT, 0o600)
    except OSError:
        return False
    try:
        use(descriptor, [aligned_buffer(BLOCK)], 0)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def read_into(descriptor: int, buffer: memoryview, num_bytes: int, offset: int) -> int:
    """Read `num_bytes` from `offset`, less at the end of the file; returns how many. O_DIRECT may fill more of `buffer`, whole blocks."""
    filled = 0
    while filled < num_bytes:
        count = os.preadv(descriptor, [buffer[filled:]], offset + filled)
        if count == 0:
            break
        filled += count
    return min(filled, num_bytes)


def write_from(descriptor: int, buffer: memoryview, offset: int) -> None:
    """Write all of `buffer` at `offset`. Raises OSError."""
    done = 0
    while done < len(buffer):
        done += os.pwritev(descriptor, [buffer[done:]], offset + done)


def write_chunk(path: Path, content: memoryview, offset: int, direct: bool) -> None:
    """Write a chunk into a file; the end of a file that is no whole block goes through the page cache. Raises OSError."""
    whole = len(content) - len(content) % BLOCK if direct else len(content)
    if whole:
        with opened(path, os.O_WRONLY, direct) as descriptor:
            write_from(descriptor, content[:whole], offset)
    if whole < len(content):
        with opened(path, os.O_WRONLY, False) as descriptor:
            write_from(descriptor, content[whole:], offset + whole)


def sync(path: Path) -> None:
    """Flush a file to the disk. Raises OSError, also for an earlier write that failed and that nobody was told of."""
    with opened(path, os.O_WRONLY, False) as descriptor:
        os.fdatasync(descriptor)


def allocate(descriptor: int, num_bytes: int) -> None:
    """Reserve the file's room on the disk and give it its size. Raises OSError (ENOSPC) without room; the file may have grown then."""
    if os.fstat(descriptor).st_size > num_bytes:
        os.ftruncate(descriptor, num_bytes)
    try:
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
        os.ftruncate(descriptor, num_bytes)  # this file system cannot reserve
