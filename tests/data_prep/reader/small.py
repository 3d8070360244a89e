"""Small datasets for tests of reader, staging and cache: real LMDB shards of images, or shards of random bytes where nobody reads them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from data_prep.hashing import hash_file
from data_prep.manifest import Manifest, Shard, Split, digest_of, to_bytes
from data_prep.reader.datum import encode_parts


def random_dataset(datasets: Path, sizes: Sequence[int], *, seed: int = 0, name: str = "bytes", chunk_bytes: int = 4096) -> Path:
    """A dataset whose shards hold `sizes` random bytes: to be staged, not to be read."""
    root = datasets / f".{name}.new"
    root.mkdir(parents=True)
    random = np.random.default_rng(seed)
    for index, size in enumerate(sizes):
        directory = root / f"shard-{index:05d}.lmdb"
        directory.mkdir(parents=True)
        (directory / "data.mdb").write_bytes(random.bytes(size))
    return _publish(root, name, [1] * len(sizes), ["train"] * len(sizes), chunk_bytes=chunk_bytes)


def encode(channels: int, height: int, width: int, data: bytes, label: int, encoded: bool = False) -> bytes:
    """A whole Datum."""
    return b"".join(encode_parts(channels, height, width, data, label, encoded))


def write_shard(directory: Path, values: Sequence[bytes]) -> None:
    """An LMDB directory with these values under the keys 00000000, 00000001, ..."""
    directory.mkdir(parents=True)
    with lmdb.open(str(directory), map_size=1 << 30, lock=False, sync=False, lib_version=0) as env, env.begin(write=True) as txn:
        txn.cursor().putmulti([(b"%08d" % index, value) for index, value in enumerate(values)], append=True)


def image_dataset(
    datasets: Path,
    images: Sequence[tuple[Any, int]],
    *,
    shards: int = 2,
    test_shards: int = 0,
    layout: str = "hwc",
    encoder: Any = None,
    sized: bool = True,
    name: str = "images",
) -> Path:
    """A readable dataset of (uint8 HWC image, label), spread over the shards in order; the last `test_shards` of them are the split test.

    `encoder(image)` makes bytes of an image file; without it the pixels are stored raw, in the given layout.
    """
    root = datasets / f".{name}.new"
    counts, splits = [], []
    for index, part in enumerate(np.array_split(np.arange(len(images)), shards)):
        values = [_value(images[position][0], images[position][1], layout, encoder) for position in part]
        write_shard(root / f"shard-{index:05d}.lmdb", values)
        counts.append(len(values))
        splits.append("test" if index >= shards - test_shards else "train")
    shape = np.shape(images[0][0])
    return _publish(
        root,
        name,
        counts,
        splits,
        encoding="jpeg" if encoder else "raw",
        layout=layout,
        channels=shape[2],
        size=shape[:2] if sized else None,
        mean=(0.0,) * shape[2],
        std=(1.0,) * shape[2],
    )


def _value(image: Any, label: int, layout: str, encoder: Any) -> bytes:
    height, width, channels = image.shape
    if encoder is not None:
        return encode(channels, height, width, encoder(image), label, True)
    pixels = image[:, :, ::-1].transpose(2, 0, 1) if layout == "caffe" else image
    return encode(channels, height, width, pixels.tobytes(), label)


def _publish(root: Path, name: str, counts: list[int], splits: list[str], chunk_bytes: int = 4 << 20, **fields: Any) -> Path:
    shards = []
    for index, (samples, split) in enumerate(zip(counts, splits, strict=True)):
        shard = f"shard-{index:05d}.lmdb"
        hashes = hash_file(root / shard / "data.mdb", chunk_bytes)
        shards.append(Shard(name=shard, split=split, samples=samples, **vars(hashes)))
    by_split = {
        split: Split(
            samples=sum(shard.samples for shard in shards if shard.split == split),
            shards=tuple(index for index, shard in enumerate(shards) if shard.split == split),
            class_counts=(sum(shard.samples for shard in shards if shard.split == split),),
        )
        for split in sorted(set(splits))
    }
    known = {"encoding": "raw", "layout": "hwc", "channels": 1, "size": (1, 1), "mean": (0.0,), "std": (1.0,), **fields}
    manifest = Manifest(
        name=name,
        resize="squash",
        classes=("only",),
        splits=by_split,
        samples=sum(counts),
        bytes=sum(shard.bytes for shard in shards),
        shards=tuple(shards),
        source={"kind": "test"},
        rejected=(),
        rejected_count=0,
        left_out_classes=(),
        **known,
    )
    content = to_bytes(manifest)
    (root / "manifest.json").write_bytes(content)
    target = root.parent / f"{name}-{digest_of(content)[:12]}"
    return root.rename(target)
