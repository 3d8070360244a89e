"""How long a step waits for the other ranks, so that a slow one can be told from those that wait for it.

A rank waits twice: before its forward for the running statistics of rank 0 (networks with batch normalisation), and after its backward,
when its own gradients are there, for those of all. What of the exchange goes on behind the backward is no waiting. The moments around
both are taken without synchronising: readings of the clock on the CPU, events on the stream of a GPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from slipway_program.clock import Moments
from torch.nn.parallel import DistributedDataParallel


class Exchange:
    """Takes the moments of each step of `ddp`. On a GPU call it with `now=recorded_event`."""

    def __init__(self, ddp: DistributedDataParallel, now: Callable[[], Any] = time.perf_counter) -> None:
        self._now = now
        self._moments: dict[int, Any] = {}
        ddp.register_forward_pre_hook(partial(self._take, 0))
        ddp.module.register_forward_pre_hook(partial(self._take, 1))
        # The gradient of the first layer is the last to be there.
        next(ddp.module.parameters()).register_post_accumulate_grad_hook(partial(self._take, 2))

    def _take(self, place: int, *_: Any) -> None:
        self._moments[place] = self._now()

    def end(self) -> Moments | None:
        """After the backward of a step: its moments; None where one of them was not met."""
        self._take(3)
        moments, self._moments = self._moments, {}
        return (moments[0], moments[1], moments[2], moments[3]) if len(moments) == 4 else None


def recorded_event() -> torch.cuda.Event:
    """An event on the current stream, with its time."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
