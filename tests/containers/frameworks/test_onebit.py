"""Gradients in one bit each: numbers that can be checked by hand, the bytes that are sent, and that nothing is lost for ever."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from containers.frameworks import load_framework
from tests.containers.frameworks.test_pytorch_steps import TIMEOUT_S, python
from tests.ports import held_ports

pytestmark = pytest.mark.slow

MESSAGES = """
import json
import torch
from slipway_pytorch.onebit import add_restored, compress

def sent(gradient, lost, outside=()):
    counts = torch.full((len(lost), 1), 1024)
    counts[2] -= len(outside)
    message, found = compress(gradient, lost, torch.tensor(outside, dtype=torch.long), counts), torch.zeros_like(gradient)
    add_restored(found, message, 1.0)
    return message, found

gradient = torch.zeros(4, 1024)
gradient[0] = torch.tensor([3.0, -1.0, -1.0, 1.0]).repeat(256)
gradient[1, 7] = 32.0
gradient[2, :8] = torch.tensor([1.0, -2.0, 3.0, -4.0, -5.0, 6.0, 7.0, 8.0])
lost = torch.zeros_like(gradient)
lost[2, 8:] = 9.0
message, restored = sent(gradient, lost.clone(), range(2 * 1024 + 8, 3 * 1024))
found = {"scales": restored[:, 0].tolist(), "shape": list(message.shape), "bits": message[:3, 4].tolist()}
found["zero"] = [float(restored[3].abs().max()), restored[1].abs().unique().tolist()]
torch.manual_seed(0)
found["apart"], found["late"] = 0.0, []
for sizes in (torch.ones(1024), torch.exp(2 * torch.randn(1024)), (torch.arange(1024) < 10).float()):
    lost, sums, lates = torch.zeros(3, 1024), torch.zeros(3, 1024, dtype=torch.float64), []
    for step in range(300):
        gradient = torch.randn(3, 1024) * sizes * (step < 200)
        sums += gradient
        _, restored = sent(gradient, lost)
        sums -= restored
        lates.append((lost.norm() / sizes.norm() / 3**0.5).item())
    found["apart"] = max(found["apart"], ((sums - lost).norm() / sizes.norm()).item())
    found["late"].append([sum(lates[100:200]) / 100, lates[299]])
bad = torch.ones(3, 1024)
bad[0, 5] = float("inf")
lost = torch.ones(3, 1024)
_, restored = sent(bad, lost)
found["bad"] = [bool(restored[0].isnan().all()), float(lost[0].abs().max()), float(restored[1, 0])]
print(json.dumps(found))
"""


def test_signs_and_a_scale_stand_for_a_block_and_what_is_lost_stays_bounded_and_comes_later(lib: Path) -> None:
    found = json.loads(python(lib, MESSAGES).communicate(timeout=TIMEOUT_S)[0])
    root = math.sqrt(12 / 4)
    assert found["shape"] == [4, 4 + 1024 // 8]
    assert found["scales"][0] == pytest.approx(2.5 * root), "2.5 root mean squares of the new gradient, which are above 3 / 1.5"
    assert found["scales"][2] == pytest.approx(2.5 * math.sqrt(204 / 8)), "numbers outside do not count"
    assert found["bits"] == [0b01100110, 0, 0b00011010], "a bit is set where a number is negative, the first is the lowest"
    assert found["zero"] == [0, [2.5]], "zeros are left alone, and a single large number does not make its whole block large"
    assert found["apart"] < 1e-4
    for late, after in found["late"]:
        assert late < 6, "errors are some gradients large"
        assert after < 1e-2, "and are all sent when the gradient is gone"
    assert found["bad"] == [True, 0, 2.5], "a gradient that is not finite leaves nothing, and the other block is whole"


RANKS = """
import json, sys
import torch
import torch.distributed as dist
from slipway_pytorch import onebit
from slipway_pytorch.steps import distribute

rank, world, hook = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=world)
states, orders = [], {}
made, exchange = onebit.OneBit.__init__, onebit.OneBit.exchange
onebit.OneBit.__init__ = lambda self, size: (made(self, size), states.append(self))[0]
onebit.OneBit.exchange = lambda self, bucket: (orders.update({bucket.index(): bucket.parameters()}), exchange(self, bucket))[1]
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(400, 300), torch.nn.ReLU(), torch.nn.Linear(300, 1000), torch.nn.Linear(1000, 5))
ddp = distribute(net, hook, torch.device("cpu"), bucket_cap_mb=1)
torch.manual_seed(1 + rank)
weights = {parameter: torch.randn(parameter.numel(), generator=torch.Generator().manual_seed(number)).double()
           for number, parameter in enumerate(net.parameters())}
weight = torch.cat(list(weights.values()))
average, applied, first = None, None, None
for step in range(8):
    ddp.zero_grad()
    inputs = torch.randn(4, 400)
    with ddp.no_sync():
        net(inputs).square().sum().backward()
    own = torch.cat([parameter.grad.flatten() for parameter in net.parameters()]).double()
    ddp.zero_grad()
    ddp(inputs).square().sum().backward()
    got = torch.cat([parameter.grad.flatten() for parameter in net.parameters()]).double()
    dist.all_reduce(own)
    if step < 2:
        first = max(first or 0.0, ((got - own / world).abs().max() / own.abs().max()).item())
    else:
        average, applied = (average or 0) + weight @ own / world, (applied or 0) + weight @ got
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 1e-4 * parameter.grad
lost = torch.zeros(1, dtype=torch.float64)
for state in states:
    for index, bucket in state._states.items():
        own, average_here = (one.lost.double().view(-1).index_fill(0, one.outside, 0).view_as(one.lost) for one in bucket[:2])
        parts = torch.zeros(own.numel(), dtype=torch.float64)
        order = torch.cat([weights[parameter] for parameter in orders[index]])
        parts[: len(order)] = order
        here = parts.view(-1, average_here.numel())[rank % (own.numel() // average_here.numel())]
        lost += parts @ own.view(-1) / world + here @ average_here.view(-1)
dist.all_reduce(lost)
checksum = torch.cat([parameter.detach().flatten() for parameter in net.parameters()]).double().sum().item()
sizes = {"buckets": sum(len(state._states) for state in states)}
print(json.dumps({"first": first, "average": (average or torch.zeros(())).item(), "applied": (applied or torch.zeros(())).item(),
                  "lost": lost.item(), "checksum": checksum, **sizes}), flush=True)
dist.destroy_process_group()  # whose threads would else end with the interpreter, sometimes by an abort
"""


def ranks(lib: Path, world: int, hook: str) -> list[dict[str, Any]]:
    port = str(*held_ports())
    started = [python(lib, RANKS, str(rank), str(world), hook, MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for rank in range(world)]
    return [json.loads(process.communicate(timeout=TIMEOUT_S)[0]) for process in started]


@pytest.mark.parametrize("world", [2, 3])
def test_what_is_lost_of_a_gradient_comes_later(lib: Path, world: int) -> None:
    """The sum of all averages is what was applied and what all errors still hold, in several buckets. Three ranks need two passes."""
    found = ranks(lib, world, "onebit")
    assert len({one["checksum"] for one in found}) == 1, "ranks end with the same parameters"
    one = found[0]
    assert one["first"] < 1e-6, "the first steps exchange whole gradients"
    assert one["buckets"] > 1
    assert one["average"] == pytest.approx(one["applied"] + one["lost"], abs=1e-3 * abs(one["lost"]))
    assert abs(one["lost"]) > 1e-2 * abs(one["average"]), "something is lost in each step, and this test sees it"


BYTES = """
import sys
import torch
import torch.distributed as dist
from slipway_pytorch.steps import distribute

def sent():
    dist.barrier()
    return next(int(line.split()[9]) for line in open("/proc/net/dev") if "lo:" in line)

rank, world = int(sys.argv[1]), int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", rank=rank, world_size=world)
found = []
for hook in ("none", "onebit"):
    torch.manual_seed(0)
    ddp = distribute(torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.Linear(1000, 1000)), hook, torch.device("cpu"))
    for step in range(12):
        if step == 2:
            before = sent()
        ddp(torch.randn(2, 1000)).square().sum().backward()
    found.append((sent() - before) / 10)
    dist.barrier()
if rank == 0:
    print(*found, flush=True)
"""
RANKS_THERE = """
ip link set lo up
for rank in $3; do "$1" -c "$2" $rank $4 & pids="$pids $!"; done
for pid in $pids; do wait $pid || exit 1; done
"""
OWN_NETWORK = ("unshare", "--user", "--map-root-user", "--net", "sh", "-c")


def test_the_kernel_sends_a_31st_of_the_bytes(lib: Path) -> None:
    """All bytes of the loopback interface in a network namespace of the ranks' own are counted, headers with them."""
    if subprocess.run([*OWN_NETWORK, "ip link set lo up"], check=False, capture_output=True).returncode:
        pytest.skip("this user can make no network namespace")
    paths = os.pathsep.join([str(lib), str(load_framework("pytorch").folder)])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": "lo"}
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", **place}
    words = (sys.executable, BYTES, "0 1", "2")
    done = subprocess.run([*OWN_NETWORK, RANKS_THERE, "sh", *words], env=environment, stdout=subprocess.PIPE, timeout=TIMEOUT_S)
    assert done.returncode == 0
    whole, compressed = map(float, done.stdout.split())
    parameters = 2 * (1000 * 1000 + 1000)
    assert whole == pytest.approx(2 * 4 * parameters, rel=0.05), "the all-reduce of both ranks together"
    assert 28 < whole / compressed < 32


def test_without_an_exchange_each_rank_trains_a_network_of_its_own(lib: Path) -> None:
    found = ranks(lib, 2, "noop")
    assert found[0]["checksum"] != found[1]["checksum"]
