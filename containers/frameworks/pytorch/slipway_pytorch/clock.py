"""Times of steps on a GPU; those on the CPU are slipway_program's."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from slipway_program.loop import Finished, HostClock, Issued, Moments
from torch.nn.parallel import DistributedDataParallel


class Exchange:
    """The moments of each step of `ddp`. On a GPU call it with `now=recorded_event`."""

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
        """Return after the backward of a step its moments; None where one of them was not met."""
        self._take(3)
        moments, self._moments = self._moments, {}
        return (moments[0], moments[1], moments[2], moments[3]) if len(moments) == 4 else None


def recorded_event() -> torch.cuda.Event:
    """Return an event on the current stream, with its time."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


class CudaClock:
    """GPU: an event marks the end of each step on the stream, the loss follows into pinned memory. Nobody waits: finished steps are picked
    up later, so a line per step is still written while the window runs. The only synchronisations are at the ends of windows."""

    def __init__(self, steps: int) -> None:
        self._losses = torch.empty(steps, pin_memory=True)
        self._pending: deque[tuple[Issued, torch.cuda.Event]] = deque()
        self._last = recorded_event()

    def begin(self) -> None:
        torch.cuda.synchronize()
        self._last = recorded_event()

    def end(self, issued: Issued, loss: torch.Tensor) -> list[Finished]:
        """Return the steps finished since the last call."""
        self._losses[issued.step].copy_(loss, non_blocking=True)
        self._pending.append((issued, recorded_event()))
        return self._pick_up()

    def drain(self) -> list[Finished]:
        """Wait for all steps issued, and return those not returned yet."""
        if self._pending:
            self._pending[-1][1].synchronize()
        return self._pick_up()

    def _pick_up(self) -> list[Finished]:
        finished = []
        while self._pending and self._pending[0][1].query():
            issued, event = self._pending.popleft()
            seconds = self._last.elapsed_time(event) / 1000
            self._last = event
            waits = issued.waits
            exchange_s = None if waits is None else (waits[0].elapsed_time(waits[1]) + waits[2].elapsed_time(waits[3])) / 1000
            finished.append(Finished(issued, seconds, exchange_s, float(self._losses[issued.step])))
        return finished


def make_clock(device: torch.device, steps: int) -> HostClock | CudaClock:
    """Return the clock for this device, for at most `steps` steps."""
    return CudaClock(steps) if device.type == "cuda" else HostClock()
