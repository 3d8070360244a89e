"""Times of steps on a GPU; those on the CPU are slipway_program's."""

from __future__ import annotations

from collections import deque

import torch
from slipway_program.loop import Finished, HostClock, Issued, Laps, parts_of


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
            seconds = _between(self._last, event)
            if issued.moments:  # while the GPU computes the step before, it does not wait for what the program waits for
                issued = issued._replace(input_s=min(issued.input_s, max(0.0, _between(self._last, issued.moments[0][1]))))
            self._last = event
            finished.append(Finished(issued, seconds, parts_of(issued.moments, _between), float(self._losses[issued.step])))
        return finished


def _between(begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
    return begin.elapsed_time(end) / 1000


def make_laps(device: torch.device) -> Laps:
    """Return what takes the moments of steps on this device."""
    return Laps(recorded_event) if device.type == "cuda" else Laps()


def make_clock(device: torch.device, steps: int) -> HostClock | CudaClock:
    """Return the clock for this device, for at most `steps` steps."""
    return CudaClock(steps) if device.type == "cuda" else HostClock()
