"""Measure how fast a dataset is built, against `tar c` of the same folder and the bare decoder: seconds, and CPU time per image.

python benchmarks/build.py [--images 20000] [--times 5] [--jobs N] [--place DIR]

The rows take turns, so that what else the machine does falls on all of them; shown are medians, and the median of the ratios to `tar c` of
the same turn. CPU time (user and system, of all processes) is the steadier figure on a busy machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import simplejpeg
from PIL import Image

from data_prep.build.dataset import build_dataset
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


def decode_all(files: Sequence[bytes]) -> None:
    """Decode, and forget the pixels."""
    for file in files:
        simplejpeg.decode_jpeg(file)


def cpu_s() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return wall and CPU seconds of one call."""
    begin, cpu = time.perf_counter(), cpu_s()
    work()
    return time.perf_counter() - begin, cpu_s() - cpu


def build(place: Path, folder: Path, jobs: int, values: dict[str, Any]) -> None:
    """One whole build, from listing to the published manifest."""
    target = place / "datasets"
    build_dataset(parse_spec({"source": "folder", "path": str(folder), "shards": 8, **values}, place), "bench", target, jobs)
    shutil.rmtree(target)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20_000)
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

        def built(**values: object) -> Callable[[], object]:
            return lambda: build(place, folder, arguments.jobs, {"splits": {}, **values})

        def decoded() -> None:
            parts = [files[start : start + 100] for start in range(0, len(files), 100)]
            with ThreadPoolExecutor(arguments.jobs) as pool:
                list(pool.map(decode_all, parts))

        rows: list[tuple[str, Callable[[], object]]] = [
            ("tar c, fsync", tar),
            ("decoder alone, as many threads", decoded),
            ("JPEG kept", built(encoding="jpeg")),
            ("JPEG kept, test: 0.1", built(encoding="jpeg", splits={"test": 0.1})),
            ("JPEG kept, check: decode", built(encoding="jpeg", check="decode")),
            ("JPEG kept, statistics: all", built(encoding="jpeg", statistics="all")),
            ("raw", built(encoding="raw")),
            ("raw, resized to 224", built(encoding="raw", size=224)),
        ]
        for _, work in rows:
            work()  # warms caches; not counted
        turns = [[timed(work) for _, work in rows] for _ in range(arguments.times)]
        print(f"{arguments.images} JPEGs of {SIDE} x {SIDE}, {total / 1e6:.1f} MB; {arguments.jobs} jobs; {arguments.times} turns")
        print(f"{'':34}{'seconds':>9}{'least':>8}{'most':>8}{'x tar':>8}{'x decoder':>11}{'CPU us/image':>14}")
        for number, (label, _) in enumerate(rows):
            wall = [turn[number][0] for turn in turns]
            to_tar, to_decoder = (statistics.median(turn[number][0] / turn[base][0] for turn in turns) for base in (0, 1))
            cpu = statistics.median(turn[number][1] for turn in turns) / arguments.images * 1e6
            ends = f"{statistics.median(wall):9.2f}{min(wall):8.2f}{max(wall):8.2f}"
            print(f"{label:34}{ends}{to_tar:8.2f}{to_decoder:11.2f}{cpu:14.0f}")


if __name__ == "__main__":
    main()
