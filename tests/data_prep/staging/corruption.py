"""One bit is flipped somewhere on the way of the data; nobody may read it unnoticed.

    python -m tests.data_prep.staging.corruption [--trials 1000] [--seed 0] [--places storage,part,...]

Each trial flips one bit at a place and lets the next step of a run meet it. `caught`: an error, a line in the log and another copy, or
another node given up. `without effect`: nothing was noticed, and every byte that is read is right all the same. WRONG: a byte that is read
is not what was written. The same seed gives the same flips. Places:

storage       a file of the published dataset, before it is staged
transit       what two nodes that stage together say to each other
part          what a killed copy left on the node, its journal included
staged        a file of the staged dataset, by a program that puts the time stamp of the last write back
silent        the same by the disk itself: no time of the file moves (our note is made to fit the file)
disk          the same in the image of a real ext4 on a loop device, unmounted meanwhile (left out where nothing can be mounted)
pushed        a file of a result on network storage, before the attempt gets its name
record        record.json, the run's or the attempt's
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from base.errors import PushError, SlipwayError
from base.seal import publish_sealed, read_sealed
from data_prep.cache.layout import open_cache, part_of
from data_prep.push import publish_checked_files, push_files
from data_prep.staging import StagedFiles, StageOptions, stage
from data_prep.staging.chunk_journal import parse_line
from data_prep.staging.copy import CopyOptions
from tests.data_prep.reader.small import random_dataset
from tests.data_prep.staging.disks import ext4
from tests.data_prep.staging.two_nodes import stage_on_two
from tests.data_prep.tree.corpus import contents

CAUGHT, WITHOUT, WRONG = "caught", "without effect", "WRONG"
SIZES: Final = [60_000, 32_768, 1, 33_333]
OPTIONS: Final = StageOptions(patience_s=0.0, copy=CopyOptions(sync_bytes=8_000))
Trial = Callable[[random.Random, Path], str]


class Stopped(Exception):
    """Ends a copy in the middle."""


def flip(chance: random.Random, path: Path) -> None:
    """One bit of the file; its mode and the time of its last write stay."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    path.chmod(0o600)
    path.write_bytes(content)
    path.chmod(status.st_mode & 0o777)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def any_file(chance: random.Random, root: Path) -> Path:
    """By its bytes: a large one more often."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    return chance.choices(files, [path.stat().st_size for path in files])[0]


def judged(staged: StagedFiles, truth: dict[str, bytes], noticed: bool) -> str:
    """What a reader of the staged dataset would get."""
    if contents(staged.root) != truth:
        return WRONG
    return CAUGHT if noticed else WITHOUT


def storage(chance: random.Random, place: Path) -> str:
    source = random_dataset(place / "storage", SIZES)
    truth = contents(source)
    flip(chance, any_file(chance, source))
    try:
        staged = stage(source, place / "cache", options=OPTIONS)
    except SlipwayError:
        return CAUGHT
    return judged(staged, truth, False)


def transit(chance: random.Random, place: Path) -> str:
    source = random_dataset(place / "storage", SIZES)
    truth = contents(source)
    if chance.random() < 0.5:
        stage(source, place / "cache1", options=OPTIONS)  # one node has all: the other gets it all from there
    flip_at = (chance.randrange(2), chance.randrange(sum(SIZES) // 2), chance.randrange(8))
    results = stage_on_two(source, (place / "cache0", place / "cache1"), flip_at, OPTIONS)
    if any(isinstance(result, SlipwayError) for result in results):
        return CAUGHT
    noticed = any(result.lost_peers for result in results if isinstance(result, StagedFiles))
    verdicts = [judged(result, truth, noticed) for result in results if isinstance(result, StagedFiles)]
    return WRONG if WRONG in verdicts else verdicts[0]


def part(chance: random.Random, place: Path) -> str:
    source, cache = random_dataset(place / "storage", SIZES), place / "cache"
    stop_at = chance.randrange(20_000, 120_000)

    def until(done: int, _total: int) -> None:
        if done >= stop_at:
            raise Stopped

    with contextlib.suppress(Stopped):
        stage(source, cache, progress=until, options=OPTIONS)
    left = part_of(open_cache(cache), source.name)
    before = journalled(left)
    flip(chance, any_file(chance, left))
    staged = stage(source, cache, options=OPTIONS)
    return judged(staged, contents(source), staged.resumed_bytes < before)


def journalled(left: Path) -> int:
    """Bytes of the chunks that the journal lists."""
    lines = (left / "staging.journal").read_bytes().splitlines(keepends=True)[1:]
    listed = {chunk for line in lines for chunk in parse_line(line) or ()}
    return sum(min(4096, SIZES[shard] - chunk * 4096) for shard, chunk in listed)


def staged(chance: random.Random, place: Path) -> str:
    source, cache = random_dataset(place / "storage", SIZES), place / "cache"
    flip(chance, any_file(chance, stage(source, cache, options=OPTIONS).root))
    again = stage(source, cache, options=replace(OPTIONS, check_s=0.0))
    return judged(again, contents(source), not again.hit)


def silent(chance: random.Random, place: Path) -> str:
    source, cache = random_dataset(place / "storage", SIZES), place / "cache"
    root = stage(source, cache, options=OPTIONS).root
    shard = any_file(chance, root / f"shard-{chance.randrange(len(SIZES)):05d}.lmdb")
    flip(chance, shard)
    (note,) = (cache / "verified").iterdir()
    known, status = read_sealed(note), shard.stat()
    known["shards"][shard.parent.name][-2:] = [status.st_mtime_ns, status.st_ctime_ns]
    publish_sealed(note, known)
    again = stage(source, cache, options=OPTIONS)
    return judged(again, contents(source), not again.hit)


def disk(chance: random.Random, place: Path) -> str:
    source = random_dataset(place / "storage", SIZES)
    content = (source / "shard-00000.lmdb" / "data.mdb").read_bytes()
    start = chance.randrange(len(content) // 4096) * 4096
    with ext4(place, 16 << 20) as device:
        cache = device.place / "cache"
        stage(source, cache, options=OPTIONS)
        device.unmount()
        image = device.image.read_bytes()
        position = image.find(content[start : start + 64])
        assert position >= 0, "the chunk lies in blocks of the disk"
        with device.image.open("r+b") as file:
            file.seek(position + chance.randrange(4096))
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 1 << chance.randrange(8)]))
        device.mount()
        again = stage(source, cache, options=OPTIONS)
        return judged(again, contents(source), not again.hit)


def pushed(chance: random.Random, place: Path) -> str:
    out, there = place / "out", place / "storage"
    for name, size in (("events-0.jsonl", 5_000), ("logs/rank-0.log", 20_000), ("parameters.safetensors", 30_000), ("cell.json", 500)):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_bytes(chance.randbytes(size))
    there.mkdir()
    half = there / ".1.part-0"
    files = push_files(out, half)
    flip(chance, any_file(chance, half))
    try:
        publish_checked_files(half, files, there / "1")
    except PushError:
        return CAUGHT
    return WITHOUT if contents(there / "1") == contents(out) else WRONG


def record(chance: random.Random, place: Path) -> str:
    logs = [
        {"path": f"logs/rank-{rank}.log", "bytes": chance.randrange(9999), "blake3": f"{chance.getrandbits(256):064x}"} for rank in (0, 1)
    ]
    value: dict[str, Any] = {
        "schema": "slipway.run/1", "run_id": "lenet-digits-b32-n1-g1-8380a70504-r1", "attempt": 1, "status": "ok", "kind": "result",
        "performance": {"step_s": {name: chance.random() for name in ("p50", "p90", "p95", "p99", "mean")}, "samples_per_s": 812.5},
        "training": {"losses": [[step, chance.random()] for step in range(40)]}, "warnings": ["ä"],
        "files": logs,
    }  # fmt: skip
    path = place / "record.json"
    publish_sealed(path, value)
    flip(chance, path)
    try:
        found = read_sealed(path)
    except SlipwayError:
        return CAUGHT
    return WITHOUT if {key: found.get(key) for key in value} == value else WRONG


PLACES: Final[dict[str, Trial]] = {
    "storage": storage, "transit": transit, "part": part, "staged": staged, "silent": silent, "disk": disk, "pushed": pushed,
    "record": record,
}  # fmt: skip


def campaign(trials: int, seed: int, places: list[str]) -> dict[str, Counter[str]]:
    """Per place how often which verdict; the places take turns. A place that needs what is not here is left out."""
    found: dict[str, Counter[str]] = {name: Counter() for name in places}
    for trial in range(trials):
        name = places[trial % len(places)]
        chance = random.Random(f"{seed}-{trial}")  # noqa: S311 - reproducible
        with tempfile.TemporaryDirectory(prefix="slipway-corruption-") as directory, contextlib.suppress(pytest.skip.Exception):
            verdict = PLACES[name](chance, Path(directory))
            found[name][verdict] += 1
            if verdict == WRONG:
                sys.stderr.write(f"WRONG: trial {trial} at {name}\n")
    return found


def main() -> int:
    """Print the table; 1 where anything was WRONG."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--places", default=",".join(PLACES))
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    started = time.monotonic()
    found = campaign(arguments.trials, arguments.seed, arguments.places.split(","))
    total = sum(found.values(), Counter[str]())
    for name, verdicts in (*found.items(), ("all", total)):
        counts = "  ".join(f"{verdicts[verdict]} {verdict}" for verdict in (CAUGHT, WITHOUT, WRONG))
        sys.stdout.write(f"{name:10} {verdicts.total():5}  {counts}\n")
    sys.stdout.write(f"{time.monotonic() - started:.0f} s\n")
    return int(bool(total[WRONG]))


if __name__ == "__main__":
    sys.exit(main())
