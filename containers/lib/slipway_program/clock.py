"""Times of steps. A step begins where the one before ended, so the steps of a window add up to the window."""

import time
from typing import Any, List, NamedTuple, Optional, Tuple

Moments = Tuple[Any, Any, Any, Any]
"""Before and after a first wait for the other ranks, before and after a second one: seconds, or events of a stream."""


class Issued(NamedTuple):
    """A step whose work was handed to the device; seconds spent waiting for its batch, samples in it, when it waited for the others (None:
    it did not, or that is not known); where samples are sequences, tokens that its loss is made of, and how long its sequences are, with
    what fills them up."""

    step: int
    input_s: float
    samples: int
    waits: Optional[Moments]
    tokens: Optional[int] = None
    length: Optional[int] = None


Finished = NamedTuple("Finished", [("issued", Issued), ("seconds", float), ("exchange_s", Optional[float]), ("loss", float)])
"""A step whose result exists. `exchange_s`: seconds that it waited for the other ranks."""


class HostClock:
    """The step has ended when its loss can be read."""

    def __init__(self) -> None:
        self._last = 0.0

    def begin(self) -> None:
        """A window begins now."""
        self._last = time.perf_counter()

    def end(self, issued: Issued, loss: Any) -> List[Finished]:
        """The steps finished since the last call."""
        value = float(loss)
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        waits = issued.waits
        exchange_s = None if waits is None else waits[1] - waits[0] + waits[3] - waits[2]
        return [Finished(issued, seconds, exchange_s, value)]

    def drain(self) -> List[Finished]:
        """Wait for all steps issued; those not returned yet."""
        return []
