"""Times of steps. A step begins where the one before ended, so the steps of a window add up to the window."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

import torch

from .exchange import Moments, recorded_event


class Issued(NamedTuple):
    """A step whose work was handed to the device; seconds spent waiting for its batch, samples in it, and when it waited for the others
    (None: it did not, or that is not known)."""

    step: int
    input_s: float
    samples: int
    waits: Moments | None = None


class Finished(NamedTuple):
    """A step whose result exists. `exchange_s`: seconds that it waited for the other ranks."""

    issued: Issued
    seconds: float
    exchange_s: float | None
    loss: float


class HostClock:
    """CPU: the step has ended when its loss can be read."""

    def __init__(self) -> None:
        self._last = 0.0

    def begin(self) -> None:
        """A window begins now."""
        self._last = time.perf_counter()

    def end(self, issued: Issued, loss: torch.Tensor) -> list[Finished]:
        """The steps finished since the last call."""
        value = loss.item()
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        waits = issued.waits
        exchange_s = None if waits is None else waits[1] - waits[0] + waits[3] - waits[2]
        return [Finished(issued, seconds, exchange_s, value)]

    def drain(self) -> list[Finished]:
        """Wait for all steps issued; those not returned yet."""
        return []


class CudaClock:
    """GPU: an event marks the end of each step on the stream, the loss follows into pinned memory. Nobody waits: finished steps are picked
    up later, so a line per step is still written while the window runs. The only synchronisations are at the ends of windows."""

    def __init__(self, steps: int) -> None:
        self._losses = torch.empty(steps, pin_memory=True)
        self._pending: deque[tuple[Issued, torch.cuda.Event]] = deque()
        self._last = recorded_event()

    def begin(self) -> None:
        """A window begins now."""
        torch.cuda.synchronize()
        self._last = recorded_event()

    def end(self, issued: Issued, loss: torch.Tensor) -> list[Finished]:
        """The steps finished since the last call."""
        self._losses[issued.step].copy_(loss, non_blocking=True)
        self._pending.append((issued, recorded_event()))
        return self._pick_up()

    def drain(self) -> list[Finished]:
        """Wait for all steps issued; those not returned yet."""
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
    """The clock for this device, for at most `steps` steps."""
    return CudaClock(steps) if device.type == "cuda" else HostClock()
