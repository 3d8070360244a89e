"""Times of steps. A step begins where the one before ended, so the steps of a window add up to the window."""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

import torch


class Issued(NamedTuple):
    """A step whose work was handed to the device; seconds spent waiting for its batch, and samples in it."""

    step: int
    input_s: float
    samples: int


class Finished(NamedTuple):
    """A step whose result exists."""

    issued: Issued
    seconds: float
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
        return [Finished(issued, seconds, value)]

    def drain(self) -> list[Finished]:
        """Wait for all steps issued; those not returned yet."""
        return []


class CudaClock:
    """GPU: an event marks the end of each step on the stream, the loss follows into pinned memory. Nobody waits: finished steps are picked
    up later, so a line per step is still written while the window runs. The only synchronisations are at the ends of windows."""

    def __init__(self, steps: int) -> None:
        self._losses = torch.empty(steps, pin_memory=True)
        self._pending: deque[tuple[Issued, torch.cuda.Event]] = deque()
        self._last = _event()

    def begin(self) -> None:
        """A window begins now."""
        torch.cuda.synchronize()
        self._last = _event()

    def end(self, issued: Issued, loss: torch.Tensor) -> list[Finished]:
        """The steps finished since the last call."""
        self._losses[issued.step].copy_(loss, non_blocking=True)
        self._pending.append((issued, _event()))
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
            finished.append(Finished(issued, seconds, float(self._losses[issued.step])))
        return finished


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def make_clock(device: torch.device, steps: int) -> HostClock | CudaClock:
    """The clock for this device, for at most `steps` steps."""
    return CudaClock(steps) if device.type == "cuda" else HostClock()
