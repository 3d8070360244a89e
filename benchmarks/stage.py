"""Staging, verified, against `cp`, `rsync -a` and `dd` past the page cache, which verify nothing (rsync: what it sent, not the source).

"dd, read back" reads what it has written once more past the page cache, and compares nothing. "resume" has half of the copy already, as a
copy that was interrupted leaves it; "hit" has all of it.

    python -m benchmarks.stage [--size 1GB] [--shards 2] [--repeats 5] [--dir DIR] [--against CHECKOUT]
                               [--storage-rate 200MB]

Each copy starts with a cold source and ends with its data on the disk (sync for those that do not sync themselves); the contenders take
turns. Printed: median seconds and their range, MB/s, CPU seconds, and the median of the pairwise ratios to our whole copy. --against:
another checkout of Slipway takes turns too, such as one from before a change. --storage-rate: storage gives so many bytes per second, as
over a network; only Slipway can be told to keep to that, so only it takes part.

Where source and copy lie on one disk, a copy moves three times its bytes through it (read, write, read back), and a resume at half twice.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from base.humanize import format_size, parse_size
from base.publish import move_directory
from data_prep.hashing import hash_file
from data_prep.manifest import Manifest, Shard, Split, digest_of, to_bytes
from data_prep.staging import stage


class HalfDone(Exception):
    """Ends a copy in the middle."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A way to copy the dataset `source` to the directory `target`. What `before` does is not measured."""

    copy: Callable[[Path, Path], None]
    before: Callable[[Path, Path], None] = lambda _source, _target: None


def make_dataset(datasets: Path, num_bytes: int, num_shards: int) -> Path:
    """A published dataset of random shards."""
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


def forget(root: Path) -> None:
    """Drop the files of `root` from the page cache."""
    for path in root.rglob("data.mdb"):
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def sync(root: Path) -> None:
    """Data of every file on the disk."""
    for path in root.rglob("data.mdb"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.close(descriptor)


def run(*argv: str | Path, where: Path | None = None) -> None:
    subprocess.run([str(word) for word in argv], check=True, capture_output=True, cwd=where)


def slipway(checkout: Path | None, rate: int | None) -> Callable[[Path, Path], None]:
    """Staging as this checkout does it, or another one."""
    options = [] if rate is None else ["--bytes-per-s", str(rate)]

    def copy(source: Path, target: Path) -> None:
        run(sys.executable, "-m", "data_prep.staging", "--source", source, "--cache", target, *options, where=checkout)

    return copy


def half(source: Path, target: Path) -> None:
    """A copy that is ended in the middle."""

    def until_half(done: int, total: int) -> None:
        if done >= total // 2:
            raise HalfDone

    with contextlib.suppress(HalfDone):
        stage(source, target, progress=until_half)


def cp(source: Path, target: Path) -> None:
    run("cp", "-r", source, target)
    sync(target)


def rsync(source: Path, target: Path) -> None:
    run("rsync", "-a", source, target)
    sync(target)


def half_of_each(source: Path, target: Path) -> None:
    for path in source.rglob("data.mdb"):
        copy = target / path.relative_to(source.parent)
        copy.parent.mkdir(parents=True)
        run("dd", f"if={path}", f"of={copy}", "bs=4M", "iflag=direct,count_bytes", f"count={path.stat().st_size // 2}", "conv=fsync")
    forget(target)


def rsync_resume(source: Path, target: Path) -> None:
    run("rsync", "-a", "--append-verify", source, target)
    sync(target)


def dd(source: Path, target: Path) -> None:
    for path in source.rglob("data.mdb"):
        copy = target / path.parent.name
        copy.mkdir(parents=True)
        run("dd", f"if={path}", f"of={copy / 'data.mdb'}", "bs=4M", "iflag=direct", "oflag=direct", "conv=fdatasync")


def dd_and_back(source: Path, target: Path) -> None:
    dd(source, target)
    for path in target.rglob("data.mdb"):
        run("dd", f"if={path}", "of=/dev/null", "bs=4M", "iflag=direct")


def measured(contender: Contender, source: Path, target: Path) -> tuple[float, float]:
    """Seconds on the clock, and of CPU."""
    contender.before(source, target)
    forget(source)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    contender.copy(source, target)
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def contenders(against: Path | None, rate: int | None) -> dict[str, Contender]:
    """Who takes part."""
    ours = slipway(None, rate)
    found = {
        "slipway": Contender(copy=ours),
        "resume": Contender(before=half, copy=ours),
        "hit": Contender(before=slipway(None, None), copy=ours),
    }
    if against is not None:
        other = slipway(against, rate)
        found |= {"against": Contender(copy=other), "against, resume": Contender(before=half, copy=other)}
    if rate is not None:
        return found
    found |= {"cp -r": Contender(copy=cp), "dd direct": Contender(copy=dd), "dd, read back": Contender(copy=dd_and_back)}
    if not shutil.which("rsync"):
        print("rsync is not installed: left out")
        return found
    return found | {"rsync -a": Contender(copy=rsync), "rsync, resume": Contender(before=half_of_each, copy=rsync_resume)}


def compare(source: Path, work: Path, num_bytes: int, repeats: int, copies: dict[str, Contender]) -> None:
    """Let the contenders take turns and print the table."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in copies}
    for _ in range(repeats):
        for name, contender in copies.items():
            found[name].append(measured(contender, source, work / "copy"))
            shutil.rmtree(work / "copy")
    print(f"{'':15} {'s':>6} {'range':>13} {'MB/s':>6} {'CPU s':>6}  times slipway")
    for name, pairs in found.items():
        times = [pair[0] for pair in pairs]
        seconds = statistics.median(times)
        ratio = statistics.median(pair[0] / own[0] for pair, own in zip(pairs, found["slipway"], strict=True))
        cpu = statistics.median(pair[1] for pair in pairs)
        print(f"{name:15} {seconds:6.2f} {min(times):6.2f}-{max(times):6.2f} {num_bytes / seconds / 1e6:6.0f} {cpu:6.2f}  {ratio:.2f}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=parse_size, default=10**9)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--against", type=Path, metavar="CHECKOUT")
    parser.add_argument("--storage-rate", type=parse_size)
    parser.add_argument("--dir", type=Path, help="a directory on the disk to measure (default: the temporary one)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as directory:
        source = make_dataset(Path(directory, "storage"), arguments.size, arguments.shards)
        num_bytes = sum(path.stat().st_size for path in source.rglob("data.mdb"))
        print(f"{format_size(num_bytes)} in {arguments.shards} shards, median of {arguments.repeats}")
        compare(source, Path(directory), num_bytes, arguments.repeats, contenders(arguments.against, arguments.storage_rate))


if __name__ == "__main__":
    main()
