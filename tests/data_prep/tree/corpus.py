"""A small tree of files, and its dataset."""

import random
from collections.abc import Mapping
from pathlib import Path

from base.chunks import CHUNK_BYTES
from data_prep.build.dataset import build_dataset
from data_prep.spec import DatasetSpec

SIZES: Mapping[str, int] = {
    "tokens.bin": 2 * CHUNK_BYTES + 77,
    "a/part-0.tar": 4096,
    "a/part-1.tar": 4097,
    "a/b/empty": 0,
    ".hidden": 3,
    "manifest.json": 12,
    "z": CHUNK_BYTES,
}
"""Of the files of the tree: a name of ours among them, and one without a byte."""


def plant(root: Path, sizes: Mapping[str, int] = SIZES, seed: int = 0) -> Path:
    """Files of random bytes below `root`, the same for the same seed."""
    source = random.Random(seed)
    for name, size in sizes.items():
        content = source.randbytes(size)
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def spec_of(path: Path, shards: int = 3) -> DatasetSpec:
    """What a study says of it."""
    return DatasetSpec(source="files", path=str(path), shards=shards)


def build(path: Path, datasets: Path, *, shards: int = 3, fresh: bool = False) -> Path:
    """The published dataset of the tree."""
    return datasets / build_dataset(spec_of(path, shards), "corpus", datasets, 1, fresh=fresh).path


def contents(root: Path) -> dict[str, bytes]:
    """All files below `root`."""
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
