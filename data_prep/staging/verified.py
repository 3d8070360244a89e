"""Reading one chunk from storage until it is what the manifest promises."""

from __future__ import annotations

import xxhash

from base.errors import DigestMismatch, StagingError
from data_prep.hashing import ChunkedFile
from data_prep.staging.rate import Rate
from data_prep.staging.source import Source, SourceFile


def open_source(source: Source, file: ChunkedFile, direct: bool) -> SourceFile:
    """The file on storage, open. Raises DigestMismatch when its size is not the manifest's."""
    try:
        opened = SourceFile(source.path_of(file), direct=direct, patience_s=source.patience_s)
    except StagingError as error:
        raise StagingError(f"{error}; {source.advice}") from error
    if opened.bytes == file.bytes:
        return opened
    opened.close()
    raise DigestMismatch(f"{opened.path} has {opened.bytes} bytes, its manifest says {file.bytes}; {source.advice}")


class VerifiedReader:
    """Reads chunks, no faster than `rate`, each again up to `retries` times while its hash is wrong."""

    def __init__(self, source: Source, rate: Rate, retries: int) -> None:
        self._source, self._rate, self._retries = source, rate, retries

    def read(self, opened: SourceFile, file: ChunkedFile, chunk: int, buffer: memoryview) -> memoryview:
        """The chunk's bytes, in `buffer`. Raises DigestMismatch, StorageError."""
        offset = chunk * file.chunk_bytes
        num_bytes = min(file.chunk_bytes, file.bytes - offset)
        for _ in range(1 + self._retries):
            self._rate.take(num_bytes)
            count = opened.read(buffer, num_bytes, offset)
            found = xxhash.xxh3_128_hexdigest(buffer[:count])
            opened.forget(offset, num_bytes)
            if found == file.chunks[chunk]:
                return buffer[:num_bytes]
        raise DigestMismatch(
            f"{opened.path}: chunk {chunk} of {len(file.chunks)} (from byte {offset} on) has the hash {found}, "
            f"the manifest says {file.chunks[chunk]}, also after {self._retries} more reads: the file on storage is "
            f"damaged; {self._source.advice}"
        )
