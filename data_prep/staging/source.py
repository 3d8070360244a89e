"""The dataset on network storage: a manifest that is what the directory's name promises, and files that are read with some patience.

Attribute caches show new files late, and handles go stale when a server fails over: what is missing is looked for again for a while, a
failed read is tried once more with a fresh handle.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from pathlib import Path

from base.errors import DigestMismatch, StagingError, StorageError
from data_prep.cache.layout import dataset_name
from data_prep.manifest import FILE_NAME, MAX_BYTES, Manifest, digest_of, parse_manifest
from data_prep.staging.files import open_file, read_into

_AGAIN = (errno.ESTALE, errno.EIO, errno.EREMOTEIO, errno.ETIMEDOUT)


class Source:
    """A dataset to copy from: its manifest as bytes, digest and value."""

    def __init__(self, root: Path, patience_s: float) -> None:
        """Read and check the manifest. Raises StagingError when there is none, DigestMismatch when it is not the one of the name."""
        self.root = root
        self.name = dataset_name(root)
        self.patience_s = patience_s
        path = root / FILE_NAME
        with contextlib.closing(SourceFile(path, direct=False, patience_s=patience_s)) as file:
            if file.bytes > MAX_BYTES:
                raise DigestMismatch(f"{path} has {file.bytes} bytes: this is not a manifest")
            self.content = file.read_all()
        self.digest = digest_of(self.content)
        if not self.name.endswith(f"-{self.digest[:12]}"):
            raise DigestMismatch(
                f"{path} has the digest {self.digest[:12]}, the directory's name promises {self.name[-12:]}: it was changed after it was "
                "published; remove that directory and build the dataset again"
            )
        self.manifest: Manifest = parse_manifest(self.content, str(path))


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
            if error.errno not in _AGAIN:
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
                    raise StagingError(
                        f"{self.path} does not exist (looked for {patience_s:g} s): is the dataset built and published?"
                    ) from error
            except OSError as error:
                if error.errno not in _AGAIN or time.monotonic() >= until:
                    raise StorageError(f"{self.path} cannot be opened: {error.strerror}") from error
            with contextlib.suppress(OSError):
                os.listdir(self.path.parent)
            time.sleep(pause)
            pause = min(2 * pause, 2.0)
