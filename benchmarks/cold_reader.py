"""What the reader brings from a disk: cold epochs of raw images and of JPEGs through the PyTorch feed, and when the first batch is there.

    python -m benchmarks.cold_reader [--samples 8000] [--side 256] [--processes 2] [--pairs 5] [--dir DIR]

In turns with fio (Debian package fio), whose random reads past the page cache have the size of an image, eight at a time, of the same file.
`past the cache` is how a dataset is read that is larger than memory. Pages are dropped from the cache before each cold epoch. JPEG is
compared with the same epoch from memory. Medians of pairs, with the least and the most; processor time is that of the loader processes.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.reader import make_dataset
from containers.frameworks import load_framework
from workflow.run.node.workdir import copy_library

BATCH = 64


class Epoch(NamedTuple):
    """Images per second from the start of the loader processes on, seconds until the first batch, processor time of an image in us."""

    rate: float
    first_s: float
    processor_us: float


def epoch(root: Path, processes: int, *, cold: bool, past_cache: bool = False) -> Epoch:
    """Read one epoch in a process of its own, since the reader remembers what was in memory."""
    if cold:
        with data_of(root).open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    argv = [sys.executable, "-m", "benchmarks.cold_reader", "--read", str(root), "--processes", str(processes)]
    done = subprocess.run([*argv, *(["--past-cache"] if past_cache else [])], stdout=subprocess.PIPE, check=True)
    return Epoch(*json.loads(done.stdout))


def data_of(root: Path) -> Path:
    return root / "shard-00000.lmdb" / "data.mdb"


def read(root: str, processes: int, past_cache: bool) -> Epoch:
    """Read one epoch here."""
    with tempfile.TemporaryDirectory() as library:
        copy_library(Path(library))
        sys.path[:0] = [library, str(load_framework("pytorch").folder)]
        import slipway_reader
        from slipway_program.plan import Plan

        feed = importlib.import_module("slipway_pytorch.feed")
        if past_cache:
            slipway_reader.shards.larger_than_memory = lambda _: True
        dataset = slipway_reader.open_dataset(root)
        groups = dataset.groups("train")
        plan = Plan(0, 0, groups[0] // BATCH, BATCH, rank=0, world_size=1, train_groups=groups, eval_split=None, eval_groups=())
        start = time.perf_counter()
        batches: Any = feed.start_reading(dataset, plan, processes)
        next(batches)
        first_s, images = time.perf_counter() - start, BATCH
        for _, labels in batches:
            images += len(labels)
        seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Epoch(images / seconds, first_s, (used.ru_utime + used.ru_stime) / images * 1e6)


def fio(path: Path, block: int, seconds: int) -> float:
    """Blocks per second."""
    argv = [
        "fio", "--name=images", f"--filename={path}", "--readonly", "--rw=randread", f"--bs={block}", "--iodepth=8", "--ioengine=libaio",
        "--direct=1", "--time_based", f"--runtime={seconds}", "--output-format=json",
    ]  # fmt: skip
    done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
    return float(json.loads(done.stdout)["jobs"][0]["read"]["iops"])


def paired(name: str, pairs: int, ours: Callable[[], Epoch], other: Callable[[], float]) -> None:
    """Measure in turns and print the ratio."""
    found = [(ours(), other()) for _ in range(pairs)]
    ratios = sorted(one.rate / rate for one, rate in found)
    rate, first_s, processor_us = (statistics.median(values) for values in zip(*(one for one, _ in found), strict=True))
    print(
        f"{name:24} {rate:8,.0f} images/s  {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        f"  first batch {first_s:.3f} s  processor {processor_us:.0f} us"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=8000)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--dir", type=Path, help="a directory on the disk to measure (default: the temporary one)")
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--past-cache", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    processes, pairs = arguments.processes, arguments.pairs
    if arguments.read:
        print(json.dumps(read(arguments.read, processes, arguments.past_cache)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        raw, jpeg = (make_dataset(Path(directory, kind), arguments.samples, arguments.side, kind == "jpeg") for kind in ("raw", "jpeg"))
        if shutil.which("fio") is None:
            print("fio is not here: apt-get install fio")
        else:
            block = -(-(arguments.side**2 * 3 + 64) // 4096) * 4096
            print(f"ratios to fio, blocks of {block} bytes")
            for name, past_cache in (("raw, cold", False), ("raw, past the cache", True)):
                paired(
                    name,
                    pairs,
                    lambda past_cache=past_cache: epoch(raw, processes, cold=True, past_cache=past_cache),  # type: ignore[misc]
                    lambda: fio(data_of(raw), block, 2),
                )
        print("ratios to the same epoch from memory")
        paired("JPEG, cold", pairs, lambda: epoch(jpeg, processes, cold=True), lambda: epoch(jpeg, processes, cold=False).rate)
        paired("raw, cold", pairs, lambda: epoch(raw, processes, cold=True), lambda: epoch(raw, processes, cold=False).rate)


if __name__ == "__main__":
    main()
