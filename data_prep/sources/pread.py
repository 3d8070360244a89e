"""Read samples inside large files by offset, while the files are unchanged since they were listed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from base.errors import DatasetError
from data_prep.sources.files import retried
from data_prep.sources.types import Found


class OpenFiles:
    """A set of files by number, opened when first used, closed together."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        self._descriptors: dict[int, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._descriptors:
            os.close(self._descriptors.popitem()[1])

    def size(self, number: int = 0) -> int:
        """Return the length of the file. Raises DatasetError."""
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


class FileReader:
    """A reader of samples that lie in files at known places. Its files are open inside its `with`."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.files = OpenFiles(paths)

    def head(self, found: Found, limit: int) -> bytes:
        """Read the first bytes of a sample whose `at` begins with its file and the offset there."""
        return self.files.read_exactly(int(found.at[1]), min(limit, found.size), int(found.at[0]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.files.__exit__(kind, error, trace)


def _pread(descriptor: int, offset: int, size: int) -> bytes:
    content = os.pread(descriptor, size, offset)
    while len(content) < size and (part := os.pread(descriptor, size - len(content), offset + len(content))):
        content += part
    return content
