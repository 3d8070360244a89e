"""Training with FSDP2: each rank keeps a part of every parameter, of its gradient and of its momentum."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice, repeat
from typing import Any

import slipway_reader
import torch
import torch.distributed as dist
from slipway_program.checkpoint import Request
from slipway_program.plan import Plan
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from .feed import Batches
from .network import Network, Tied

NOT_COUNTED = -100
"""The label of a sample that is no sample: cross_entropy leaves it out."""


def shard(net: Network, device: torch.device) -> None:
    """Spread the parameters of `net`, which is on the CPU, over all ranks. The layers of a block are gathered together when the first of
    them computes, and freed when the last one has; a layer that is in no block is one by itself. An embedding that makes the logits too is
    needed at both ends, and stays."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    blocks: dict[str, list[torch.nn.Module]] = {}
    tied = {id(module.embedding[0]) for module in net.children() if isinstance(module, Tied)}
    for name, module in net.named_children():
        if id(module) not in tied and any(True for _ in module.parameters()):
            blocks.setdefault(name.rpartition("/")[0] or name, []).append(module)
    for modules in blocks.values():
        fully_shard(modules, mesh=mesh)
    fully_shard(net, mesh=mesh)


class SharedRequest(Request):
    """The request for a checkpoint, which rank 0 passes on to all ranks, since what is in parts is gathered by all. It goes by way of the
    CPU, so that no GPU is waited for."""

    def __init__(self, rank: int, device: torch.device) -> None:
        super().__init__(rank)
        self._group = None if device.type == "cpu" else dist.new_group(backend="gloo")

    def is_there(self) -> bool:
        """Return whether to stop now; all ranks ask at the same step."""
        wanted = torch.tensor(super().is_there())
        dist.broadcast(wanted, 0, group=self._group)
        return bool(wanted)


def as_many_for_all(batches: Batches, plan: Plan, dataset: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches to evaluate, on each rank as many as on rank 0, which has the most, since a forward needs the parts of all ranks. One
    that has none left takes a sample that is not counted.
    """
    if isinstance(dataset, slipway_reader.Sequences):
        blank = slipway_reader.inputs_and_targets(torch.full((1, dataset.length + 1), slipway_reader.PAD, dtype=torch.int32))
    else:
        blank = torch.zeros((1, *dataset.size, dataset.channels), dtype=torch.uint8), torch.tensor([NOT_COUNTED])
    own = islice(batches, plan.batches - plan.steps)
    return islice(chain(own, repeat(blank)), plan._replace(rank=0).batches - plan.steps)
