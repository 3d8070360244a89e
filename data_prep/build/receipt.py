"""Read and write the receipt of a shard, which says what the shard holds.

It is written after the shard itself is durable. A shard without one is made again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from base.errors import DatasetError
from base.jsonfile import read_json
from base.typed import Count, FromOne, read_as
from data_prep.build.images import PixelSums
from data_prep.build.locks import held, publish_json_of
from data_prep.build.plan_file import PLAN_FILE
from data_prep.hashing import FileHashes

SCHEMA = "slipway.shard/1"
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """The receipt of a shard. `key` names the content. `size` is (height, width) where all images have the same, else None."""

    key: str
    samples: Count
    class_counts: tuple[Count, ...]
    pixel_sums: PixelSums
    size: tuple[FromOne, FromOne] | None
    hashes: FileHashes
    rejected: tuple[Mapping[str, str], ...]
    rejected_count: Count

    def __post_init__(self) -> None:
        if sum(self.class_counts) != self.samples:
            raise ValueError(f"class_counts add up to {sum(self.class_counts)}, samples is {self.samples}")


def receipt_path(build_dir: Path, index: int) -> Path:
    """Return the path of a shard's receipt, `shard-00000.json`."""
    return build_dir / f"shard-{index:05d}.json"


def shard_path(build_dir: Path, index: int) -> Path:
    """Return the path of a shard, the directory `shard-00000.lmdb`."""
    return build_dir / f"shard-{index:05d}.lmdb"


def not_older(path: Path, than: Path) -> None:
    """Give `path`, still right, the present time if it is older than `than`, which was made again: Snakemake would ask for it for ever."""
    if path.stat().st_mtime_ns < than.stat().st_mtime_ns:
        os.utime(path)


def made_once(build_dir: Path, index: int, find: Callable[[], R | None], make: Callable[[], R]) -> R:
    """Find shard `index` with `find`, or make it with `make`, in one process at a time. The receipt is never older than the plan."""
    found = find()
    if found is None:
        with held(build_dir / "locks" / f"shard-{index:05d}"):
            found = find()
            if found is None:
                found = make()
    not_older(receipt_path(build_dir, index), build_dir / PLAN_FILE)
    return found


def write_receipt(build_dir: Path, index: int, receipt: Receipt) -> None:
    """Publish the receipt."""
    publish_json_of(receipt_path(build_dir, index), {"schema": SCHEMA, "index": index, **asdict(receipt)})


def read_receipt(build_dir: Path, index: int, key: str) -> Receipt | None:
    """Read the receipt of shard `index`. The result is None where there is no whole one of this plan and version."""
    path = receipt_path(build_dir, index)
    try:
        plain = read_json(path, DatasetError)
        receipt = read_as(Receipt, plain, path, DatasetError)
    except DatasetError:
        return None
    return receipt if plain.get("schema") == SCHEMA and receipt.key == key else None
