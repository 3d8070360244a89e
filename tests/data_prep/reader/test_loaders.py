"""Batches that loader processes read into memory that they share: the order, the memory of a batch, how an iteration goes on, and ends."""

import faulthandler
import itertools
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data_prep.reader import Augmentation, DatasetChanged, DecodeError, Loader, open_dataset, order
from data_prep.reader.loaders import CACHE_BYTES, SPARE, Loaders
from tests.data_prep.reader.small import image_dataset

pytestmark = pytest.mark.processes
SAMPLES = 61
RANDOM = np.random.default_rng(0)
IMAGES = [(RANDOM.integers(0, 256, (6, 5, 3), np.uint8), label) for label in range(SAMPLES)]
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_dataset(tmp_path_factory.mktemp("data"), IMAGES, shards=3)


@pytest.fixture
def split(root: Path) -> Any:
    return open_dataset(str(root)).split("train")


def labels_of(loader: Loader) -> list[int]:
    """The samples of one iteration: here each has its number as its label."""
    return [int(label) for _, labels in loader for label in labels]


def whole(loaders: list[Loader]) -> list[int]:
    """The samples of one iteration of all ranks, global batch after global batch."""
    ranks = [[labels.tolist() for _, labels in loader] for loader in loaders]
    return [sample for batches in zip(*ranks, strict=True) for labels in batches for sample in labels]


# The order


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_the_order_is_one_for_every_number_of_ranks_and_of_workers(split: Any, world: int) -> None:
    for workers in range(5):
        loaders = [Loader(split, 8 // world, 4, rank, world, num_workers=workers) for rank in range(world)]
        for epoch in (0, 1, 5):
            for loader in loaders:
                loader.set_epoch(epoch)
            assert whole(loaders) == order(4, epoch, SAMPLES)[: SAMPLES // 8 * 8].tolist()
        for loader in loaders:
            loader.close()


@pytest.mark.parametrize(("method", "workers"), [("fork", 0), ("fork", 1), ("fork", 3), ("spawn", 2)])
def test_pixels_are_those_of_the_split_and_stay_as_long_as_they_are_kept(split: Any, method: str, workers: int) -> None:
    """Every array of two epochs is kept, which are more than there are slots, and all are as they were when the last one came."""
    loader = Loader(split, 3, seed=2, augmentation="crop-flip", num_workers=workers, start_method=method)
    kept = [batch for _ in range(2) for batch in loader]
    assert len(kept) == 2 * len(loader) == 40
    samples = [part for epoch in range(2) for part in np.split(order(2, epoch, SAMPLES)[:60], 20)]
    for number, (images, labels) in enumerate(kept):
        expected, _ = split.read_many(samples[number], augment=Augmentation("crop-flip", 2, number // 20))
        np.testing.assert_array_equal(images, expected)
        assert labels.tolist() == samples[number].tolist()


def test_the_last_batch_is_divided_among_the_ranks_where_it_is_not_left_out(split: Any) -> None:
    loaders = [Loader(split, 8, rank=rank, world_size=2, shuffle=False, drop_last=False, num_workers=rank) for rank in range(2)]
    assert [len(loader) for loader in loaders] == [4, 4]
    for _ in range(2):
        assert whole(loaders) == list(range(SAMPLES))
    loader = Loader(split, 50, drop_last=False, num_workers=1)
    states = [loader.state_dict()["sample"] for _ in loader]
    assert states == [50, SAMPLES]


# Going on


def test_an_iteration_goes_on_at_any_sample_with_any_number_of_ranks(split: Any) -> None:
    for sample, world, workers in itertools.product((0, 1, 13, 56, 59, 61), (1, 2, 4), (0, 2)):
        loaders = [Loader(split, 4 // world, 7, rank, world, num_workers=workers) for rank in range(world)]
        for loader in loaders:
            loader.load_state_dict({"epoch": 3, "sample": sample})
            assert loader.epoch == 3
            loader.set_epoch(3)  # as a program does in each epoch
        left = order(7, 3, SAMPLES)[sample:]
        assert whole(loaders) == left[: len(left) // 4 * 4].tolist()
        assert [loader.epoch for loader in loaders] == [4] * world
        assert whole(loaders) == order(7, 4, SAMPLES)[:60].tolist()
        for loader in loaders:
            loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_is_that_of_what_was_used_and_not_of_what_was_read_ahead(split: Any, workers: int) -> None:
    loader = Loader(split, 8, num_workers=workers)
    states = [json.loads(json.dumps(loader.state_dict())) for epoch in range(2) for _ in loader]
    assert [(state["epoch"], state["sample"]) for state in states] == [(epoch, 8 * number) for epoch in range(2) for number in range(1, 8)]
    assert loader.state_dict()["epoch"] == 2
    expected = order(0, 1, SAMPLES)[:56].tolist()
    for state, used in ((states[6], 56), (states[9], 24), (states[13], 56)):  # the end of an epoch: the next iteration has nothing left
        again = Loader(split, 8, num_workers=workers)
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert labels_of(again) == (expected[used:] if state["epoch"] == 1 else [])


def test_a_state_of_another_order_is_refused(split: Any) -> None:
    loader = Loader(split, 8, num_workers=0)
    state = loader.state_dict()
    for key, words in (("seed", "seed 5, this loader 0"), ("samples", "samples 5, this loader 61")):
        with pytest.raises(ValueError, match=words):
            loader.load_state_dict({**state, key: 5})
    with pytest.raises(ValueError, match="there is no Position"):
        loader.load_state_dict({**state, "sample": 62})
    assert labels_of(loader) == order(0, 0, SAMPLES)[:56].tolist()
    with pytest.raises(ValueError, match=r"the state \{\} has no epoch and sample"):
        loader.load_state_dict({})


def test_a_wrong_argument_is_named_with_what_is_right(root: Path, split: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="num_workers -1; valid: 0 or more"):
        Loader(split, 8, num_workers=-1)
    with pytest.raises(ValueError, match="start method 'thread' is not known; valid: fork, spawn"):
        Loader(split, 8, start_method="thread")
    with pytest.raises(ValueError, match=r"of 64 out of 61 samples; drop_last=False keeps an incomplete batch$"):
        Loader(split, 64)
    with pytest.raises(TypeError, match=r"open_dataset\(path\).split\(name\), not of Dataset"):
        Loader(open_dataset(str(root)), 8)
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ValueError, match="its path in sys.executable, which is ''; 'fork' serves all"):
        Loader(split, 8, start_method="spawn")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iteration_that_was_left_begins_anew(split: Any, workers: int) -> None:
    loader = Loader(split, 8, num_workers=workers)
    first, *later = (order(0, epoch, SAMPLES)[:56].tolist() for epoch in range(3))
    assert next(iter(loader))[1].tolist() == first[:8]
    assert loader.state_dict()["sample"] == 8
    assert labels_of(loader) == first
    assert labels_of(loader) == later[0]
    loader.set_epoch(2)
    assert labels_of(loader) == later[1]
    loader.set_epoch(0)
    assert labels_of(loader) == first
    loader.close()
    assert labels_of(loader) == later[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_of_two_iterations_the_first_one_ends(split: Any, workers: int) -> None:
    loader = Loader(split, 8, num_workers=workers)
    one = iter(loader)
    next(one)
    other = iter(loader)
    assert next(other)[1].tolist() == order(0, 0, SAMPLES)[:8].tolist()
    with pytest.raises(RuntimeError, match="this iteration is over"):
        next(one)
    assert len(list(other)) == 6
    one = iter(loader)
    next(one)
    loader.set_epoch(9)
    with pytest.raises(RuntimeError, match="this iteration is over"):
        next(one)


# Processes


def children() -> list[int]:
    return [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = children()
    yield
    assert children() == before


def test_two_loaders_in_one_process_do_not_disturb_each_other(split: Any) -> None:
    one, other = (Loader(split, 4, seed=seed, num_workers=2) for seed in (1, 2))
    pairs = [(first[1].tolist(), second[1].tolist()) for first, second in zip(one, other, strict=True)]
    assert [sample for first, _ in pairs for sample in first] == order(1, 0, SAMPLES)[:60].tolist()
    assert [sample for _, second in pairs for sample in second] == order(2, 0, SAMPLES)[:60].tolist()


def kill_one_of(loader: Loader, words: str) -> None:
    """Kill a loader process. The error of the iteration is the number of the process, between words."""
    before = set(children())
    iteration = iter(loader)
    next(iteration)
    pid = min(set(children()) - before)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=words % pid):
        for _ in iteration:
            pass
    assert set(children()) == before


def test_a_loader_process_that_is_killed_is_named_and_the_next_iteration_has_new_ones(split: Any) -> None:
    loader = Loader(split, 1, num_workers=3)
    kill_one_of(loader, "loader process %d is killed by signal SIGKILL")
    used = loader.state_dict()["sample"]
    assert used >= 1
    loader.load_state_dict(loader.state_dict())
    assert labels_of(loader) == order(0, 0, SAMPLES)[used:].tolist()


def test_a_program_that_ignores_its_children_has_a_loader_too(split: Any) -> None:
    """The kernel waits for its children then. Whether one has ended is seen, but not how."""
    handler = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        loader = Loader(split, 8, num_workers=2)
        assert labels_of(loader) == order(0, 0, SAMPLES)[:56].tolist()
        loader.close()
        kill_one_of(Loader(split, 1, num_workers=2), "loader process %d has ended; its exit code is lost")
    finally:
        signal.signal(signal.SIGCHLD, handler)


def test_a_process_that_cannot_be_forked_leaves_no_descriptor(split: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(os, "fork", fail)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(BlockingIOError):
        next(iter(Loader(split, 8, num_workers=2)))
    assert os.listdir("/proc/self/fd") == before
    assert len(list(Loader(split, 8, num_workers=2, start_method="spawn"))) == 7  # and nothing that may not be forked is forked


def test_new_pythons_start_side_by_side(split: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one waits for the second one before it reads what it is sent, which is more than a pipe holds."""
    os.mkfifo(tmp_path / "second")
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\ncd {tmp_path}\nif mkdir first; then : < second; else : > second; fi\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    split.more = bytes(1 << 20)
    found: list[int] = []
    loader = Loader(split, 8, num_workers=2, start_method="spawn")
    thread = threading.Thread(target=lambda: found.extend(labels_of(loader)))
    thread.start()
    thread.join(60)
    waits = thread.is_alive()
    release = os.open(tmp_path / "second", os.O_RDWR)  # lets one go that still waits
    thread.join()
    os.close(release)
    loader.close()
    assert (tmp_path / "first").is_dir()
    assert not waits
    assert found == order(0, 0, SAMPLES)[:56].tolist()


def test_another_thread_gets_processes_of_its_own(split: Any) -> None:
    """Since those of a thread end with it."""
    loader = Loader(split, 8, num_workers=2)
    found: list[int] = []
    for epoch in range(2):
        thread = threading.Thread(target=lambda: found.extend(labels_of(loader)))
        thread.start()
        thread.join()
        assert found == order(0, epoch, SAMPLES)[:56].tolist()
        found.clear()


def test_a_forked_process_leaves_the_processes_of_its_parent_alone(split: Any) -> None:
    loader = Loader(split, 8, num_workers=2)
    iteration = iter(loader)
    first = next(iteration)[1].tolist()
    pid = os.fork()
    if pid == 0:
        same = labels_of(loader) == order(0, 0, SAMPLES)[:56].tolist()
        del iteration
        loader.close()
        os._exit(0 if same else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert [*first, *(int(label) for _, labels in iteration for label in labels)] == order(0, 0, SAMPLES)[:56].tolist()


IN_A_RANK = """
import os, sys
from multiprocessing import get_context
from data_prep.reader import Loader, open_dataset

def rank(number, root, answers):
    loader = Loader(open_dataset(root).split("train"), 8, rank=number, world_size=2, num_workers=2, start_method=sys.argv[2])
    answers.put((number, [labels.tolist() for _, labels in loader]))

if __name__ == "__main__":
    context = get_context(sys.argv[3])
    answers = context.SimpleQueue()
    ranks = [context.Process(target=rank, args=(number, sys.argv[1], answers), daemon=True) for number in range(2)]
    for one in ranks:
        one.start()
    found = dict(answers.get() for _ in ranks)
    for one in ranks:
        one.join()
    print([sample for batches in zip(found[0], found[1]) for labels in batches for sample in labels])
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_ranks_that_were_forked_or_spawned_have_loader_processes(root: Path, tmp_path: Path, method: str, start: str) -> None:
    """Also as daemons, which multiprocessing lets have no children."""
    program = tmp_path / "ranks.py"
    program.write_text(IN_A_RANK)
    argv = [sys.executable, str(program), str(root), method, start]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == order(0, 0, SAMPLES)[:48].tolist()


PARENT = """
import os, sys, threading
from data_prep.reader import Loader, open_dataset
loaders = [Loader(open_dataset(sys.argv[1]).split("train"), 8, num_workers=2, start_method=sys.argv[2]) for _ in range(2)]
iterations = [iter(loader) for loader in loaders]
for one in iterations:
    next(one)
print(*open("/proc/self/task/%d/children" % os.getpid()).read().split(), flush=True)
threading.Event().wait()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_loader_processes_end_with_their_parent(root: Path, method: str) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, root, method], stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        handles = [os.pidfd_open(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(handles) == 4
        parent.kill()
        for handle in handles:
            assert select.select([handle], [], [], 30)[0]
            os.close(handle)


class Failing:
    """A reading whose process is killed, or raises an error, at the sixth batch."""

    def __init__(self, failure: Callable[[], object]) -> None:
        self.failure = failure

    def fill(self, place: int, _slot: Any, _coming: int) -> tuple[int, int]:
        if place == 5:
            self.failure()
        return 1, 0


def unknown() -> None:
    class Local(Exception):
        pass

    raise Local("of a class that nobody else knows")


def exhausted() -> None:
    class _ArrayMemoryError(MemoryError):
        pass

    raise _ArrayMemoryError("too large")


def undecodable() -> None:
    raise DecodeError("shard-00000.lmdb, sample 00000007: it is cut")


def bus_error() -> None:
    faulthandler.disable()  # which would print where this is
    os.kill(os.getpid(), signal.SIGBUS)


@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        (unknown, RuntimeError, "^Local: of a class that nobody else knows$"),
        (exhausted, MemoryError, "^too large$"),
        (undecodable, DecodeError, "sample 00000007: it is cut"),
        (lambda: os._exit(3), RuntimeError, "has ended with exit code 3"),
        (lambda: os.kill(os.getpid(), signal.SIGUSR1), RuntimeError, "is killed by signal SIGUSR1$"),
        (lambda: os.kill(os.getpid(), signal.SIGRTMIN + 5), RuntimeError, f"is killed by signal {signal.SIGRTMIN + 5}$"),
        (bus_error, DatasetChanged, "is killed by signal SIGBUS: a shard was cut while it was read, or"),
    ],
)
def test_an_error_in_a_loader_process_is_raised_with_its_type(failure: Any, kind: type[Exception], words: str) -> None:
    found = []
    with pytest.raises(kind, match=words) as caught:
        found.extend(Loaders(Failing(failure), 30, 3, (2, 2), np.uint8).batches())
    assert len(found) == 5
    if failure in (unknown, exhausted, undecodable):
        assert str(caught.value.__cause__).startswith("in a loader process:\nTraceback")


def test_a_shard_that_is_cut_while_a_loader_process_copies_it_is_an_error(tmp_path: Path) -> None:
    """It is cut at another moment and in another place each time; the process may find that, or be killed by the page that is gone. It is a
    new Python, in which no handler prints where that is."""
    root = image_dataset(tmp_path, [(RANDOM.integers(0, 256, (128, 128, 3), np.uint8), label) for label in range(64)], shards=1)
    path = root / "shard-00000.lmdb" / "data.mdb"
    content = path.read_bytes()
    for trial in range(8):
        loader = Loader(open_dataset(str(root)).split("train"), 64, num_workers=1, start_method="spawn")
        batches = (batch for _ in itertools.count() for batch in loader)
        for _ in range(trial + 6):  # the first ones are not copied from the map
            next(batches)
        os.truncate(path, int(RANDOM.integers(2, len(content) // 4096)) * 4096)
        with pytest.raises(
            DatasetChanged, match=r"shard-00000.lmdb has \d+ bytes, its manifest says|by signal SIGBUS: a shard was cut while"
        ):
            for _ in batches:
                pass
        path.write_bytes(content)


class Idle:
    def fill(self, _place: int, _slot: Any, _coming: int) -> tuple[int, int]:
        return 1, 0


def test_large_batches_have_no_more_slots_than_needed() -> None:
    """One for each process, beside the spare ones; small ones have a few ahead."""
    for processes, side, slots in ((8, 256, 8), (8, 28, 32), (1, 256, 2)):
        loaders = Loaders(Idle(), 0, processes, (64, side, side, 3), np.uint8)
        assert len(loaders.slots) == slots + SPARE
        assert 64 * side * side * 3 * (slots - processes) <= CACHE_BYTES
        list(loaders.batches())
        next(loaders.batches(), None)
        loaders.batches().close()


class Clock:
    """A clock: each look at it is later by the next of `seconds`."""

    def __init__(self, *seconds: float) -> None:
        self.now = 0.0
        self.seconds = itertools.cycle(seconds)

    def perf_counter(self) -> float:
        self.now += next(self.seconds)
        return self.now


@pytest.mark.parametrize(("seconds", "active"), [((1.0, 1.0, 0.0), 5), ((1.0, 0.0, 0.0), 2)], ids=["waiting", "not waiting"])
def test_who_waits_gets_more_processes_and_who_does_not_keeps_two(
    monkeypatch: pytest.MonkeyPatch, seconds: tuple[float, ...], active: int
) -> None:
    from data_prep.reader import loaders

    monkeypatch.setattr(loaders, "time", Clock(*seconds))  # from batch to question, then waiting, then nothing
    ours = Loaders(Idle(), 40, 5, (2, 2), np.uint8)
    assert len(list(ours.batches())) == 40
    assert ours.active == active
