"""The loader processes of the program of PyTorch: the order of batches, and the memory that a GPU copies from."""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from containers.frameworks import load_framework
from tests.containers.frameworks.preloaded import Preloaded
from tests.gpu import NEEDS_GPU

pytestmark = pytest.mark.slow
TIMEOUT_S = 120
Run = Callable[..., Any]

START = """
import json, os
import numpy as np, slipway_reader, torch
from slipway_program.plan import Plan
from slipway_pytorch import feed
from slipway_reader import torch as ours

dataset = slipway_reader.open_dataset(os.environ["DATA"])
split = dataset.split("train")

def make_plan(steps, batch=8, first=0):
    groups = dataset.groups("train")
    return Plan(3, first, steps, batch, rank=0, world_size=1, train_groups=groups, eval_split=None, eval_groups=())
"""


@pytest.fixture
def script(lib: Path, datasets: Callable[[str], Path], tmp_path: Path) -> Run:
    """script(text, data="photos") -> what it printed as JSON, after START."""

    def run(text: str, data: Path | None = None) -> Any:
        paths = os.pathsep.join([str(lib), str(load_framework("pytorch").folder)])
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "DATA": str(data or datasets("photos"))}
        argv = [sys.executable, "-c", START + text]
        process = Preloaded(argv, environment, tmp_path)
        output, errors = process.communicate(TIMEOUT_S)
        assert process.returncode == 0, errors
        return json.loads(output)

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


FAILING = """
try:
    for _ in feed.start_reading(dataset, make_plan(30), 2):
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
    shapes = [[list(ours.to_device(tensor, device).shape) for tensor in batch] for batch in batches]
    names = [call[0] for call in calls]
    found.append({name: names.count(name) for name in names})
    found.append(shapes == [[[8, *dataset.size, dataset.channels], [8]]] * 6)
ours._refused.clear()
torch.cuda.cudart = lambda: Cudart(0)
calls.clear()
batches = list(ours.Loader(split, 8, num_workers=1, device=device))
found.append([len(batches), {str(tensor.device) for batch in batches for tensor in batch} == {"meta"}])
names = [call[0] for call in calls]
found.append({name: names.count(name) for name in ("register", "pin_memory")})
calls.clear()
ours.to_device(torch.zeros(3), device)
print(json.dumps([*found, [call[0] for call in calls]]))
"""


def test_a_gpu_copies_from_registered_slots_and_where_that_is_refused_from_pinned_memory(script: Run) -> None:
    """With a stand-in for CUDA, which registers the slots that are used, each once. A slot is filled again when both copies of it ended."""
    registered, whole, refused, whole_too, loaded, of_loader, no_slot = script(PINNED)
    assert whole
    assert whole_too
    assert 2 <= registered["register"] == registered["unregister"] <= 6
    assert registered["synchronize"] == 12
    assert registered["query"] > 0
    assert "pin_memory" not in registered
    assert refused == {"register": 1, "pin_memory": 12}
    batches, on_the_device = loaded
    assert on_the_device
    assert of_loader["pin_memory"] == 0
    assert 2 <= of_loader["register"] <= batches
    assert no_slot == ["pin_memory"]


ON_A_GPU = """
device = torch.device("cuda", 0)
plan = make_plan(40)
found = [[ours.to_device(tensor, device) for tensor in batch] for batch in feed.start_reading(dataset, plan, 2)]
registered = []
for images, labels in feed.start_reading(dataset, plan, 2):
    ours.to_device(images, device)
    registered.append(len(ours._registered))
same = [np.array_equal(images.cpu().numpy(), split.read_many(plan.share(number).indices)[0]) for number, (images, _) in enumerate(found)]
print(json.dumps([all(same), len(same), registered[0], len(ours._registered)]))
"""


@NEEDS_GPU
def test_a_gpu_gets_what_was_read_from_slots_that_are_filled_again_meanwhile(script: Run) -> None:
    assert script(ON_A_GPU) == [True, 40, 1, 0]
