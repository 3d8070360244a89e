"""Measure the rows of docs/explanation/performance.md: Slipway and its peers take turns, and the table has medians, ranges and ratios.

    make bench-data [ROWS="W1 R1"] [SIZE=0.1] [REPEATS=5] [WRITE=yes]
    python -m benchmarks.data [--rows W1 R1] [--size 0.1] [--repeats 5] [--write] [--no-peers]

A round is one turn of each contender of a row; rounds go there and back. So noise that lasts longer than a round meets all of them, and
the ratios are those of the same round. Every contender is prepared before the first round and does one turn that is not counted.
"""

import argparse
import contextlib
import datetime
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.data import environments, table
from benchmarks.data.own import make_dataset, make_photos
from benchmarks.data.program import Task
from benchmarks.data.table import IMAGES, MEGABYTES, SECONDS, Measured, Turn, Unit

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "explanation" / "performance.md"
ANSWER_LIMIT_S: Final = 1800.0
END_LIMIT_S: Final = 60.0
WINDOW: Final = 224
JPEGS, RAW, STAGED_BYTES = 20_000, 10_000, 2_000_000_000
"""Images of the rows with JPEGs and with raw pixels, bytes of the rows of staging, at --size 1."""


class Contender(NamedTuple):
    """Who takes part in a row: a function of `own` or `peers`, the environment it needs (empty: Slipway's), what differs from the row."""

    label: str
    function: str
    peer: str = ""
    task: dict[str, Any] = {}


class Row(NamedTuple):
    """A row of the table. The first contender is Slipway."""

    name: str
    title: str
    unit: Unit
    source: str
    contenders: tuple[Contender, ...]
    task: dict[str, Any] = {}


def _peers(*names: str, verb: str, label: str = "", options: dict[str, Any] | None = None) -> tuple[Contender, ...]:
    words, task = {"mds": "MosaicML streaming"}, {"options": options} if options else {}
    return tuple(Contender(f"{words.get(name, name)}{label}", f"peers.{name}_{verb}", name, task) for name in names)


LMDB_LOADER = Contender("DataLoader over LMDB", "peers.dataloader_lmdb_read")
OWN_READERS = (
    Contender("Slipway", "own.slipway_read"),
    Contender("Slipway's Loader, for programs of one's own", "own.slipway_read", task={"options": {"torch": "Loader"}}),
    Contender("Slipway's dataset in a DataLoader", "own.slipway_read", task={"options": {"torch": "Batches"}}),
)
WARM_READERS = (*_peers("ffcv", "litdata", "mds", "webdataset", verb="read"), LMDB_LOADER)
FOLDER_AND_LIMIT = (
    Contender("DataLoader over the folder, Pillow", "peers.dataloader_folder_read"),
    Contender("limit: bare decoding in two threads", "own.decode_limit"),
)
ROWS: Final = (
    Row(
        "W1",
        "build, JPEG passed through",
        IMAGES,
        "jpegs",
        (
            Contender("Slipway", "own.slipway_build"),
            Contender("tar", "own.tar_build"),
            *_peers("litdata", "ffcv", "mds", "webdataset", "tensorpack", verb="build"),
        ),
    ),
    Row(
        "W1-decode",
        "build, JPEG passed through, every image decoded",
        IMAGES,
        "jpegs",
        (
            Contender("Slipway", "own.slipway_build", task={"options": {"check": "decode", "statistics": "all"}}),
            Contender("limit: bare decoding in two threads", "own.decode_limit"),
        ),
    ),
    Row(
        "W2",
        "build, raw",
        IMAGES,
        "raw",
        (Contender("Slipway", "own.slipway_build"), *_peers("ffcv", "litdata", "mds", "tensorpack", verb="build")),
        {"encoding": "raw"},
    ),
    Row(
        "R1",
        "read raw batches, whole images",
        IMAGES,
        "raw",
        (*OWN_READERS, *WARM_READERS, Contender("limit: copies of two processes", "own.copy_limit")),
        {"encoding": "raw"},
    ),
    Row(
        "R1-crop",
        "read raw batches, random windows of 224, mirrored at random",
        IMAGES,
        "raw",
        (
            *OWN_READERS,
            *_peers("ffcv", verb="read"),
            *_peers("ffcv", verb="read", label=", a decoder written for it", options={"fused": True}),
            *_peers("litdata", "mds", "webdataset", verb="read"),
            LMDB_LOADER,
            Contender("Slipway, pixels copied by numpy", "own.slipway_read", task={"options": {"numpy": True}}),
            Contender("limit: copies of windows in two processes", "own.copy_limit"),
        ),
        {"encoding": "raw", "side": WINDOW},
    ),
    Row(
        "R2",
        "read JPEG batches, whole images",
        IMAGES,
        "jpegs",
        (*OWN_READERS, *WARM_READERS, *FOLDER_AND_LIMIT),
    ),
    Row(
        "R2-crop",
        "read JPEG batches, random windows of 224, mirrored at random",
        IMAGES,
        "jpegs",
        (*OWN_READERS, *WARM_READERS, *FOLDER_AND_LIMIT),
        {"side": WINDOW},
    ),
    Row(
        "R3",
        "read raw batches, cold",
        IMAGES,
        "raw",
        (
            Contender("Slipway", "own.slipway_read"),
            Contender("Slipway, past the page cache", "own.slipway_read", task={"options": {"past_cache": True}}),
            LMDB_LOADER,
            Contender("fio, random reads of 192 KiB, eight at a time", "own.fio_read", "fio"),
        ),
        {"encoding": "raw", "cold": True},
    ),
    Row(
        "R3-first",
        "first batch, raw, cold",
        SECONDS,
        "raw",
        (Contender("Slipway", "own.slipway_read"), LMDB_LOADER),
        {"encoding": "raw", "cold": True, "options": {"first": True}},
    ),
    Row(
        "R3-jpeg",
        "read JPEG batches, cold",
        IMAGES,
        "jpegs",
        (Contender("Slipway", "own.slipway_read"), LMDB_LOADER, Contender("Slipway, warm", "own.slipway_read", task={"cold": False})),
        {"cold": True},
    ),
    Row(
        "S1",
        "copy a dataset from a disk to a disk, verified",
        MEGABYTES,
        "dataset",
        (
            Contender("Slipway", "own.slipway_stage"),
            Contender("dd past the page cache, and read back", "own.dd_copy", task={"options": {"read_back": True}}),
            Contender("dd past the page cache, not verified", "own.dd_copy"),
            Contender("rsync -a", "own.rsync_copy", "rsync"),
            Contender("cp -r, not verified", "own.cp_copy"),
        ),
    ),
    Row(
        "S2",
        "the same, from half of it on",
        SECONDS,
        "dataset",
        (
            Contender("Slipway", "own.slipway_resume"),
            Contender("Slipway, from the beginning", "own.slipway_stage"),
            Contender("rsync --append-verify", "own.rsync_resume", "rsync"),
        ),
    ),
)
NAMES: Final = tuple(row.name for row in ROWS)


class Failed(Exception):
    """A contender ended, with the last line that it wrote."""


class Running:
    """A contender in a process of its own, which waits between its turns."""

    def __init__(self, contender: Contender, task: Task, stack: ExitStack) -> None:
        python = environments.python_of(contender.peer) if contender.peer in environments.PEERS else Path(sys.executable)
        argv = [str(python), "-m", "benchmarks.data.program", json.dumps(task._asdict())]
        self.log = stack.enter_context(tempfile.TemporaryFile("w+"))  # noqa: SIM115, it lives as long as the stack
        environ = {**os.environ, "TMPDIR": task.place, "PYTHONWARNINGS": "ignore"}
        self.process = stack.enter_context(
            subprocess.Popen(argv, cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True)
        )
        stack.callback(self.end)

    def end(self) -> None:
        """Let the contender end by itself, with the processes that it started; kill it where it does not."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def answer(self) -> dict[str, float]:
        """Return the next answer. Raises Failed where the process has ended."""
        assert self.process.stdout is not None
        timer = threading.Timer(ANSWER_LIMIT_S, self.process.kill)  # the writer of one peer waits for ever where a worker of its died
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:  # also when the measurement is interrupted: the end of the program waits for the timer
            timer.cancel()
        if not line:
            self.log.seek(0)
            words = self.log.read().strip().splitlines()
            sys.stderr.write("\n".join(words[-20:]) + "\n")
            raise Failed(words[-1][:100] if words else f"it ended with {self.process.wait()}")
        found: dict[str, float] = json.loads(line)
        return found

    def turn(self) -> Turn:
        """Let the contender do a turn."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the answer tells what happened
            self.process.stdin.write("turn\n")
            self.process.stdin.flush()
        return Turn(**self.answer())


def measure(row: Row, sources: dict[str, Path], work: Path, repeats: int, options: dict[str, Any]) -> list[Measured]:
    """Let the contenders of a row take turns. One that fails is left out from then on, and the table says why."""
    turns: dict[str, list[Turn]] = {}
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        running = {}
        for contender in row.contenders:
            if reason := environments.missing(contender.peer):
                failed[contender.label] = reason
                continue
            values = {**row.task, **contender.task, **options}
            place = work / (contender.function.partition(".")[2] + ("-cold" if values.get("cold") else ""))
            place.mkdir(exist_ok=True)
            task = Task(contender.function, str(sources[row.source]), str(place), **values)
            sys.stderr.write(f"{row.name}: preparing {contender.label}\n")
            one = Running(contender, task, stack)
            try:
                one.answer()
                one.turn()
            except Failed as error:
                failed[contender.label] = str(error)
            else:
                running[contender.label], turns[contender.label] = one, []
        for number in range(repeats):
            for label in sorted(running, reverse=bool(number % 2), key=list(running).index):
                try:
                    turns[label].append(running[label].turn())
                except Failed as error:
                    failed[label] = str(error)
            running = {label: one for label, one in running.items() if label not in failed}
            sys.stderr.write(f"{row.name}: round {number + 1} of {repeats} is done\n")
    return [
        Measured(
            label_of(contender),
            () if contender.label in failed else tuple(turns[contender.label]),
            failed.get(contender.label, ""),
        )
        for contender in row.contenders
    ]


def label_of(contender: Contender) -> str:
    """Return the label of a contender with its version."""
    found = environments.version(contender.peer) if contender.peer else ""
    return f"{contender.label} ({found})" if found else contender.label


def make_sources(rows: list[Row], work: Path, size: float) -> dict[str, Path]:
    """Make what the rows read: JPEGs, fewer JPEGs for raw images, a dataset to be staged."""
    made = {}
    for name in sorted({row.source for row in rows}):
        sys.stderr.write(f"making the source {name}\n")
        made[name] = work / name
        if name == "dataset":
            made[name] = make_dataset(work / name, max(1 << 21, int(STAGED_BYTES * size)), 2)
        else:
            make_photos(made[name], max(128, int((JPEGS if name == "jpegs" else RAW) * size)))
    return made


def describe_machine() -> str:
    """Return in words on which machine this runs, with which versions."""
    models = [line.partition(":")[2].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("numpy", "lmdb", "simplejpeg", "torch"))
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} cores ({models[0] if models else platform.machine()}), {memory:.0f} GiB of memory, Linux {platform.release()}, "
        f"Python {platform.python_version()}, {versions}"
    )


def describe_measurement(repeats: int, size: float) -> str:
    """Return in words when and how a row was measured, with the load of the machine: above its cores, others were at work."""
    day, load = datetime.datetime.now(tz=datetime.UTC).date().isoformat(), os.getloadavg()[2]
    return f"{day}, {repeats} round{'' if repeats == 1 else 's'}, {'' if size == 1 else f'size {size:g}, '}load {load:.0f}"


def parse_positive(text: str) -> float:
    """Return the number of an option. Raises ArgumentTypeError for one that nothing can be measured with."""
    if not 0 < (number := float(text)) < math.inf:
        raise argparse.ArgumentTypeError(f"found {text}; valid: a number above 0")
    return number


def parse_count(text: str) -> int:
    """Return the whole number of an option. Raises ArgumentTypeError for one below 1."""
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"found {text}; valid: a whole number from 1")
    return number


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.data", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="*", default=[], choices=NAMES, metavar="ROW", help=f"which of {', '.join(NAMES)} (all)")
    parser.add_argument("--size", type=parse_positive, default=1.0, help="1: 20,000 JPEGs, 10,000 raw images, 2 GB to stage")
    parser.add_argument("--repeats", type=parse_count, default=5, help="rounds that count (5)")
    parser.add_argument("--batch", type=parse_count, default=64, help="images in a batch (64)")
    parser.add_argument(
        "--jobs", type=parse_count, default=len(os.sched_getaffinity(0)), help="worker processes of each contender (the cores)"
    )
    parser.add_argument("--seconds", type=parse_positive, default=2.0, help="a warm reader reads whole epochs for so long in a turn (2)")
    parser.add_argument("--no-peers", action="store_true", help="only what needs no environment of its own")
    parser.add_argument("--write", action="store_true", help="put the rows into docs/explanation/performance.md")
    parser.add_argument("--dir", type=Path, default=ROOT / ".slipway", help="on the disk that is measured (.slipway)")
    return parser.parse_args(words)


def main() -> None:
    """Measure the rows and print the table."""
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that its files, up to 25 GB, are removed then as well
    rows = [row for row in ROWS if row.name in (arguments.rows or NAMES)]
    if arguments.no_peers:
        rows = [row._replace(contenders=tuple(one for one in row.contenders if not one.peer)) for row in rows]
    environments.prepare({contender.peer for row in rows for contender in row.contenders if contender.peer})
    options = {"batch": arguments.batch, "jobs": arguments.jobs, "seconds": arguments.seconds}
    arguments.dir.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bench-data-", dir=arguments.dir) as name:
        sources = make_sources(rows, Path(name), arguments.size)
        for row in rows:
            found = measure(row, sources, Path(name), arguments.repeats, options)
            new = table.lines((row.name, row.title), row.unit, found, describe_measurement(arguments.repeats, arguments.size))
            lines += new
            if arguments.write:
                PAGE.write_text(table.with_table(PAGE.read_text(), new, NAMES, describe_machine()))
    print(f"{describe_machine()}\n\n{table.as_table(lines)}")


if __name__ == "__main__":
    main()
