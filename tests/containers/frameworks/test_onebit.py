"""Gradients in one bit each: numbers that can be checked by hand, the bytes that are sent, and that nothing is lost for ever."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.containers.frameworks.test_pytorch_steps import TIMEOUT_S, python

pytestmark = pytest.mark.slow

MESSAGES = """
import json, random
import torch
from slipway_pytorch.onebit import compress, grouped, restore

groups = torch.tensor([[4, 4, 0], [2, 4, 2]])
values = torch.tensor([[1.0, 3.0, -2.0, -4.0, 0.0, 0.0, 0.0, 0.0], [5.0, 7.0, 1.0, 1.0, 1.0, 9.0, -1.0, -2.0]])
message, restored = compress(values, groups)
found = {"restored": restored.tolist(), "again": restore(message, groups).tolist()}
found |= {"bytes": list(message.shape), "first": message[:, -1].tolist()}
torch.manual_seed(0)
random.seed(0)
found["apart"], found["sums"], found["sizes"] = 0.0, 0.0, []
for _ in range(50):
    shapes = [tuple(random.randint(1, 40) for _ in range(random.randint(1, 4))) for _ in range(random.randint(1, 5))]
    parts = random.choice((1, 3, 4))
    sizes = grouped(shapes, parts)
    rows = torch.randn(parts, int(sizes[0].sum())) * 10 ** random.uniform(-8, 8)
    message, restored = compress(rows, sizes)
    found["apart"] = max(found["apart"], (restore(message, sizes) - restored).abs().max().item())
    ends = sizes.view(-1).cumsum(0)
    for end, size in zip(ends.tolist(), sizes.view(-1).tolist()):
        own, theirs = (part.view(-1)[end - size : end].double() for part in (rows, restored))
        found["sums"] = max(found["sums"], (own.sum() - theirs.sum()).abs().item() / max(own.abs().sum().item(), 1e-300))
    numbers = sum(torch.Size(shape).numel() for shape in shapes)
    found["sizes"].append([sizes.sum(1).tolist(), numbers, parts, list(message.shape), sizes.shape[1]])
print(json.dumps(found))
"""


def test_a_bit_says_which_numbers_of_a_group_are_above_its_mean_and_two_means_stand_for_them(lib: Path) -> None:
    found = json.loads(python(lib, MESSAGES).communicate(timeout=TIMEOUT_S)[0])
    assert found["restored"] == found["again"] == [[2, 2, -3, -3, 0, 0, 0, 0], [5, 7, 1, 1, 1, 9, -1, -2]]
    assert found["first"] == [0b00000011, 0b01100010]
    assert found["bytes"] == [2, 1 + 3 * 8]
    assert found["apart"] == 0
    assert found["sums"] < 1e-5, "the two means have the sum of the group"
    for sums, numbers, parts, shape, groups in found["sizes"]:
        assert set(sums) == {math.ceil(numbers / (8 * parts)) * 8}, "parts of whole bytes, as long as each other"
        assert shape == [parts, sums[0] // 8 + 8 * groups]


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
groups = numbers = 0
for state in states:
    for index, errors in state._errors.items():
        parts = torch.zeros(errors.own.numel(), dtype=torch.float64)
        order = torch.cat([weights[parameter] for parameter in orders[index]])
        parts[: len(order)] = order
        here = parts.view(errors.own.shape)[rank % len(errors.own)]
        lost += parts @ errors.own.double().view(-1) / world + here @ errors.average.double().view(-1)
        groups, numbers = groups + errors.groups.numel(), numbers + errors.own.numel()
dist.all_reduce(lost)
checksum = torch.cat([parameter.detach().flatten() for parameter in net.parameters()]).double().sum().item()
sizes = {"buckets": sum(len(state._errors) for state in states), "groups": groups, "numbers": numbers}
print(json.dumps({"first": first, "average": (average or torch.zeros(())).item(), "applied": (applied or torch.zeros(())).item(),
                  "lost": lost.item(), "checksum": checksum, "sent": sum(state.sent_bytes for state in states), **sizes}))
"""


def ranks(lib: Path, world: int, hook: str) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [python(lib, RANKS, str(rank), str(world), hook, MASTER_ADDR="127.0.0.1", MASTER_PORT=port) for rank in range(world)]
    return [json.loads(process.communicate(timeout=TIMEOUT_S)[0]) for process in started]


@pytest.mark.parametrize("world", [2, 3])
def test_what_is_lost_of_a_gradient_comes_later_and_a_32nd_of_the_bytes_is_sent(lib: Path, world: int) -> None:
    """The sum of all averages is what was applied and what all errors still hold, in several buckets. Three ranks need two passes."""
    found = ranks(lib, world, "onebit")
    assert len({one["checksum"] for one in found}) == 1, "ranks end with the same parameters"
    one = found[0]
    assert one["first"] < 1e-6, "the first steps exchange whole gradients"
    assert one["buckets"] > 1
    assert one["average"] == pytest.approx(one["applied"] + one["lost"], abs=1e-3 * abs(one["lost"]))
    assert abs(one["lost"]) > 1e-2 * abs(one["average"]), "something is lost in each step, and this test sees it"
    parameters = 400 * 300 + 300 + 300 * 1000 + 1000 + 1000 * 5 + 5
    ring = 2 * (world - 1) / world * 4 * parameters  # bytes of an all-reduce of float32
    sent = one["sent"] / 6
    assert sent == (world - 1) * (2 if world > 2 else 1) * (one["numbers"] // 8 + 8 * one["groups"]) / (world if world > 2 else 1)
    assert 30 < ring / sent < 32


def test_without_an_exchange_each_rank_trains_a_network_of_its_own(lib: Path) -> None:
    found = ranks(lib, 2, "noop")
    assert found[0]["checksum"] != found[1]["checksum"]
