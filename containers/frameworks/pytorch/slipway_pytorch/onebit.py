"""Exchange gradients in one bit each, with error feedback (Seide, Fu, Droppo, Li and Yu: 1-bit stochastic gradient descent, Interspeech
2014).

Of each group of numbers a rank sends which of them are above their mean, and two means, that of these and that of the others: they stand
for the numbers. A group is what leads to one output of a layer (a row of its weights), or several where that is less than LEAST: the
gradients of a layer's outputs differ much in size, and those of an output that no sample has reached are zero, and stay so. What is lost
is added to the gradient of the next step.

The exchange has two passes, as an all-reduce has: each rank gets its part of the gradients of all, averages it, and sends the average, in
one bit again and with error feedback of its own. So the bytes are 1/32 of those of float32, and the means, however many ranks there are.
Two ranks send each other everything at once, which is as many bytes, and nothing is lost of the average.

The first pass starts with each bucket and hides behind the backward; the second one starts with the last bucket, for all of them in order.
Every collective is started by the thread of the backward, in the same order on all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

LEAST = 1024
"""Numbers of a group, but for the last one of a parameter."""
MEANS_BYTES = 8
"""Two float32 of each group."""
WHOLE_STEPS = 2
"""The first steps exchange whole gradients: after the first one DDP makes its buckets anew."""


def grouped(shapes: Sequence[Sequence[int]], parts: int) -> torch.Tensor:
    """Return the sizes of the groups of a bucket [parts, groups], of parts that are as long as each other, in whole bytes of bits.

    `shapes`: of the parameters, in the order of the bucket. Groups that a part has less than another one are empty.
    """
    starts: list[int] = []
    end = 0
    for shape in shapes:
        size = math.prod(shape)
        row = size // shape[0] if len(shape) > 1 else size
        starts += range(end, end + size, max(1, row) * -(-LEAST // max(1, row)))
        end += size
    part = -(-end // (8 * parts)) * 8
    ends = sorted({*starts, *range(0, part * parts, part), end, part * parts})
    found: list[list[int]] = [[] for _ in range(parts)]
    for begin, after in pairwise(ends):
        found[begin // part].append(after - begin)
    most = max(map(len, found))
    return torch.tensor([sizes + [0] * (most - len(sizes)) for sizes in found])


def compress(values: torch.Tensor, groups: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a message for each row of `values` [rows, numbers], uint8 [rows, bytes], and what its readers restore. `groups`: their sizes
    [rows, groups]."""
    flat, sizes = values.view(-1), groups.view(-1)
    above = flat > torch.repeat_interleave(_sums(flat, sizes) / sizes.clamp(min=1), sizes, output_size=len(flat))
    count, of_above = _sums(above.float(), sizes), _sums(torch.where(above, flat, 0.0), sizes)
    of_others = _sums(torch.where(above, 0.0, flat), sizes)
    means = torch.stack((of_others / (sizes - count).clamp(min=1), of_above / count.clamp(min=1)))
    bits = above.view(torch.uint8).view(-1, 8)
    packed = bits[:, 0].clone()
    for place in range(1, 8):
        packed.bitwise_or_(bits[:, place] << place)
    rows = len(values)
    of_rows = means.view(2, rows, -1).transpose(0, 1).contiguous()
    message = torch.cat((of_rows.view(rows, -1).view(torch.uint8), packed.view(rows, -1)), 1)
    return message, _chosen(above, means, sizes).view_as(values)


def restore(messages: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """Return the numbers of messages [rows, bytes]: float32 [rows, numbers]."""
    rows, most = groups.shape
    means = messages[:, : MEANS_BYTES * most].reshape(-1).view(torch.float32)  # they come first, where memory is aligned
    packed = messages[:, MEANS_BYTES * most :]
    places = torch.arange(8, dtype=torch.uint8, device=messages.device)
    above = (packed.reshape(-1, 1) >> places & 1).bool().view(-1)
    return _chosen(above, means.view(rows, 2, most).transpose(0, 1).reshape(2, -1), groups.reshape(-1)).view(rows, -1)


def _sums(flat: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    return torch.segment_reduce(flat, "sum", lengths=sizes, unsafe=True)


def _chosen(above: torch.Tensor, means: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    low, high = (torch.repeat_interleave(mean, sizes, output_size=len(above)) for mean in means)
    return torch.where(above, high, low)


class _Errors(NamedTuple):
    """What was lost of a bucket: of the own gradient [parts, numbers], and of the average of this rank's part [1, numbers]; and the sizes
    of its groups [parts, groups], and of those of this part."""

    own: torch.Tensor
    average: torch.Tensor
    groups: torch.Tensor
    groups_here: torch.Tensor


class _Pending(NamedTuple):
    """A bucket whose first pass has started."""

    buffer: torch.Tensor
    errors: _Errors
    received: torch.Tensor
    work: Any
    future: Any


class OneBit:
    """The hook of DistributedDataParallel. `sent_bytes`: what this rank has sent to others so far, of compressed gradients."""

    def __init__(self, world_size: int) -> None:
        self.sent_bytes = 0
        self._world_size = world_size
        self._parts = world_size if world_size > 2 else 1
        self._step = 0
        self._errors: dict[int, _Errors] = {}
        self._pending: list[_Pending] = []

    def exchange(self, bucket: Any) -> Any:
        """Return a future of the average over all ranks of a bucket of gradients."""
        is_last, step = bucket.is_last(), self._step
        self._step += is_last
        if step < WHOLE_STEPS:
            return default_hooks.allreduce_hook(dist.group.WORLD, bucket)
        buffer = bucket.buffer()
        errors = self._errors_of(bucket)
        errors.own.view(-1)[: len(buffer)].add_(buffer)
        message = self._compressed(errors.own, errors.groups)
        received = torch.empty(self._world_size, message.shape[1], dtype=torch.uint8, device=message.device)
        start = dist.all_to_all_single if self._parts > 1 else dist.all_gather_single
        work = start(received, message, async_op=True)
        self.sent_bytes += message.shape[1] * (self._world_size - 1)
        future: Any = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])
        self._pending.append(_Pending(buffer, errors, received, work, future))
        if is_last:
            self._finish()
        return future

    def _finish(self) -> None:
        """Exchange the averages of all buckets, and give them to the backward."""
        averaged = []
        for one in self._pending:
            one.work.wait()
            own, here = one.errors.average, one.errors.groups_here
            mean = restore(one.received, here.expand(self._world_size, -1)).mean(0, keepdim=True)
            if self._parts == 1:
                averaged.append((one, mean, None))
                continue
            message = self._compressed(own.add_(mean), here)
            gathered = torch.empty_like(one.received)
            averaged.append((one, gathered, dist.all_gather_single(gathered, message, async_op=True)))
            self.sent_bytes += message.numel() * (self._world_size - 1)
        for one, found, work in averaged:
            if work is not None:
                work.wait()
                found = restore(found, one.errors.groups)
            one.future.set_result(one.buffer.copy_(found.view(-1)[: len(one.buffer)]))
        self._pending = []

    def _errors_of(self, bucket: Any) -> _Errors:
        """Return those of a bucket, at first zeros."""
        if bucket.index() not in self._errors:
            device = bucket.buffer().device
            groups = grouped([parameter.shape for parameter in bucket.parameters()], self._parts)
            own, average = (torch.zeros(rows, int(groups[0].sum()), device=device) for rows in (self._parts, 1))
            groups, here = groups.to(device), groups[dist.get_rank() % self._parts][None].to(device)
            self._errors[bucket.index()] = _Errors(own, average, groups, here)
        return self._errors[bucket.index()]

    def _compressed(self, values: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        """Return messages, and leave in `values` what is lost. A gradient that is not finite, as behind a loss scaler, is sent as it is and
        leaves nothing: that update is left out."""
        message, restored = compress(values, groups)
        values.sub_(restored).nan_to_num_(0.0, 0.0, 0.0)
        return message
