"""Reading samples that are files of their own: inside one folder, unchanged since they were listed, tried again when storage stumbles."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from base.errors import DatasetError, StorageError
from data_prep.sources.naming import printable, to_raw
from data_prep.sources.types import MAX_MEMBER_BYTES, BadSample, Found

_Result = TypeVar("_Result")
_TRIES = 3
_TRANSIENT = (errno.EIO, errno.ESTALE, errno.ETIMEDOUT)
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def retried(what: str, function: Callable[[], _Result]) -> _Result:
    """`function()`, again where storage answers EIO or ESTALE, three times in all. Raises StorageError then."""
    for attempt in range(1, _TRIES + 1):
        try:
            return function()
        except OSError as error:
            if error.errno not in _TRANSIENT:
                raise
            if attempt == _TRIES:
                raise StorageError(f"{what}: {error.strerror}, {_TRIES} times in a row; look after the storage, then run again") from error
    raise AssertionError("unreachable")


def entry_reason(status: os.stat_result) -> str | None:
    """Why a file cannot be a sample, as far as its status tells."""
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if status.st_size == 0:
        return "zero bytes"
    if status.st_size > MAX_MEMBER_BYTES:
        return f"larger than {MAX_MEMBER_BYTES >> 20} MiB"
    return None


def peek(path: bytes, count: int) -> bytes:
    """The first bytes of a file. Raises OSError."""
    descriptor = os.open(path, _FLAGS)
    try:
        return os.read(descriptor, count)
    finally:
        os.close(descriptor)


def _is_link(path: bytes) -> bool:
    try:
        return stat.S_ISLNK(os.lstat(path).st_mode)
    except OSError:
        return False


class Inside:
    """Resolves links below one folder and says when a path leaves it; remembers the folders it has seen."""

    def __init__(self, folder: Path) -> None:
        self.root = os.path.realpath(os.fsencode(folder))
        self._folders: dict[bytes, bytes] = {}

    def resolve(self, relative: bytes) -> bytes | None:
        """The path without links, relative to the folder; None when it lies outside."""
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
    """Samples as files below `folder`: the path is `at[0]`, or the name."""

    def __init__(self, folder: Path) -> None:
        self.root = os.path.realpath(os.fsencode(folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def head(self, found: Found, limit: int) -> bytes:
        """See Reader."""
        return retried(self._shown(found), lambda: self._read(found, limit))

    def read(self, found: Found) -> bytes:
        """See Reader."""
        return retried(self._shown(found), lambda: self._read(found, found.size))

    def _shown(self, found: Found) -> str:
        return printable(os.fsdecode(self.root) + "/" + found.name)

    def _read(self, found: Found, limit: int) -> bytes:
        path = os.path.join(self.root, to_raw(str(found.at[0]) if found.at else found.name))
        try:
            descriptor = os.open(path, _FLAGS)
        except PermissionError as error:
            raise BadSample("not readable: permission denied") from error
        except OSError as error:
            if error.errno in _TRANSIENT:
                raise
            raise self._changed(found, error.strerror or str(error)) from error
        try:
            self._check(found, os.fstat(descriptor))
            content = _read_all(descriptor, min(limit, found.size))
            self._check(found, os.fstat(descriptor))
        finally:
            os.close(descriptor)
        if len(content) != min(limit, found.size):
            raise self._changed(found, f"{len(content)} bytes could be read, not {found.size}")
        return content

    def _check(self, found: Found, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise self._changed(found, "it is not a regular file any more")
        if status.st_size != found.size or status.st_mtime_ns != found.mtime_ns:
            raise self._changed(found, f"size or time differ: {status.st_size} bytes, then {found.size}")

    def _changed(self, found: Found, reason: str) -> DatasetError:
        return DatasetError(
            f"{self._shown(found)} has changed since the source was listed ({reason}); "
            "leave the source alone while it is built, and build it afresh (`slipway dataset build --fresh`)"
        )


def _read_all(descriptor: int, size: int) -> bytes:
    content = os.read(descriptor, size)
    if len(content) == size:
        return content
    parts = [content]
    missing = size - len(content)
    while missing and (part := os.read(descriptor, missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
