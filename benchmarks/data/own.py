"""What runs in Slipway's own environment: Slipway, the limits of this machine, and the programs that everybody has."""

import contextlib
import importlib
import itertools
import json
import math
import mmap
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from base.publish import move_directory, remove_tree
from benchmarks.data.program import (
    SIDE,
    Done,
    Task,
    Turns,
    builder,
    do_nothing,
    files_of,
    forget,
    once,
    read_file,
    reader,
    remove,
    sync_tree,
)
from containers.frameworks import load_framework
from data_prep.build.dataset import build_dataset
from data_prep.hashing import hash_file
from data_prep.manifest import Manifest, Shard, Split, digest_of, to_bytes
from data_prep.reader import open_dataset, shards
from data_prep.reader.datum import parse
from data_prep.spec import parse_spec
from data_prep.staging import stage
from workflow.run.node.workdir import copy_library

PICTURES = 256
"""Different images of a source; a file after these has the bytes of an earlier one, which nobody here notices."""
SHARDS = 8
FIO_BLOCK = 196_608
"""Bytes of a raw image of 256 x 256, so that a random read of this size is an image."""


def make_photos(folder: Path, count: int) -> int:
    """Write JPEGs of about 23 KB in ten directories, one for each class; return their bytes."""
    rng = np.random.default_rng(0)
    pictures = []
    for _ in range(min(PICTURES, count)):
        rough = Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        pixels = np.clip(np.asarray(rough).astype(np.int16) + rng.integers(-17, 18, (SIDE, SIDE, 3)), 0, 255).astype(np.uint8)
        pictures.append(simplejpeg.encode_jpeg(pixels, quality=85, colorsubsampling="420"))
    for number in range(10):
        (folder / f"class{number}").mkdir(parents=True, exist_ok=True)
    return sum((folder / f"class{index % 10}" / f"{index:06d}.jpg").write_bytes(pictures[index % PICTURES]) for index in range(count))


def make_dataset(datasets: Path, num_bytes: int, num_shards: int) -> Path:
    """Publish a dataset of random shards, which can be staged and not read; return its directory."""
    root = datasets / ".new"
    shards = []
    for index in range(num_shards):
        directory = root / f"shard-{index:05d}.lmdb"
        directory.mkdir(parents=True)
        with (directory / "data.mdb").open("wb") as file:
            for _ in range(num_bytes // num_shards >> 20):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
        shards.append(Shard(name=directory.name, split="train", samples=1, **vars(hash_file(directory / "data.mdb"))))
    content = to_bytes(
        Manifest(
            name="bench", encoding="raw", layout="hwc", channels=1, size=(1, 1), resize="squash", classes=("one",), mean=(0.0,), std=(1.0,),
            splits={"train": Split(samples=num_shards, shards=tuple(range(num_shards)), class_counts=(num_shards,))}, samples=num_shards,
            bytes=sum(shard.bytes for shard in shards), shards=tuple(shards), source={}, rejected=(), rejected_count=0, left_out_classes=(),
        )
    )  # fmt: skip
    (root / "manifest.json").write_bytes(content)
    target = datasets / f"bench-{digest_of(content)[:12]}"
    move_directory(root, target)
    return target


# Slipway


def _build(task: Task, target: str) -> Path:
    place = Path(target)
    values = {"source": "folder", "path": task.source, "shards": SHARDS, "encoding": task.encoding, "splits": {}, **task.options}
    return place / build_dataset(parse_spec(values, place), "bench", place, task.jobs).path


def slipway_build(task: Task) -> Turns:
    """Build a dataset, from the listing of the source to the published manifest."""
    return builder(task, lambda path: _build(task, path))


def _dataset(task: Task) -> str:
    once(f"{task.place}/{task.encoding}", lambda path: _build(task._replace(options={}), path))
    (manifest,) = Path(task.place, task.encoding).glob("bench-*/manifest.json")
    return str(manifest.parent)


def slipway_read(task: Task) -> Turns:
    """Read as the program of framework `pytorch` does, or as a program of a user's own: `torch` is `Loader`, or `Batches` in a DataLoader.
    `numpy`: without the compiled part of the reader; `past_cache`: as what is larger than memory is read.
    """
    data, library = _dataset(task), Path(task.place, f"library-{os.getpid()}")
    library.mkdir()
    copy_library(library)
    sys.path[:0] = [str(library), str(load_framework("pytorch").folder)]
    import slipway_reader
    from slipway_program.plan import make_plan
    from torch.utils.data import DataLoader

    feed = importlib.import_module("slipway_pytorch.feed")
    if task.options.get("numpy"):
        slipway_reader.pixels.library = "left out"
    if task.options.get("past_cache"):
        slipway_reader.shards.free_memory = int

    opened = slipway_reader.open_dataset(data, crop=task.side or None)
    augmentation = "crop-flip" if task.side else "none"
    if kind := task.options.get("torch"):
        split, ours = opened.split("train"), importlib.import_module("slipway_reader.torch")
        if kind == "Loader":
            loader = ours.Loader(split, task.batch, augmentation=augmentation, num_workers=task.jobs)
            return reader(task, data, lambda: loader)
        given = ours.Batches(split, task.batch, augmentation=augmentation)
        order = range(given.per_epoch)
        loader = DataLoader(given, batch_size=None, sampler=order, num_workers=task.jobs, persistent_workers=not task.cold)
        return reader(task, data, lambda: loader)
    sizes = {"batch_size": task.batch, "global_batch_size": task.batch}
    cell: Any = {"seed": 0, "mode": "train", "epochs": 1, "augmentation": augmentation, **sizes}
    _, plan = make_plan(cell, opened, 0, 1)
    endless = plan._replace(steps=plan.per_epoch * (1 if task.cold else 1_000_000), eval_split=None, eval_groups=())

    def epochs() -> Iterator[Any]:
        begun: Iterator[Any] = feed.start_reading(opened, endless, task.jobs)
        return begun

    return reader(task, data, epochs, endless=not task.cold)


def slipway_stage(task: Task) -> Turns:
    """Copy a dataset to the cache, each byte of it read back, in a process of its own as in a run."""
    target = task.place + "/cache"

    def before() -> None:
        remove_tree(Path(target))
        forget(task.source)

    return before, lambda: _staged(task, target)


def _staged(task: Task, target: str) -> Done:
    _run(sys.executable, "-m", "data_prep.staging", "--source", task.source, "--cache", target)
    return Done(_bytes_of(task.source))


class HalfDone(Exception):
    """Ends a copy in the middle."""


def slipway_resume(task: Task) -> Turns:
    """Go on with a copy that was ended when half of it was done."""
    target = task.place + "/cache"

    def until_half(done: int, total: int) -> None:
        if done > total // 2 > 0:
            raise HalfDone

    def before() -> None:
        remove_tree(Path(target))
        with contextlib.suppress(HalfDone):
            stage(Path(task.source), Path(target), progress=until_half)
        forget(task.source)

    return before, lambda: _staged(task, target)


def _bytes_of(source: str) -> int:
    return sum(path.stat().st_size for path in Path(source).rglob("data.mdb"))


def _run(*argv: str) -> str:
    return subprocess.run(argv, check=True, stdout=subprocess.PIPE, text=True).stdout


# Programs that everybody has


def tar_build(task: Task) -> Turns:
    """Write the files of the source to one file, without looking into them."""
    return builder(task, lambda path: _run("tar", "-c", "-f", path, "-C", task.source, "."))


def _copies(task: Task, copy: Callable[[str, str], object], half: Callable[[str, str], object] | None = None) -> Turns:
    target = task.place + "/copy"

    def before() -> None:
        remove(target)
        if half is not None:
            half(task.source, target)
        forget(task.source)

    def turn() -> Done:
        copy(task.source, target)
        sync_tree(target)
        return Done(_bytes_of(task.source))

    return before, turn


def rsync_copy(task: Task) -> Turns:
    """Copy with rsync, which compares what it sent with what arrived, not with what is on the disk."""
    return _copies(task, lambda source, target: _run("rsync", "-a", source + "/", target))


def cp_copy(task: Task) -> Turns:
    """Copy without any check."""
    return _copies(task, lambda source, target: _run("cp", "-r", source, target))


def dd_copy(task: Task) -> Turns:
    """Copy past the page cache; with `read_back`, read the copy from the disk after that, as who verifies it must."""

    def copy(source: str, target: str) -> None:
        for path in sorted(Path(source).rglob("data.mdb")):
            place = Path(target, path.parent.name)
            place.mkdir(parents=True)
            _run("dd", "status=none", f"if={path}", f"of={place / 'data.mdb'}", "bs=4M", "iflag=direct", "oflag=direct", "conv=fdatasync")
            if task.options.get("read_back"):
                _run("dd", "status=none", f"if={place / 'data.mdb'}", "of=/dev/null", "bs=4M", "iflag=direct")

    return _copies(task, copy)


def rsync_resume(task: Task) -> Turns:
    """Go on where each file has its first half."""

    def half(source: str, target: str) -> None:
        _run("rsync", "-a", source + "/", target)
        for path in Path(target).rglob("data.mdb"):
            os.truncate(path, path.stat().st_size // 2)
        sync_tree(target)
        forget(target)

    return _copies(task, lambda source, target: _run("rsync", "-a", "--append-verify", source + "/", target), half)


def fio_read(task: Task) -> Turns:
    """Read blocks of the size of a raw image in random order past the page cache, eight at a time."""
    count = len(files_of(task.source))
    path = task.place + "/fio.bin"
    argv = (
        "fio", "--name=images", f"--filename={path}", f"--size={count * FIO_BLOCK}", "--rw=randread", f"--bs={FIO_BLOCK}", "--direct=1",
        "--ioengine=libaio", "--iodepth=8", "--output-format=json",
    )  # fmt: skip
    _run(*argv)  # it writes its file first

    def turn() -> Done:
        read = json.loads(_run(*argv))["jobs"][0]["read"]
        return Done(read["io_bytes"] / FIO_BLOCK, read["runtime"] / 1e3)

    return lambda: forget(path), turn


# Limits of this machine


def _stored_images(data: str) -> list[Any]:
    """Return the raw images of a dataset where they lie in its files, as arrays of the page cache."""
    split = open_dataset(data).split("train")
    files = {path: np.memmap(Path(path, "data.mdb"), mode="r") for path in split.paths}
    found = []
    for place in split._places(range(len(split))):
        start, length = shards.position(place)
        found.append(np.frombuffer(parse(files[place[0]][start : start + length].data).data, np.uint8).reshape(SIDE, SIDE, 3))
    shards.close_all()
    return found


def _copy_images(window: int, batch: int, seconds: float, seed: int) -> int:
    meet, images = _GIVEN
    rng = np.random.default_rng(seed)
    out = np.frombuffer(mmap.mmap(-1, 2 * batch * window * window * 3), np.uint8).reshape(2 * batch, window, window, 3)
    places = rng.integers(0, SIDE - window + 1, (len(images), 2)).tolist()
    order = rng.permutation(len(images)).tolist()
    end = math.inf
    for count, index in enumerate(itertools.cycle(order)):
        if count == len(order):  # all pages are mapped
            meet.wait()
            end = time.perf_counter() + seconds
        if time.perf_counter() > end:
            return count - len(order)
        top, left = places[index]
        out[count % len(out)] = images[index][top : top + window, left : left + window]
    return 0


_GIVEN: Any = None


def _give(*given: Any) -> None:
    global _GIVEN
    _GIVEN = given


def copy_limit(task: Task) -> Turns:
    """Copy images, or random windows of them, as the readers do: from the page cache, in random order, to batches that processes share."""
    images = _stored_images(_dataset(task))

    def turn() -> Done:
        context = multiprocessing.get_context("fork")
        with context.Pool(task.jobs, _give, (context.Barrier(task.jobs), images)) as pool:
            work = [(task.side or SIDE, task.batch, task.seconds, seed) for seed in range(task.jobs)]
            return Done(sum(pool.starmap(_copy_images, work, chunksize=1)), task.seconds)

    return do_nothing, turn


def decode_limit(task: Task) -> Turns:
    """Decode the JPEGs, which are in memory, in as many threads as the readers have processes."""
    files = [read_file(path) for path, _ in files_of(task.source)]
    pool = ThreadPoolExecutor(task.jobs)

    def part(number: int) -> int:
        end, count = time.perf_counter() + task.seconds, 0
        while time.perf_counter() < end:
            simplejpeg.decode_jpeg(files[(number + count * task.jobs) % len(files)])
            count += 1
        return count

    return do_nothing, lambda: Done(sum(pool.map(part, range(task.jobs))))
