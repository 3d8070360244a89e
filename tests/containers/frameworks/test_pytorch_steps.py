"""What PyTorch's step promises beyond its numbers: who waits for whom is told, and nothing is read back from the device."""

import json
import os
import sys
from pathlib import Path

import pytest

from containers.frameworks import load_framework
from containers.models import build
from tests.containers.frameworks.preloaded import Preloaded
from tests.ports import held_ports
from workflow.run.record.rate import skew, straggler

pytestmark = pytest.mark.slow
TIMEOUT_S = 120

WAITING = """
import json, sys, time
import torch
import torch.distributed as dist
from slipway_parts import part_exchange
from slipway_pytorch.clock import HostClock, Issued, Laps
from slipway_pytorch.steps import distribute

rank, slow, steps = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])

class Work(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.1 if rank == slow else 0.01)  # the work itself: as long as it takes
        return x

torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=2)
layers = [torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 2)]
net = torch.nn.Sequential(Work(), *layers)
ddp = distribute(net, "none", torch.device("cpu"))
laps, clock = Laps(), HostClock()
part_exchange(ddp, laps.end)
dist.barrier()
clock.begin()
found = []
for step in range(steps):
    laps.begin()
    loss = ddp(torch.ones(2, 1, 8, 8)).sum()
    laps.end("forward")
    loss.backward()
    laps.end_backward()
    (finished,) = clock.end(Issued(step, 0.0, 2, laps.take()), torch.zeros(()))
    found.append([finished.seconds, finished.parts["exchange"]])
print(json.dumps(found))
"""


@pytest.mark.parametrize("slow", [0, 1])
def test_the_rank_that_others_wait_for_is_told_apart(lib: Path, slow: int) -> None:
    """Both ways of waiting: rank 1 for the statistics of a slow rank 0, and rank 0 for the gradients of a slow rank 1."""
    port = str(*held_ports())
    ranks = [python(lib, WAITING, str(rank), str(slow), "26", MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for rank in (0, 1)]
    steps = [json.loads(rank.communicate(timeout=TIMEOUT_S)[0])[2:] for rank in ranks]
    assert all(0 <= exchange_s <= seconds for rank in steps for seconds, exchange_s in rank)
    work = [[seconds - exchange_s for seconds, exchange_s in pair] for pair in zip(*steps, strict=True)]
    assert straggler(work) == slow
    assert (ratio := skew(work)) is not None
    assert ratio > 1.2, "slowest rank over the middle of the two: 1.8 on an idle machine"


INPUTS = """
import dataclasses, json, os
import torch
import torch.distributed as dist
from slipway_pytorch.network import Network
from slipway_pytorch.steps import make_forward, make_training_step

layers = json.load(open(os.environ["LAYERS"]))
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
os.environ["RANK"] = "0"

@dataclasses.dataclass
class Pixels:
    mean = (100.0,)
    std = (50.0,)

found = {}
for asked in (False, True):
    cell = {"seed": 0, "precision": "fp32", "layout": "nchw", "strategy": "ddp", "comm_hook": "none", "model_layers": layers,
            "optimizer": {"name": "sgd", "learning_rate": 0.002, "momentum": 0.9, "weight_decay": 0.01}}
    if asked:
        cell["input_gradient"] = True
    net = Network(layers, 0)
    seen = []
    net.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    step, state = make_training_step(cell, Pixels(), net, torch.device("cpu"))
    images = torch.randint(0, 256, (4, 28, 28, 1), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    losses = [step(number, images, torch.arange(4))[0].item() for number in range(4)]
    found[str(asked)] = {
        "losses": losses,
        "weights": [float(parameter.detach().double().abs().sum()) for parameter in net.parameters()],
        "gradients": [one.grad is not None and bool(one.grad.abs().sum() > 0) for one in seen],
    }
print(json.dumps(found))
"""


def test_the_gradient_of_the_images_is_computed_and_changes_nothing(lib: Path, tmp_path: Path) -> None:
    layers = tmp_path / "layers.json"
    layers.write_text(json.dumps(build("lenet", 1, (28, 28), 4).layers))
    process = python(lib, INPUTS, LAYERS=str(layers))
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    without, with_gradient = json.loads(out)["False"], json.loads(out)["True"]
    assert (without["gradients"], with_gradient["gradients"]) == ([False] * 4, [True] * 4)
    assert (with_gradient["losses"], with_gradient["weights"]) == (without["losses"], without["weights"])
    assert without["losses"][-1] < without["losses"][0]


COUNTED = """
import json, os
import torch
from slipway_pytorch.network import Network
from torch.utils.flop_counter import FlopCounterMode

found = {}
for name, layers in json.load(open(os.environ["LAYERS"])).items():
    net = Network(layers, 0).to("meta")
    images = torch.empty([2, *layers[0]["shape_out"]], device="meta")
    with FlopCounterMode(display=False) as forward:
        outputs = net(images)
    with FlopCounterMode(display=False) as backward:
        outputs.sum().backward()
    found[name] = forward.get_total_flops(), backward.get_total_flops()
print(json.dumps(found))
"""


def test_the_flop_of_a_step_are_those_of_torch_but_for_groups(lib: Path, tmp_path: Path) -> None:
    """torch 2.13 counts the backward pass of a convolution in g groups as 1 + g forward ones (pytorch/pytorch#183405)."""
    models = {name: build(name, 3, (size, size), 10) for name, size in (("alexnet", 96), ("alexnet-caffe", 99), ("resnet18", 64))}
    layers = tmp_path / "layers.json"
    layers.write_text(json.dumps({name: model.layers for name, model in models.items()}))
    process = python(lib, COUNTED, LAYERS=str(layers))
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    for name, (forward, backward) in json.loads(out).items():
        model = models[name]
        ours = 2 * 2 * (2 * model.macs - model.first_macs)
        assert forward == 2 * 2 * model.macs
        in_groups = 2 * 2 * sum(layer["macs"] for layer in model.layers if layer.get("groups", 1) == 2)
        assert backward == ours + in_groups
        assert (backward > ours) is (name == "alexnet-caffe")


SCALED = """
import copy, json
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from slipway_pytorch.steps import make_optimizer

class ReadBacks(TorchDispatchMode):
    count = 0
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
nets = {True: net, False: copy.deepcopy(net)}
before = [parameter.clone() for parameter in net.parameters()]
found = {"left_out": None, "counts": {}, "distance": 0.0}
for scaled, net in nets.items():
    optimizer = make_optimizer({"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.01}, net, scaled=scaled)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with ReadBacks() as reads:
        for number, factor in enumerate((float("inf"), 1.0, 1.0, 1.0)):
            optimizer.zero_grad()
            loss = (net(torch.ones(3, 4)) * factor).square().sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if number == 0:
                found["left_out"] = all(torch.equal(a, b) for a, b in zip(before, net.parameters()))
    found["counts"][str(scaled)] = reads.count
pairs = list(zip(nets[True].parameters(), nets[False].parameters()))
found["distance"] = max((one - other).abs().max().item() for one, other in pairs)
found["moved"] = max((one - other).abs().max().item() for one, other in zip(before, nets[True].parameters()))
print(json.dumps(found))
"""


def test_the_loss_scaler_reads_nothing_back_and_leaves_a_bad_step_out(lib: Path) -> None:
    """On the CPU, through the same code as on a GPU; the first step overflows, as first steps of fp16 do."""
    process = python(lib, SCALED)
    found = json.loads(process.communicate(timeout=TIMEOUT_S)[0])
    assert found["counts"]["True"] == 0
    assert found["counts"]["False"] > 0, "the other form reads back, and this test sees it"
    assert found["left_out"]
    assert found["moved"] > 1e-3
    assert found["distance"] < 1e-6, "the two forms of the optimizer do the same"


STRIDES = """
import json
import torch
import torch.distributed as dist
from slipway_pytorch.steps import distribute

class OtherStrides(torch.autograd.Function):
    @staticmethod
    def forward(_, weight):
        return weight * 1
    @staticmethod
    def backward(_, gradient):
        return torch.ones(8).as_strided((4, 2, 1, 1), (2, 1, 2, 2))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 2, 1, 1))
    def forward(self, x):
        return OtherStrides.apply(self.weight).sum() * x

dist.init_process_group("gloo", rank=0, world_size=1)
found = {}
for same in (False, True):
    ddp = distribute(Net(), "none", torch.device("cpu"), same_strides=same)
    for _ in range(3):
        ddp.zero_grad()
        ddp(torch.ones(())).backward()
    weight = ddp.module.weight
    found[str(same)] = weight.grad.stride() == weight.stride()
print(json.dumps(found))
"""


def test_gradients_lie_in_memory_as_the_fused_optimizer_wants_them(lib: Path) -> None:
    """Whatever strides a backward gives a dimension of size 1: on a GPU the fused form refuses what differs from the parameter's."""
    process = python(lib, STRIDES, MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    found = json.loads(process.communicate(timeout=TIMEOUT_S)[0])
    assert found == {"False": False, "True": True}, "the default keeps what the backward gave, and this test sees it"


def python(lib: Path, script: str, *arguments: str, **variables: str) -> Preloaded:
    """A script beside the program, with its modules."""
    paths = os.pathsep.join([str(lib), str(load_framework("pytorch").folder)])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "GLOO_SOCKET_IFNAME": "lo", **variables}
    return Preloaded([sys.executable, "-c", script, *arguments], environment)


THREADS = """
import json, os
from slipway_pytorch.feed import computing_threads, loader_processes

found = []
on_gpus = [(16, 1, 16), (16, 1, 2), (64, 8, 8), (32, 2, 16), (1, 1, 1)]
for cores, ranks, asked, device in [*((*one, "cuda") for one in on_gpus), (16, 1, 16, "cpu")]:
    os.sched_getaffinity = lambda _: set(range(cores))
    processes = loader_processes(device, ranks)
    found.append([processes, computing_threads(device, asked, ranks, processes)])
print(json.dumps(found))
"""


def test_threads_beside_a_gpu_leave_the_loader_processes_their_cores(lib: Path) -> None:
    """Of 16 cores 8 each; never none; what is asked for is never passed; on the CPU all cores are for the training."""
    found = json.loads(python(lib, THREADS).communicate(timeout=TIMEOUT_S)[0])
    assert found == [[8, 8], [8, 2], [8, 1], [8, 8], [1, 1], [1, 16]]
