"""Reading one chunk from storage until it is what the manifest promises."""

from __future__ import annotations

import xxhash

from base.errors import DigestMismatch
from data_prep.hashing import ChunkedFile
from data_prep.staging.rate import Rate
from data_prep.staging.source import Source, SourceFile


def open_source(source: Source, shard: ChunkedFile, direct: bool) -> SourceFile:
    """The file on storage. Raises DigestMismatch when its size is not the manifest's."""
    file = SourceFile(source.root / shard.path, direct=direct, patience_s=source.patience_s)
    if file.bytes == shard.bytes:
        return file
    file.close()
    raise DigestMismatch(f"{file.path} has {file.bytes} bytes, its manifest says {shard.bytes}; {source.advice}")


class VerifiedReader:
    """Reads chunks, no faster than `rate`, each again up to `retries` times while its hash is wrong."""

    def __init__(self, source: Source, rate: Rate, retries: int) -> None:
        self._source, self._rate, self._retries = source, rate, retries

    def read(self, file: SourceFile, shard: ChunkedFile, chunk: int, buffer: memoryview) -> memoryview:
        """The chunk's bytes, in `buffer`. Raises DigestMismatch, StorageError."""
        offset = chunk * shard.chunk_bytes
        num_bytes = min(shard.chunk_bytes, shard.bytes - offset)
        for _ in range(1 + self._retries):
            self._rate.take(num_bytes)
            count = file.read(buffer, num_bytes, offset)
            found = xxhash.xxh3_128_hexdigest(buffer[:count])
            file.forget(offset, num_bytes)
            if found == shard.chunks[chunk]:
                return buffer[:num_bytes]
        raise DigestMismatch(
            f"{file.path}: chunk {chunk} of {len(shard.chunks)} (from byte {offset} on) has the hash {found}, "
            f"the manifest says {shard.chunks[chunk]}, also after {self._retries} more reads: the file on storage is "
            f"damaged; {self._source.advice}"
        )
