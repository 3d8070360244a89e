"""Write and read the lines by which a supervisor reports its progress, and results that wait on their nodes. Pure."""

from collections.abc import Sequence
from typing import Final

from base import humanize

# The progress line: `train: step 120 of 200, 1,480 samples/s, 3.1 s left`.


OFTEN_S: Final = 2.0
SELDOM_S: Final = 10.0
BEGINNING_S: Final = 60.0
"""Who has just started a study looks at it; the log of a run of days is not to be filled."""


class ProgressLine:
    """The line that is due, from the step that all ranks have done. `batch`: samples of a step; None where tokens are counted, which ranks
    alone know. Times are those of the monotonic clock, given by the caller."""

    def __init__(self, batch: int | None, steps: int | None, now: float) -> None:
        self._batch, self._steps = batch, steps
        self._begun = now
        self._due = now
        self._first: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None

    def due(self, step: int, now: float, tokens: int | None = None) -> str | None:
        """Return the line of step `step`, counted from 0, or None while none is due.

        The rate is since the line before, the time left by the rate since the first. `tokens`: tokens of one step, as all ranks report
        them.
        """
        if now < self._due or (self._last is not None and step + 1 == self._last[1]):
            return None
        self._due = now + (OFTEN_S if now - self._begun < BEGINNING_S else SELDOM_S)
        done = step + 1
        # A program may count its steps from 1, or write one more than were asked.
        told = f"train: step {done:,}" + ("" if self._steps is None or done > self._steps else f" of {self._steps:,}")
        if self._last is not None and self._first is not None and done > self._last[1]:
            each, unit = (tokens, "tokens") if self._batch is None else (self._batch, "samples")
            if each is not None:
                told += f", {each * (done - self._last[1]) / (now - self._last[0]):,.0f} {unit}/s"
            if self._steps is not None and done < self._steps:
                told += f", {humanize.format_duration((self._steps - done) * (now - self._first[0]) / (done - self._first[1]))} left"
        self._first = self._first or (now, done)
        self._last = (now, done)
        return told


# Results that wait on their nodes: the words by which a supervisor reports them.


WAITS: Final = "its result waits on "
MAY_WAIT: Final = "its result may wait on "
"""The words if only the log of the run says that a result waits: no node was asked."""
DELIVER: Final = "; deliver it there with `slipway reap --push`"
PUSH: Final = "push: "
"""What the errors of a push begin with, in the words of a node."""
STATUS: Final = "storage"
"""How such a run has ended."""


def waiting_words(nodes: Sequence[str]) -> str:
    """Return the end of a reason: which nodes a result waits on, and what to do. It is said before they keep it: each may have no room."""
    return f"{WAITS}{', '.join(nodes)} if there is room on the disk there{DELIVER}"


def says_waiting(reason: str) -> bool:
    """Return True if the reason says that a result waits, or may wait."""
    return WAITS in reason or MAY_WAIT in reason


def waiting_reason(error: str) -> str | None:
    """Return why a run has no record if its result waits, by the last error in its log.

    A log on a full storage ends with what a node reported, since nothing more could be written.
    """
    if says_waiting(error):
        return error
    return f"{error}; {MAY_WAIT}its nodes{DELIVER}" if error.startswith(PUSH) else None
