"""How fast a dataset is built, against `tar c` of the same folder: images per second, median of several.

python benchmarks/build.py [--images 2000] [--times 5] [--jobs N] [--place DIR]

All images are decoded, also where their JPEG is kept: the manifest's mean, deviation and list of damaged images need it. The last rows
show what part that is: the decoder alone, in one process, and the header check alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import simplejpeg
from PIL import Image

from data_prep.build.dataset import build_dataset
from data_prep.image_header import jpeg_header
from data_prep.spec import parse_spec

SIDE = 256


def make_images(folder: Path, count: int) -> int:
    """`count` JPEGs of about 25 KB in ten class folders; their bytes."""
    rng = np.random.default_rng(0)
    total = 0
    for index in range(count):
        rough = Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        pixels = np.clip(np.asarray(rough).astype(np.int16) + rng.integers(-10, 11, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
        path = folder / f"class{index % 10}" / f"{index:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        total += path.write_bytes(simplejpeg.encode_jpeg(pixels, quality=85, colorsubsampling="420"))
    return total


def median_s(times: int, work: Callable[[], object]) -> tuple[float, float, float]:
    """Median, least and most seconds; the first call, which warms the cache, is not counted."""
    work()
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        found.append(time.perf_counter() - begin)
    return statistics.median(found), min(found), max(found)


def build(place: Path, folder: Path, jobs: int, values: dict[str, Any]) -> None:
    """One whole build, from listing to the published manifest."""
    target = place / "datasets"
    build_dataset(parse_spec({"source": "folder", "path": str(folder), "shards": 8, **values}, place), "bench", target, jobs)
    shutil.rmtree(target)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--place", type=Path, help="where to work; default: the directory for temporary files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.place) as name:
        place = Path(name)
        folder = place / "photos"
        total = make_images(folder, arguments.images)
        files = [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]

        def tar() -> None:
            with (place / "photos.tar").open("wb") as out:
                subprocess.run(["tar", "c", "-C", str(place), "photos"], stdout=out, check=True)
                os.fsync(out.fileno())

        rows: list[tuple[str, Callable[[], object]]] = [
            ("tar c, fsync", tar),
            ("build, JPEG kept", lambda: build(place, folder, arguments.jobs, {"encoding": "jpeg", "splits": {}})),
            ("build, JPEG kept, test: 0.1", lambda: build(place, folder, arguments.jobs, {"encoding": "jpeg"})),
            ("build, raw", lambda: build(place, folder, arguments.jobs, {"encoding": "raw", "splits": {}})),
            ("build, raw, resized to 224", lambda: build(place, folder, arguments.jobs, {"encoding": "raw", "size": 224, "splits": {}})),
            ("decoder alone, one process", lambda: [simplejpeg.decode_jpeg(file) for file in files]),
            ("header check alone, one process", lambda: [jpeg_header(file) for file in files]),
        ]
        print(f"{arguments.images} JPEGs of {SIDE} x {SIDE}, {total / 1e6:.1f} MB; {arguments.jobs} jobs; median of {arguments.times}")
        print(f"{'':34}{'images/s':>10}{'least':>9}{'most':>9}{'MB/s':>8}{'of tar':>8}")
        of_tar = 0.0
        for label, work in rows:
            median, least, most = median_s(arguments.times, work)
            of_tar = of_tar or median
            rate = arguments.images / median
            ends = f"{arguments.images / most:9.0f}{arguments.images / least:9.0f}"
            print(f"{label:34}{rate:10.0f}{ends}{total / median / 1e6:8.1f}{of_tar / median:8.2f}")


if __name__ == "__main__":
    main()
