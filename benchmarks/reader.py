"""Images per second of the reader, one process: raw and JPEG, warm, cold, and cold with advice; and what a batch's order costs.

    python -m benchmarks.reader [--samples 4000] [--side 256] [--repeats 3] [--dir DIR]

Limits beside it: copying the same pixels between arrays, and decoding the same JPEG in a loop. Cold: pages dropped from the cache before.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import lmdb
import numpy as np
import simplejpeg

from base.jsonfile import canonical_json
from data_prep.reader import batch_indices, open_dataset, shards
from data_prep.reader.datum import encode

BATCH = 64
AHEAD = 1  # batches of advice


def picture(random: np.random.Generator, side: int) -> np.ndarray:
    """Something like a photograph: large shapes, some noise."""
    coarse = random.integers(0, 256, (9, 9, 3)).astype(float)
    rows = np.linspace(0, 8, side)
    low = rows.astype(int).clip(0, 7)
    weight = (rows - low)[:, None, None]
    tall = coarse[low] * (1 - weight) + coarse[low + 1] * weight
    wide = tall[:, low] * (1 - weight[None, :, 0]) + tall[:, low + 1] * weight[None, :, 0]
    image: np.ndarray = np.clip(wide + random.normal(0, 4, wide.shape), 0, 255).astype(np.uint8)
    return image


def make_dataset(root: Path, samples: int, side: int, jpeg: bool) -> Path:
    """A readable dataset of one shard; its manifest holds what the reader needs."""
    random = np.random.default_rng(0)
    images = [picture(random, side) for _ in range(16)]
    files = [simplejpeg.encode_jpeg(image, quality=90) if jpeg else image.tobytes() for image in images]
    directory = root / "shard-00000.lmdb"
    directory.mkdir(parents=True)
    with lmdb.open(str(directory), map_size=1 << 40, lock=False, sync=False, lib_version=0) as env:
        for start in range(0, samples, 256):
            with env.begin(write=True) as txn:
                values = [
                    (b"%08d" % i, encode(3, side, side, files[i % 16], i % 10, jpeg)) for i in range(start, min(start + 256, samples))
                ]
                txn.cursor().putmulti(values, append=True)
        env.sync(True)
    shard = {"name": directory.name, "samples": samples, "bytes": (directory / "data.mdb").stat().st_size}
    manifest = {
        "schema": "slipway.dataset/1", "name": "bench", "layout": "hwc", "channels": 3, "size": [side, side], "classes": list("0123456789"),
        "mean": [0.0] * 3, "std": [1.0] * 3, "splits": {"train": {"samples": samples, "shards": [0]}}, "shards": [shard],
        "samples": samples, "bytes": shard["bytes"],
    }  # fmt: skip
    (root / "manifest.json").write_bytes(canonical_json(manifest))
    return root


def epoch(root: Path, samples: int, side: int, cold: bool, advise: bool) -> float:
    """Images per second of one shuffled epoch."""
    shards.close_all()
    split = open_dataset(str(root)).split("train")
    if cold:
        descriptor = os.open(root / "shard-00000.lmdb" / "data.mdb", os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    out = np.empty((BATCH, side, side, 3), np.uint8)
    start = time.perf_counter()
    steps = samples // BATCH
    coming = batch_indices(0, 0, steps, samples, BATCH, 0, 1)
    for ahead in itertools.islice(coming, AHEAD if advise else 0):
        split.prefetch(ahead)
    for indices in batch_indices(0, 0, steps, samples, BATCH, 0, 1):
        if advise and (following := next(coming, None)) is not None:
            split.prefetch(following)
        split.read_many(indices, out=out)
    return steps * BATCH / (time.perf_counter() - start)


def per_second(function: Callable[[], object]) -> float:
    """How often `function` runs in a second."""
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < 0.5:
        function()
        count += 1
    return count / (time.perf_counter() - start)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="a directory on the disk to measure (default: the temporary one)")
    arguments = parser.parse_args()
    samples, side = arguments.samples, arguments.side
    image = picture(np.random.default_rng(1), side)
    file, out = simplejpeg.encode_jpeg(image, quality=90), np.empty_like(image)
    limits = {"raw": per_second(lambda: np.copyto(out, image)), "jpeg": per_second(lambda: simplejpeg.decode_jpeg(file))}
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        for kind, limit in limits.items():
            root = make_dataset(Path(directory, kind), samples, side, kind == "jpeg")
            epoch(root, samples, side, cold=False, advise=False)
            print(f"{kind} {side}x{side}: limit {limit:,.0f} images/s ({'copy' if kind == 'raw' else 'decode'} of one image, in a loop)")
            for name, cold, advise in (("warm", False, False), ("cold", True, False), ("cold, with advice", True, True)):
                found = statistics.median(epoch(root, samples, side, cold, advise) for _ in range(arguments.repeats))
                print(f"  {name:18} {found:10,.0f} images/s  {found / limit:.2f} of the limit")
    batches = batch_indices(0, 0, None, 100_000_000, 256, 0, 1)
    print(f"order of a batch of 256 in 10^8 samples: {1e3 / per_second(lambda: next(batches)):.3f} ms")


if __name__ == "__main__":
    main()
