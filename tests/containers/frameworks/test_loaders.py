"""PyTorch's loader processes: the order of batches, who gets them, how they end, and the memory that a GPU copies from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from containers.frameworks import load_framework
from tests.gpu import NEEDS_GPU

pytestmark = pytest.mark.slow
TIMEOUT_S = 120
Run = Callable[..., Any]

START = """
import json, os, signal, sys
import numpy as np, slipway_reader, torch
from slipway_program.plan import Plan
from slipway_pytorch import feed, loaders

dataset = slipway_reader.open_dataset(os.environ["DATA"])
split = dataset.split("train")

def make_plan(steps, batch=8, first=0):
    groups = dataset.groups("train")
    return Plan(3, first, steps, batch, rank=0, world_size=1, train_groups=groups, eval_split=None, eval_groups=())

def make_loaders(plan, processes):
    reading = feed._Reading(dataset, plan)
    return loaders.Loaders(reading.fill, len(reading.order), processes, (plan.batch_size, *dataset.size, dataset.channels), np.uint8)
"""


@pytest.fixture
def script(lib: Path, datasets: Callable[[str], Path], tmp_path: Path) -> Run:
    """script(text, data="photos") -> what it printed as JSON, after START."""

    def run(text: str, data: Path | None = None) -> Any:
        paths = os.pathsep.join([str(lib), str(load_framework("pytorch").folder)])
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "DATA": str(data or datasets("photos"))}
        argv = [sys.executable, "-c", START + text]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


ORDER = """
found = []
for processes in (1, 2, 4):
    plan = make_plan(30, first=5)
    got = [(images.numpy().copy(), labels.tolist()) for images, labels in feed.start_reading(dataset, plan, processes)]
    expected = [split.read_many(plan.share(number).indices)[:2] for number in range(5, 30)]
    found.append(len(got) == len(expected) and all(
        np.array_equal(one[0], other[0]) and one[1] == other[1].tolist() for one, other in zip(got, expected)
    ))
print(json.dumps(found))
"""


def test_batches_come_in_the_order_of_the_plan_for_every_number_of_processes(script: Run) -> None:
    assert script(ORDER) == [True, True, True]


GROWING = """
class Clock:  # each look at it is `seconds` later
    now = 0.0
    def __init__(self, *seconds):
        self.seconds = seconds
        self.looks = 0
    def perf_counter(self):
        Clock.now += self.seconds[self.looks % len(self.seconds)]
        self.looks += 1
        return Clock.now

found = []
for seconds in ((1.0, 1.0, 0.0), (1.0, 0.0, 0.0)):  # from batch to question, then waiting, then nothing
    loaders.time = Clock(*seconds)
    ours = make_loaders(make_plan(40), 5)
    slots = {id(slot) for slot, _, _ in ours.batches()}
    found.append([ours.active, len(slots) <= len(ours.slots)])
print(json.dumps(found))
"""


def test_who_waits_gets_more_processes_and_who_does_not_keeps_two(script: Run) -> None:
    assert script(GROWING) == [[5, True], [2, True]]


RING = """
large = loaders.Loaders(lambda *_: (1, 0), 0, 8, (64, 256, 256, 3), np.uint8)
small = loaders.Loaders(lambda *_: (1, 0), 0, 8, (64, 28, 28, 1), np.uint8)
one = loaders.Loaders(lambda *_: (1, 0), 0, 1, (64, 256, 256, 3), np.uint8)
print(json.dumps([len(large.slots), len(small.slots), len(one.slots)]))
"""


def test_large_batches_have_no_more_slots_than_needed(script: Run) -> None:
    """One for each process, beside the one in use and one that a GPU still copies; small ones have a few ahead."""
    assert script(RING) == [10, 34, 4]


FAILING = """
ours = feed.start_reading(dataset, make_plan(30), 2)
try:
    for _ in ours:
        pass
except slipway_reader.DatasetChanged as error:
    print(json.dumps([str(error), str(error.__cause__)]))
"""


def test_an_error_in_a_loader_process_is_raised_with_its_type(script: Run, datasets: Callable[[str], Path], tmp_path: Path) -> None:
    source = datasets("photos")
    for file in source.rglob("*"):
        if file.is_file():
            target = tmp_path / "cut" / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    shard = tmp_path / "cut" / "shard-00000.lmdb" / "data.mdb"
    os.truncate(shard, shard.stat().st_size - 4096)
    message, cause = script(FAILING, data=tmp_path / "cut")
    assert "shard-00000.lmdb has" in message
    assert "stage the dataset again" in message
    assert cause.startswith("in a loader process:\nTraceback")


KILLED = """
def fill(place, slot, coming):
    if place == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return 1, 0

def refuse(place, slot, coming):
    class Local(Exception):
        pass
    raise Local("of a class that nobody else knows")

def exhaust(place, slot, coming):
    class _ArrayMemoryError(MemoryError):
        pass
    raise _ArrayMemoryError("too large")

found = []
for function in (fill, refuse, exhaust):
    ours = loaders.Loaders(function, 30, 3, (2, 2), np.uint8)
    try:
        for number, _ in enumerate(ours.batches()):
            pass
    except (RuntimeError, MemoryError) as error:
        found.append(f"{type(error).__name__}: {error}")
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    found.append("no child is left")
print(json.dumps(found))
"""


def test_a_loader_process_that_is_killed_is_named_and_no_process_stays(script: Run) -> None:
    killed, *others = script(KILLED)
    assert killed.startswith("RuntimeError: loader process ")
    assert killed.endswith(" is killed by signal: Killed")
    assert others == ["RuntimeError: Local: of a class that nobody else knows", "MemoryError: too large", "no child is left"]


OVERLAPPING = """
signal.alarm(60)
ours = [loaders.Loaders(lambda *_: (1, 0), 30, 2, (2, 2), np.uint8).batches() for _ in range(3)]
for batches in ours:
    next(batches)
for batches in ours:
    batches.close()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print(json.dumps("no child is left"))
"""


def test_loader_processes_end_although_others_that_were_forked_later_have_their_pipes(script: Run) -> None:
    assert script(OVERLAPPING) == "no child is left"


PINNED = """
calls = []
class Cudart:
    def __init__(self, code):
        self.code = code
    def cudaHostRegister(self, address, size, flags):
        calls.append(["register", size % 4096, flags])
        return self.code
    def cudaHostUnregister(self, address):
        calls.append(["unregister"])

class Event:
    def query(self):
        calls.append(["query"])
        return False
    def synchronize(self):
        calls.append(["synchronize"])

class Stream:
    def record_event(self):
        return Event()

torch.cuda.current_stream = lambda device: Stream()
torch.Tensor.pin_memory = lambda tensor: calls.append(["pin_memory"]) or tensor
device = torch.device("meta")
found = []
for code in (0, 1):
    calls.clear()
    torch.cuda.cudart = lambda: Cudart(code)
    batches = feed.start_reading(dataset, make_plan(6), 1)
    shapes = [[list(feed.to_device(tensor, device).shape) for tensor in batch] for batch in batches]
    names = [call[0] for call in calls]
    found.append({name: names.count(name) for name in names})
    found.append(shapes == [[[8, *dataset.size, dataset.channels], [8]]] * 6)
calls.clear()
feed.to_device(torch.zeros(3), device)
print(json.dumps([*found, [call[0] for call in calls]]))
"""


def test_a_gpu_copies_from_registered_slots_and_where_that_is_refused_from_pinned_memory(script: Run) -> None:
    """With a stand-in for CUDA, which registers the slots that are used, each once. A slot is filled again when both copies of it ended."""
    registered, whole, refused, whole_too, no_slot = script(PINNED)
    assert whole
    assert whole_too
    assert 2 <= registered["register"] == registered["unregister"] <= 6
    assert registered["synchronize"] == 12
    assert registered["query"] > 0
    assert "pin_memory" not in registered
    assert refused == {"register": 1, "pin_memory": 12}
    assert no_slot == ["pin_memory"]


ON_A_GPU = """
device = torch.device("cuda", 0)
plan = make_plan(40)
found = [[feed.to_device(tensor, device) for tensor in batch] for batch in feed.start_reading(dataset, plan, 2)]
registered = []
for images, labels in feed.start_reading(dataset, plan, 2):
    feed.to_device(images, device)
    registered.append(len(feed._pinned._registered))
same = [np.array_equal(images.cpu().numpy(), split.read_many(plan.share(number).indices)[0]) for number, (images, _) in enumerate(found)]
print(json.dumps([all(same), len(same), registered[0], len(feed._pinned._registered)]))
"""


@NEEDS_GPU
def test_a_gpu_gets_what_was_read_from_slots_that_are_filled_again_meanwhile(script: Run) -> None:
    assert script(ON_A_GPU) == [True, 40, 1, 0]
