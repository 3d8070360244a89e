"""The receipt of a shard: what it holds, written after the shard itself is durable. A shard without one is made again."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from base.errors import DatasetError
from base.jsonfile import publish_json, read_json
from data_prep.build.statistics import PixelSums
from data_prep.fields import count, counts, size_or_none, text, texts
from data_prep.hashing import FileHashes

SCHEMA = "slipway.shard/1"


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """`key` is the plan's name for the content; `size` is (height, width) where all images have the same; None: they differ, or none."""

    key: str
    samples: int
    class_counts: tuple[int, ...]
    pixel_sums: PixelSums
    size: tuple[int, int] | None
    hashes: FileHashes
    rejected: tuple[Mapping[str, str], ...]
    rejected_count: int


def receipt_path(build_dir: Path, index: int) -> Path:
    """`shard-00000.json`."""
    return build_dir / f"shard-{index:05d}.json"


def shard_path(build_dir: Path, index: int) -> Path:
    """`shard-00000.lmdb`, a directory."""
    return build_dir / f"shard-{index:05d}.lmdb"


def not_older(path: Path, than: Path) -> None:
    """Give `path`, still right, the present time if it is older than `than`, which was made again: Snakemake would ask for it for ever."""
    if path.stat().st_mtime_ns < than.stat().st_mtime_ns:
        os.utime(path)


def write_receipt(build_dir: Path, index: int, receipt: Receipt) -> None:
    """Publish it."""
    publish_json(receipt_path(build_dir, index), {"schema": SCHEMA, "index": index, **asdict(receipt)})


def read_receipt(build_dir: Path, index: int, key: str) -> Receipt | None:
    """The receipt of shard `index`; None where there is no whole one of this plan and version."""
    try:
        plain = read_json(receipt_path(build_dir, index), DatasetError)
        return _from_json(plain) if plain["schema"] == SCHEMA and plain["key"] == key else None
    except (DatasetError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _from_json(plain: dict[str, Any]) -> Receipt:
    sums, hashes = plain["pixel_sums"], plain["hashes"]
    return Receipt(
        key=text(plain, "key"),
        samples=count(plain, "samples"),
        class_counts=counts(plain, "class_counts"),
        pixel_sums=PixelSums(pixels=int(sums["pixels"]), sums=tuple(sums["sums"]), squares=tuple(sums["squares"])),
        size=size_or_none(plain, "size"),
        hashes=FileHashes(
            bytes=count(hashes, "bytes"),
            chunk_bytes=count(hashes, "chunk_bytes"),
            chunks=texts(hashes, "chunks"),
            blake3=text(hashes, "blake3"),
        ),
        rejected=tuple({"name": text(entry, "name"), "reason": text(entry, "reason")} for entry in plain["rejected"]),
        rejected_count=count(plain, "rejected_count"),
    )
