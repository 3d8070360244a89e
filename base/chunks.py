"""A single file and the list of its chunks' hashes beside it: what whoever writes the one and whoever copies the other have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Final

SCHEMA: Final = "slipway.chunks/1"
"""Of the list: {"schema", "name", "bytes", "chunk_bytes", "chunks": xxh3_128 of each, hex}."""
CHUNK_BYTES: Final = 4 << 20


def chunks_path(file: Path) -> Path:
    """Where the list lies."""
    return file.with_name(f"{file.name}.chunks.json")
