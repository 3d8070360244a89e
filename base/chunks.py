"""Name and make the chunk list of a single file, which lies beside it and holds the hashes of its chunks, for writers and for copies."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

SCHEMA: Final = "slipway.chunks/1"
"""The form of the list: {"schema", "name", "bytes", "chunk_bytes", "chunks": xxh3_128 of each, hex}."""
CHUNK_BYTES: Final = 4 << 20


def chunks_name(name: str) -> str:
    """Return the name of the chunk list of a file with this name."""
    return f"{name}.chunks.json"


def chunks_path(file: Path) -> Path:
    """Return the path of a file's chunk list."""
    return file.with_name(chunks_name(file.name))


class Hash(Protocol):
    """A hash object with the methods of hashlib's."""

    def update(self, data: Any, /) -> object:
        """Take more bytes."""

    def hexdigest(self) -> str:
        """Return the hash in hex."""


class ChunkHasher:
    """The hashes of what it is given, in pieces of any size: `whole`, which names it, and one of each chunk."""

    def __init__(self, whole: Hash, of_chunk: Callable[[], Hash], chunk_bytes: int = CHUNK_BYTES) -> None:
        self.bytes = 0
        self._whole, self._of_chunk, self._chunk_bytes = whole, of_chunk, chunk_bytes
        self._chunk = of_chunk()
        self._chunks: list[str] = []

    def update(self, piece: Any) -> None:
        self._whole.update(piece)
        rest = memoryview(piece)
        while rest:
            some = rest[: self._chunk_bytes - self.bytes % self._chunk_bytes]
            self._chunk.update(some)
            self.bytes += len(some)
            rest = rest[len(some) :]
            if self.bytes % self._chunk_bytes == 0:
                self._chunks.append(self._chunk.hexdigest())
                self._chunk = self._of_chunk()

    def hexdigest(self) -> str:
        return self._whole.hexdigest()

    @property
    def chunks(self) -> tuple[str, ...]:
        """Return the hash of each chunk in hex; the last chunk may be shorter than the others."""
        return (*self._chunks, self._chunk.hexdigest()) if self.bytes % self._chunk_bytes else tuple(self._chunks)

    def chunk_list(self, name: str) -> dict[str, object]:
        return {"schema": SCHEMA, "name": name, "bytes": self.bytes, "chunk_bytes": self._chunk_bytes, "chunks": self.chunks}
