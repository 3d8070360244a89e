"""Disks for tests: a small file system of its own that can become full, or lose its power. Always unmounted, whatever the test does."""

import fcntl
import os
import shutil
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from data_prep.reader import die_with_parent

_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN
_NO_LOG_FLUSH = 2


@contextmanager
def tmpfs(place: Path, num_bytes: int, num_inodes: int = 0) -> Iterator[Path]:
    """A mounted tmpfs of `num_bytes`. Skips the test where nothing can be mounted."""
    place.mkdir()
    options = f"size={num_bytes}" + (f",nr_inodes={num_inodes}" if num_inodes else "")
    _mount(["-t", "tmpfs", "-o", options, "none", str(place)])
    try:
        yield place
    finally:
        _run(["umount", "-l", str(place)])


class Disk:
    """An ext4 in a file, on a loop device."""

    def __init__(self, image: Path, place: Path) -> None:
        self.image, self.place = image, place
        self._device: str | None = None

    def mount(self) -> None:
        """Of the file as it is now. From the second time on a copy of it: a mount namespace that was made meanwhile, for a node of a
        mini-cluster, has our mount too and keeps it, and to mount its device again is to get that file system, which has no power."""
        if self._device is not None:
            copy = self.image.with_name(f"{self.image.name}-next")
            _run(["cp", "--sparse=always", str(self.image), str(copy)])
            copy.replace(self.image)
            _run(["losetup", "--detach", self._device])
        found = subprocess.run(["losetup", "--find", "--show", str(self.image)], capture_output=True, text=True, check=False, timeout=30)
        if found.returncode:
            pytest.skip(f"no loop device can be had here: {found.stderr.strip()}")
        self._device = found.stdout.strip()
        _mount([self._device, str(self.place)])

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Whoever writes to it waits, uninterruptibly, as for a network storage that does not answer."""
        _run(["fsfreeze", "--freeze", str(self.place)])
        try:
            yield
        finally:
            _run(["fsfreeze", "--unfreeze", str(self.place)])

    def cut_power(self) -> None:
        """Everything that is not on the disk at this moment is lost, and nothing more gets there."""
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def unmount(self) -> None:
        _run(["umount", str(self.place)])

    def remove(self) -> None:
        """Unmounted, also where somebody is in it still."""
        if os.path.ismount(self.place):
            _run(["umount", "-l", str(self.place)])
        if self._device is not None:
            _run(["losetup", "--detach", self._device])


@contextmanager
def ext4(directory: Path, num_bytes: int = 64 << 20, name: str = "disk", num_inodes: int = 0) -> Iterator[Disk]:
    """A fresh ext4, mounted at `directory/name`. Skips the test where nothing can be mounted."""
    disk = Disk(directory / f"{name}.img", directory / name)
    disk.place.mkdir()
    with disk.image.open("wb") as file:
        file.truncate(num_bytes)
    _run(["mkfs.ext4", "-q", "-F", *(["-N", str(num_inodes)] if num_inodes else []), str(disk.image)])
    try:
        disk.mount()
        yield disk
    finally:
        disk.remove()


@contextmanager
def immutable(path: Path) -> Iterator[None]:
    """A file or directory that not even root can remove. Skips the test where there is no such attribute."""
    chattr = shutil.which("chattr", path="/usr/bin:/bin:/usr/sbin:/sbin")  # PATH may be the test's own
    if chattr is None or subprocess.run([chattr, "+i", path], capture_output=True, check=False).returncode:
        pytest.skip("chattr does not work here")
    try:
        yield
    finally:
        subprocess.run([chattr, "-i", path], check=True)


@contextmanager
def idle_process() -> Iterator[int]:
    """The pid of a child that does nothing until it is killed: at the end, or by the kernel with this process."""
    parent = os.getpid()

    def idle() -> None:
        die_with_parent(parent)
        while True:
            signal.pause()

    pid = in_child(idle)
    try:
        yield pid
    finally:
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0] == 0:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def in_child(function: Callable[[], object]) -> int:
    """Run `function` in a forked child; its pid. Exit code 0 when it returned, 1 when it raised."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            function()
            code = 0
        finally:
            os._exit(code)
    return pid


def exit_code(pid: int) -> int:
    """Wait for the child; negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _mount(arguments: list[str]) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False, timeout=30)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")


def _run(argv: list[str]) -> None:
    subprocess.run(argv, capture_output=True, text=True, check=True, timeout=30)
