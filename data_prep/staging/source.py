"""What is copied from network storage: a dataset or a single file, whose manifest says what every chunk of it is; read with some patience.

Attribute caches show new files late, and handles go stale when a server fails over: what is missing is looked for again for a while, a
failed read is tried once more with a fresh handle.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from base.chunks import chunks_path
from base.errors import DigestMismatch, StagingError, StorageError
from base.refusals import STORAGE_FAILS
from data_prep.cache.layout import dataset_name
from data_prep.file_set import FileSet, parse_chunk_list, parse_file_set
from data_prep.hashing import ChunkedFile
from data_prep.manifest import FILE_NAME, MAX_BYTES
from data_prep.staging.files import open_file, read_into
from data_prep.tree.manifest import PLACE_NAME, Place, parse_place
from data_prep.tree.names import advice_of

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Files below `root`. `name`: of their directory in a cache; `advice`: what people are told to do where a file is damaged."""

    root: Path
    name: str
    file_set: FileSet
    patience_s: float
    advice: str
    place: Place | None = None
    """Of a tree of files: where it lies."""

    def path_of(self, file: ChunkedFile) -> Path:
        """Where that file is to be read."""
        return self.root / file.path if self.place is None else self.place.of(file)


def open_dataset(root: Path, patience_s: float) -> Source:
    """The dataset in the directory `root`. Raises StagingError where it has no manifest, DigestMismatch for one that is not that of the
    directory's name."""
    name, path = dataset_name(root), root / FILE_NAME
    file_set = _read(path, patience_s, parse_file_set)
    if file_set.kind != "dataset":
        raise StagingError(f"{path} lists the chunks of a single file: this is not a dataset")
    if not name.endswith(f"-{file_set.digest[:12]}"):
        raise DigestMismatch(
            f"{path} has the digest {file_set.digest[:12]}, the directory's name promises {name[-12:]}: it was changed after it was "
            "published; remove that directory and build the dataset again"
        )
    if file_set.in_place:
        place = _read(root / PLACE_NAME, patience_s, parse_place)
        if not Path(place.path).is_dir():
            raise StagingError(f"{place.path}, where the files of {name} lie, is not there, or is no directory; {advice_of(name[:-13])}")
        advice = f"the tree {place.path} is not what it was when it was hashed: {advice_of(name[:-13])}"
        return Source(root=root, name=name, file_set=file_set, patience_s=patience_s, advice=advice, place=place)
    advice = f"`slipway dataset verify {root}` lists all that is wrong, then build the dataset again"
    return Source(root=root, name=name, file_set=file_set, patience_s=patience_s, advice=advice)


def open_single(file: Path, patience_s: float, num_bytes: int | None = None) -> Source:
    """The file `file`, beside which the hashes of its chunks lie. `num_bytes`: how long it must be, where that is known from elsewhere, so
    that a list which somebody has exchanged takes no other room. Raises StagingError where there are no hashes."""
    path = chunks_path(file)
    file_set = _read(path, patience_s, parse_chunk_list)
    if [member.path for member in file_set.files] != [file.name]:
        raise DigestMismatch(f"{path} speaks of {file_set.files[0].name!r}, asked was {file.name!r}; remove both, and make the file again")
    if num_bytes is not None and file_set.bytes != num_bytes:
        raise DigestMismatch(f"{path} speaks of {file_set.bytes} bytes, and {file.name} has {num_bytes}: the list was changed")
    name = dataset_name(Path(f"{file.name}-{file_set.digest[:12]}"))
    advice = f"it was cut or changed on storage; remove it and {path.name}, and make it again"
    return Source(root=file.parent, name=name, file_set=file_set, patience_s=patience_s, advice=advice)


def _read(path: Path, patience_s: float, parse: Callable[[bytes, str], T]) -> T:
    with contextlib.closing(SourceFile(path, direct=False, patience_s=patience_s)) as file:
        if file.bytes > MAX_BYTES:
            raise DigestMismatch(f"{path} has {file.bytes} bytes: this is not a manifest")
        return parse(file.read_all(), str(path))


class SourceFile:
    """One file on storage, open for reading by several threads at given offsets."""

    def __init__(self, path: Path, *, direct: bool, patience_s: float) -> None:
        self.path = path
        self._direct = direct
        self._descriptor = self._patiently(lambda: open_file(path, os.O_RDONLY, direct), patience_s)
        self.bytes = os.fstat(self._descriptor).st_size

    def close(self) -> None:
        os.close(self._descriptor)

    def read(self, buffer: memoryview, num_bytes: int, offset: int) -> int:
        """Read `num_bytes` from `offset`, less only at the end of the file. Raises StorageError if it fails twice."""
        try:
            return read_into(self._descriptor, buffer, num_bytes, offset)
        except OSError as error:
            if error.errno not in STORAGE_FAILS:
                raise self._failed(error) from error
        try:
            fresh = open_file(self.path, os.O_RDONLY, self._direct)
            try:
                return read_into(fresh, buffer, num_bytes, offset)
            finally:
                os.close(fresh)
        except OSError as error:
            raise self._failed(error) from error

    def read_all(self) -> bytes:
        """The whole file, one that fits into memory."""
        buffer = bytearray(self.bytes)
        count = self.read(memoryview(buffer), self.bytes, 0)
        return bytes(buffer[:count])

    def forget(self, offset: int, num_bytes: int) -> None:
        """Drop these bytes from this machine's page cache: what is read again then comes from storage."""
        os.posix_fadvise(self._descriptor, offset, num_bytes, os.POSIX_FADV_DONTNEED)

    def _failed(self, error: OSError) -> StorageError:
        return StorageError(f"{self.path} cannot be read: {error.strerror} (twice); ask the storage's people, or try again later")

    def _patiently(self, function: Callable[[], int], patience_s: float) -> int:
        """Call `function` until the file is there, at most `patience_s`. Listing the directory makes NFS look again."""
        until, pause = time.monotonic() + patience_s, 0.05
        while True:
            try:
                return function()
            except FileNotFoundError as error:
                if time.monotonic() >= until:
                    raise StagingError(f"{self.path} does not exist (looked for {patience_s:g} s): was it made and published?") from error
            except OSError as error:
                if error.errno not in STORAGE_FAILS or time.monotonic() >= until:
                    raise StorageError(f"{self.path} cannot be opened: {error.strerror}") from error
            with contextlib.suppress(OSError):
                os.listdir(self.path.parent)
            time.sleep(pause)
            pause = min(2 * pause, 2.0)
