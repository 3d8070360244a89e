"""Exchange gradients in one bit each, with error feedback (Seide, Fu, Droppo, Li and Yu: 1-bit stochastic gradient descent, Interspeech
2014).

Of each block of numbers a rank sends their signs and one scale, which stands for all of their sizes. What is lost is added to the gradient
of the next step.

The scale is larger than the mean size, which would lose least in one step: errors of small numbers have changing signs and cancel from step
to step, but a number above the scale is late by as many steps as it is scales. It is |x|_2^2 / |x|_1, by which what is sent is as long,
along the gradient, as the gradient is; at most 2 root mean squares, or a few large numbers would give all others more noise than signal
(1-bit Adam, Tang et al., 2021, takes one); and at least 2.5 root mean squares of the new gradient. Biases and batch normalisation are few
numbers with large gradients, and sent whole.

The exchange has two passes, as an all-reduce has: each rank gets its part of the gradients of all, averages it, and sends the average, in
one bit again and with error feedback of its own. So the bytes are 1/32 of those of float32, and the scales, however many ranks there are.
Two ranks send each other everything at once, which is as many bytes, and nothing is lost of the average.

The first pass starts with each bucket and hides behind the backward; the second one starts with the last bucket, for all of them in order.
Every collective is started by the thread of the backward, in the same order on all ranks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

BLOCK = 1024
"""Numbers with one scale."""
NUMBER_BYTES = 4
"""The size of a float32, which gradients and scales are."""
MESSAGE_BYTES = NUMBER_BYTES + BLOCK // 8
LARGEST_SCALE = 2.0
"""The most that a scale is, in root mean squares of its block."""
MIN_SCALE = 2.5
"""The least that a scale is, in root mean squares of the new gradient alone."""
TO_ONE_BYTE = 0x0102040810204080
"""Times eight bytes of 0 or 1, the upper byte has the first of them as its lowest bit, and so on."""
WHOLE_STEPS = 2
"""The first steps exchange whole gradients: after the first one DDP makes its buckets anew."""


def compress(gradient: torch.Tensor, lost: torch.Tensor, outside: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the messages of a gradient [blocks, BLOCK], uint8 [blocks, MESSAGE_BYTES]. They stand for the sum of it and what was `lost`
    before, and `lost` gets what is lost now.

    `outside`: places of numbers that do not count; `counts`: how many do in each block [blocks, 1], at least 1. A gradient that is not
    finite, as behind a loss scaler, is sent as NaN and leaves nothing: that update is left out.
    """
    gradient.view(-1).index_fill_(0, outside, 0.0)
    least = MIN_SCALE * _root(gradient, counts)
    values = lost.add_(gradient)
    values.view(-1).index_fill_(0, outside, 0.0)
    mean = torch.linalg.vector_norm(values, 1, dim=1, keepdim=True) / counts
    root = _root(values, counts)
    scales = root * (root / mean.clamp(min=torch.finfo(torch.float32).tiny)).clamp(max=LARGEST_SCALE)
    scales = torch.maximum(scales, least)
    bits = (values.signbit().view(torch.int64) * TO_ONE_BYTE >> 56).to(torch.uint8)
    values.sub_(torch.copysign(scales, values)).nan_to_num_(0.0, 0.0, 0.0)
    return torch.cat((scales.view(torch.uint8), bits), 1)


def _root(values: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(values, 2, dim=1, keepdim=True) / counts.sqrt()


def add_restored(total: torch.Tensor, messages: torch.Tensor, weight: float) -> None:
    """Add the numbers of messages [blocks, MESSAGE_BYTES], times `weight`, to `total` [blocks, BLOCK]."""
    bytes_of_bits = torch.arange(256, device=total.device)
    signs = 1.0 - 2.0 * (bytes_of_bits[:, None] >> torch.arange(8, device=total.device) & 1)
    restored = signs[messages[:, NUMBER_BYTES:].int()].view_as(total)
    total.addcmul_(restored, messages[:, :NUMBER_BYTES].view(torch.float32), value=weight)


class _Blocks(NamedTuple):
    """The blocks that a rank compresses of a bucket: what was lost of them so far [blocks, BLOCK], and which of their numbers do not count
    (see `compress`)."""

    lost: torch.Tensor
    outside: torch.Tensor
    counts: torch.Tensor


class _BucketState(NamedTuple):
    """The state of a bucket between steps: the blocks of the rank's own gradient, those of its part of the average, and the indices of the
    numbers that are sent whole."""

    own: _Blocks
    average: _Blocks
    whole_indices: torch.Tensor


class _Pending(NamedTuple):
    """A bucket whose first pass has started: its messages, and the numbers that are sent whole."""

    buffer: torch.Tensor
    state: _BucketState
    received: torch.Tensor
    whole: torch.Tensor
    works: tuple[Any, Any]
    future: Any


class OneBit:
    """The hook of DistributedDataParallel."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._parts = world_size if world_size > 2 else 1
        self._step = 0
        self._states: dict[int, _BucketState] = {}
        self._pending: list[_Pending] = []

    def exchange(self, bucket: Any) -> Any:
        """Return a future of the average over all ranks of a bucket of gradients."""
        is_last, step = bucket.is_last(), self._step
        self._step += is_last
        if step < WHOLE_STEPS:
            return default_hooks.allreduce_hook(dist.group.WORLD, bucket)
        buffer = bucket.buffer()
        state = self._state_of(bucket)
        gradient = torch.zeros_like(state.own.lost)
        gradient.view(-1)[: len(buffer)] = buffer
        message = compress(gradient, *state.own)
        received = message.new_empty(self._world_size * len(state.average.lost), MESSAGE_BYTES)
        start = dist.all_to_all_single if self._parts > 1 else dist.all_gather_single
        whole = buffer[state.whole_indices]
        works = start(received, message, async_op=True), dist.all_reduce(whole, async_op=True)
        future: Any = torch.futures.Future(devices=[buffer.device] if buffer.is_cuda else [])
        self._pending.append(_Pending(buffer, state, received, whole, works, future))
        if is_last:
            self._finish()
        return future

    def _finish(self) -> None:
        """Exchange the averages of all buckets, and give them to the backward."""
        averages: list[tuple[torch.Tensor, Any]] = []
        for one in self._pending:
            one.works[0].wait()
            average = torch.zeros_like(one.state.average.lost)
            for messages in one.received.chunk(self._world_size):
                add_restored(average, messages, 1 / self._world_size)
            averages.append(self._gathered(average, one) if self._parts > 1 else (average, None))
        for one, (average, work) in zip(self._pending, averages, strict=True):
            found = average
            if work is not None:
                work.wait()
                found = torch.zeros_like(one.state.own.lost)
                add_restored(found, average, 1.0)
            one.buffer.copy_(found.view(-1)[: len(one.buffer)])
            one.works[1].wait()
            one.buffer[one.state.whole_indices] = one.whole.div_(self._world_size)
            one.future.set_result(one.buffer)
        self._pending = []

    def _gathered(self, average: torch.Tensor, one: _Pending) -> tuple[torch.Tensor, Any]:
        """Start the second pass of a bucket, in which the average of this rank's part of it goes to all. Return the messages of all ranks,
        and the work to wait for before they are there."""
        message = compress(average, *one.state.average)
        messages = torch.empty_like(one.received)
        return messages, dist.all_gather_single(messages, message, async_op=True)

    def _state_of(self, bucket: Any) -> _BucketState:
        """Return the state of a bucket, of which nothing was lost before its first exchange."""
        if bucket.index() not in self._states:
            buffer = bucket.buffer()
            blocks = -(-len(buffer) // (BLOCK * self._parts))
            ones = [torch.full((parameter.numel(),), parameter.dim() > 1) for parameter in bucket.parameters()]
            counted = torch.zeros(self._parts * blocks * BLOCK, dtype=torch.bool)
            counted[: len(buffer)] = torch.cat(ones)
            whole = (~counted[: len(buffer)]).nonzero().view(-1).to(buffer.device)
            here = counted.view(self._parts, -1)[dist.get_rank() % self._parts]
            self._states[bucket.index()] = _BucketState(_blocks(counted, buffer.device), _blocks(here, buffer.device), whole)
        return self._states[bucket.index()]


def _blocks(counted: torch.Tensor, device: torch.device) -> _Blocks:
    lost = torch.zeros(len(counted) // BLOCK, BLOCK, device=device)
    counts = counted.view(-1, BLOCK).sum(1, keepdim=True).clamp(min=1)
    return _Blocks(lost, (~counted).nonzero().view(-1).to(device), counts.to(device))
