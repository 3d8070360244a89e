"""Run one contender: prepare, then do a turn for each line on standard input, and answer with a JSON line.

`python -m benchmarks.data.program '{"contender": ..., "place": ..., ...}'`. It runs in the environment of a peer too, so nothing of Slipway
is imported here but by Slipway's own contenders.
"""

import functools
import importlib
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

SIDE: Final = 256


class Task(NamedTuple):
    """What a contender is asked to do. `source`: a directory of JPEGs by class, or a dataset to be staged; `place`: where it may write;
    `encoding`: jpeg or raw; `side`: of the window that is cut out in training, 0 for the whole image; `cold`: drop the page cache first.
    """

    contender: str
    source: str
    place: str
    encoding: str = "jpeg"
    side: int = 0
    cold: bool = False
    batch: int = 64
    jobs: int = 2
    seconds: float = 2.0
    options: dict[str, Any] = {}


class Done(NamedTuple):
    """What a turn did: samples or bytes, and where it measured them itself, its seconds and the processor's."""

    amount: float
    seconds: float | None = None
    cpu_s: float | None = None


Turn = Callable[[], Done]
Turns = tuple[Callable[[], object], Turn]
"""What is done before each turn without being measured, and the turn."""
Contender = Callable[[Task], Turns]


def files_of(source: str) -> list[tuple[str, int]]:
    """Return the JPEGs of a source with their labels, in the order of their paths."""
    paths = sorted(str(path) for path in Path(source).rglob("*.jpg"))
    return [(path, int(Path(path).parent.name.removeprefix("class"))) for path in paths]


def read_file(path: str) -> bytes:
    """Return the content of a file."""
    with open(path, "rb") as file:
        return file.read()


def pixels_of(content: bytes) -> Any:
    """Decode a JPEG as every contender does that has no decoder of its own."""
    import simplejpeg

    return simplejpeg.decode_jpeg(content)


def sync_tree(place: str | Path) -> None:
    """Wait until all files under a path are on the disk, as Slipway does before it publishes a dataset."""
    root = Path(place)
    for path in [root] if root.is_file() else root.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)


def forget(place: str | Path) -> None:
    """Drop all files under a path from the page cache."""
    root = Path(place)
    for path in [root] if root.is_file() else root.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def remove(place: str | Path) -> None:
    """Remove a file or a tree, if it is there."""
    path = Path(place)
    if path.is_file():
        path.unlink()
    elif path.is_dir():
        shutil.rmtree(path)


def builder(task: Task, build: Callable[[str], object]) -> Turns:
    """Return the turns of a contender that builds a dataset at a path."""
    target, images = task.place + "/built", len(files_of(task.source))

    def turn() -> Done:
        build(target)
        sync_tree(target)
        return Done(images)

    return functools.partial(remove, target), turn


def reader(task: Task, data: str, begin: Callable[[], Iterable[Any]], *, endless: bool = False) -> Turns:
    """Return the turns of a contender whose `begin` starts an epoch, or endless epochs, of (images, labels). A warm one reads for some
    seconds, and to the end of its epoch; a cold one all images once, without anything in the page cache.
    """
    size, images = task.side or SIDE, len(files_of(task.source)) // task.batch * task.batch
    until = 0.0 if task.cold else task.seconds
    least = 1 if task.options.get("first") else images if task.cold else 0

    def turn() -> Done:
        start, cpu, count, seconds = time.perf_counter(), cpu_of_tree(), 0, 0.0
        while count < least or seconds < until:
            batches = iter(begin())
            if endless:  # like those whose processes wait from one turn to the next
                next(batches)
                start, cpu = time.perf_counter(), cpu_of_tree()
            for found, labels in batches:
                if tuple(found.shape[1:]) != (size, size, 3):
                    raise SystemExit(f"a batch has the shape {tuple(found.shape)}")
                count, seconds = count + len(labels), time.perf_counter() - start
                if count >= least and seconds >= until and (endless or least == 1):
                    break
            del batches  # loader processes end here, and take nothing from the turns of others
        return Done(1 if least == 1 else count, seconds, cpu_of_tree() - cpu)

    return functools.partial(forget, data) if task.cold else do_nothing, turn


def do_nothing() -> None:
    """Do nothing before a turn."""


def once(path: str, build: Callable[[str], object]) -> str:
    """Build a dataset at a path, if it is not there from an earlier row; return the path."""
    marker = Path(path + ".complete")
    if not marker.exists():
        remove(path)
        build(path)
        sync_tree(path)
        marker.touch()
    return path


def flip_crop(image: Any, out: Any, side: int) -> None:
    """Copy a random window of an image to `out`, mirrored one time in two, as fast as Python does it: what the peers get whose own
    transforms are slower.
    """
    import cv2

    top, left = random.randrange(image.shape[0] - side + 1), random.randrange(image.shape[1] - side + 1)
    window = image[top : top + side, left : left + side]
    if random.random() < 0.5:
        cv2.flip(window, 1, dst=out)
    else:
        out[:] = window


def cpu_of_tree() -> float:
    """Return the processor seconds of this process, of all that it started, and of what these started, that ended or not."""
    children: dict[int, list[tuple[int, float]]] = {}
    ticks = os.sysconf("SC_CLK_TCK")
    own = 0.0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            seconds = sum(map(int, words[11:15])) / ticks
            children.setdefault(int(words[1]), []).append((int(entry), seconds))
            own = seconds if int(entry) == os.getpid() else own

    def below(pid: int) -> float:
        return sum(seconds + below(child) for child, seconds in children.get(pid, []))

    return own + below(os.getpid())


def contender_of(name: str) -> Contender:
    """Return the contender `module.function`."""
    module, _, function = name.partition(".")
    found: Contender = getattr(importlib.import_module(f"benchmarks.data.{module}"), function)
    return found


def answer_requests(task: Task, requests: Iterable[str]) -> Iterator[dict[str, float]]:
    """Prepare, and yield for each request what a turn did."""
    before, turn = contender_of(task.contender)(task)
    yield {}
    for _ in requests:
        before()
        cpu, begin = cpu_of_tree(), time.perf_counter()
        done = turn()
        seconds = time.perf_counter() - begin
        cpu = cpu_of_tree() - cpu if done.cpu_s is None else done.cpu_s
        yield {"amount": done.amount, "seconds": done.seconds or seconds, "cpu_s": cpu}


def main() -> None:
    """Answer on what standard output was; whatever a peer prints goes to standard error."""
    with open(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for answer in answer_requests(Task(**json.loads(sys.argv[1])), sys.stdin):
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
