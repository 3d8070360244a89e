"""Read samples that are files inside one folder, unchanged since they were listed, and retry when storage fails."""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Self, TypeVar

from base.errors import DatasetError, StorageError
from base.system import STORAGE_FAILS
from data_prep.image_header import SNIFF_BYTES, sniff
from data_prep.sources.naming import has_image_suffix, printable, to_raw
from data_prep.sources.types import MAX_MEMBER_BYTES, BadSample, ListedSample

_Result = TypeVar("_Result")
_TRIES = 3
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def retried(what: str | Callable[[], str], function: Callable[[], _Result]) -> _Result:
    """Call `function` up to three times while storage fails. Raises StorageError then, which names `what`."""
    for attempt in range(1, _TRIES + 1):
        try:
            return function()
        except OSError as error:
            if error.errno not in STORAGE_FAILS:
                raise
            if attempt == _TRIES:
                name = what if isinstance(what, str) else what()
                raise StorageError(f"{name}: {error.strerror}, {_TRIES} times in a row; look after the storage, then run again") from error
    raise AssertionError("unreachable")


def watched(path: Path) -> tuple[str, int, int]:
    """Return path, size and time of a file that must not change until its dataset is built. Raises DatasetError."""
    try:
        status = path.stat()
    except OSError as error:
        raise DatasetError(f"{printable(str(path))} cannot be read: {error.strerror}; if it was moved, build the dataset afresh") from error
    return str(path), status.st_size, status.st_mtime_ns


def check_unchanged(files: Iterable[tuple[str, int, int]]) -> None:
    """Look at the files that `watched` returned. Raises DatasetError naming the first one that has changed since."""
    for path, size, mtime_ns in files:
        now = watched(Path(path))
        if now != (path, size, mtime_ns):
            raise DatasetError(
                f"{printable(path)} has changed since the source was listed: {now[1]} bytes, then {size}; "
                "leave the source alone while it is built, and build it afresh (`slipway dataset build --fresh`)"
            )


def sample_reason(name: str, size: int, head: Callable[[], bytes]) -> str | None:
    """Return why something cannot be a sample, as far as its size, its name, or else its first bytes show, or None."""
    if size == 0:
        return "zero bytes"
    if size > MAX_MEMBER_BYTES:
        return f"larger than {MAX_MEMBER_BYTES >> 20} MiB"
    return None if has_image_suffix(name) or sniff(head()) else "not an image of a listed format"


def file_reason(path: bytes, name: str, status: os.stat_result) -> str | None:
    """Return why the file `path`, with this name and status, cannot be a sample, or None. Raises OSError."""
    return sample_reason(name, status.st_size, lambda: _peek(path)) if stat.S_ISREG(status.st_mode) else "not a regular file"


def _peek(path: bytes) -> bytes:
    descriptor = os.open(path, _FLAGS)
    try:
        return os.read(descriptor, SNIFF_BYTES)
    finally:
        os.close(descriptor)


def _is_link(path: bytes) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return False


class Inside:
    """A resolver of links below one folder that notices paths out of it, and remembers the folders it has seen."""

    def __init__(self, folder: Path) -> None:
        self.root = os.path.realpath(os.fsencode(folder))
        self._folders: dict[bytes, bytes] = {}

    def resolve(self, relative: bytes) -> bytes | None:
        """Resolve the links of a path relative to the folder. The result is None when it lies outside."""
        folder, name = os.path.split(os.path.join(self.root, relative))
        real = self._folders.get(folder)
        if real is None:
            real = self._folders[folder] = os.path.realpath(folder)
        path = os.path.join(real, name)
        if name in (b"..", b".", b"") or _is_link(path):
            path = os.path.realpath(path)
        prefix = self.root.rstrip(b"/") + b"/"
        return path[len(prefix) :] if path.startswith(prefix) else None


class FileReader:
    """A reader of samples that are files below `folder`: the path is `at[0]`, or the name."""

    def __init__(self, folder: Path) -> None:
        self.root = os.path.realpath(os.fsencode(folder))
        self._prefix = self.root.rstrip(b"/") + b"/"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def head(self, found: ListedSample, limit: int) -> bytes:
        return retried(lambda: self._shown(found), lambda: self._read(found, limit))

    def read(self, found: ListedSample) -> bytes:
        return retried(lambda: self._shown(found), lambda: self._read(found, found.size))

    def _shown(self, found: ListedSample) -> str:
        return printable(os.fsdecode(self.root) + "/" + found.name)

    def _read(self, found: ListedSample, limit: int) -> bytes:
        """Read with as few system calls as can be: what the file is, and whether it changed, is looked at once, after it was read."""
        try:
            descriptor = os.open(self._prefix + to_raw(str(found.at[0]) if found.at else found.name), _FLAGS)
        except PermissionError as error:
            raise BadSample("not readable: permission denied") from error
        except OSError as error:
            if error.errno in STORAGE_FAILS:
                raise
            raise self._changed(found, error.strerror or str(error)) from error
        size = min(limit, found.size)
        try:
            content = _pread(descriptor, 0, size)
            status = os.fstat(descriptor)
        except OSError as error:
            if error.errno in STORAGE_FAILS:
                raise
            no_file = error.errno == errno.ESPIPE
            raise self._changed(found, "it is not a regular file any more" if no_file else error.strerror or str(error)) from error
        finally:
            os.close(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise self._changed(found, "it is not a regular file any more")
        if status.st_size != found.size or status.st_mtime_ns != found.mtime_ns:
            raise self._changed(found, f"size or time differ: {status.st_size} bytes, then {found.size}")
        if len(content) != size:
            raise self._changed(found, f"{len(content)} bytes could be read, not {found.size}")
        return content

    def _changed(self, found: ListedSample, reason: str) -> DatasetError:
        return DatasetError(
            f"{self._shown(found)} has changed since the source was listed ({reason}); "
            "leave the source alone while it is built, and build it afresh (`slipway dataset build --fresh`)"
        )


# Read samples inside large files by offset, while the files are unchanged since they were listed.


class OpenFiles:
    """A set of files by number, opened when first used, closed together."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._descriptors: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def size(self, number: int = 0) -> int:
        return os.fstat(self._open(number)).st_size

    def read_at(self, offset: int, size: int, number: int = 0) -> bytes:
        """Read `size` bytes at `offset`, fewer only at the end of the file. Raises StorageError after three tries."""
        return retried(str(self.paths[number]), lambda: _pread(self._open(number), offset, size))

    def read_exactly(self, offset: int, size: int, number: int = 0) -> bytes:
        """Read `size` bytes at `offset`. Raises DatasetError when the file ends before."""
        content = self.read_at(offset, size, number)
        if len(content) != size:
            raise DatasetError(
                f"{self.paths[number]} ends before byte {offset + size}: it has changed since it was listed; build it afresh"
            )
        return content

    def _open(self, number: int) -> int:
        descriptor = self._descriptors.get(number)
        if descriptor is None:
            path = self.paths[number]
            try:
                descriptor = self._descriptors[number] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise DatasetError(f"{path} cannot be read: {error.strerror}; if it was moved, build the dataset afresh") from error
        return descriptor


class OffsetReader:
    """A reader of samples that lie in files at known places. Its files are open inside its `with`."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.files = OpenFiles(paths)

    def head(self, found: ListedSample, limit: int) -> bytes:
        """Read the first bytes of a sample whose `at` begins with its file and the offset there."""
        return self.files.read_exactly(int(found.at[1]), min(limit, found.size), int(found.at[0]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.files.__exit__(*error)


def _pread(descriptor: int, offset: int, size: int) -> bytes:
    content = os.pread(descriptor, size, offset)
    while len(content) < size and (part := os.pread(descriptor, size - len(content), offset + len(content))):
        content += part
    return content
