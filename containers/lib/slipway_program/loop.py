"""Run the steps of a run, each with its event, and the measured window."""

import math
import time
from typing import Any, Callable, Container, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple

from slipway_events import EventFile

from .checkpoint import CheckpointRequested, Request
from .plan import Steps
from .rank import LossNotFinite

Moments = Sequence[Tuple[str, Any]]
"""The moments of a step in order, seconds or events of a stream: each ends the part of the step that it names, which begins at the moment
before. A part without a name is not told."""


class Laps:
    """Take the moments of each step. On a GPU `now` returns an event of the stream."""

    def __init__(self, now: Callable[[], Any] = time.perf_counter) -> None:
        self._now = now
        self._moments = []  # type: List[Tuple[str, Any]]

    def begin(self) -> None:
        self._moments = [("", self._now())]

    def end(self, part: str) -> None:
        """End a part; nothing where no step has begun, as in an evaluation."""
        if self._moments:
            self._moments.append((part, self._now()))

    def end_backward(self) -> None:
        """End the part `exchange`, or time that is in no part if the end of the own backward was not seen."""
        self.end("exchange" if self._moments and self._moments[-1][0] == "backward" else "")

    def take(self) -> Moments:
        """Return the moments of the step, which is over."""
        found, self._moments = self._moments, []
        return found


def parts_of(moments: Moments, between: Callable[[Any, Any], float]) -> Dict[str, float]:
    found = {}  # type: Dict[str, float]
    for (_, begin), (part, end) in zip(moments, moments[1:]):
        if part:
            found[part] = found.get(part, 0.0) + between(begin, end)
    return found


class Issued(NamedTuple):
    """A step whose work was handed to the device; seconds spent waiting for its batch, samples in it, the moments of its parts (empty: not
    known); where samples are sequences, tokens that its loss is made of, and how long its sequences are, with what fills them up."""

    step: int
    input_s: float
    samples: int
    moments: Moments
    tokens: Optional[int] = None
    length: Optional[int] = None


Finished = NamedTuple("Finished", [("issued", Issued), ("seconds", float), ("parts", Dict[str, float]), ("loss", float)])
"""A step whose result exists. `parts`: seconds by name, of them `exchange` that it waited for the other ranks."""


class HostClock:
    """The step has ended when its loss can be read."""

    def __init__(self) -> None:
        self._last = 0.0

    def begin(self) -> None:
        self._last = time.perf_counter()

    def end(self, issued: Issued, loss: Any) -> List[Finished]:
        """Return the steps finished since the last call."""
        value = float(loss)
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        return [Finished(issued, seconds, parts_of(issued.moments, lambda begin, end: end - begin), value)]

    def drain(self) -> List[Finished]:
        """Wait for all steps issued, and return those not returned yet."""
        return []


Step = Callable[[int, Any, Any], Tuple[Any, Moments]]
"""(number, images, labels) -> the loss of this rank, and the moments of the parts of the step."""

Around = NamedTuple("Around", [("clock", Any), ("barrier", Callable[[], object]), ("events", EventFile), ("request", Request)])
"""What the steps run in: a HostClock or the like; a call that all ranks make together; where to write; who may ask for an end."""

Evaluations = NamedTuple("Evaluations", [("before", Container[int]), ("evaluate", Callable[[int], object])])
"""The steps before which all ranks evaluate, and a call that does it, with the number of the step."""
NO_EVALUATIONS = Evaluations((), lambda _: None)


def run_steps(
    steps: Steps, step: Step, batches: Iterator[Any], around: Around, evaluations: Evaluations = NO_EVALUATIONS
) -> Dict[str, float]:
    """Run all steps that are left, an event each. The time of a step covers waiting for its batch, and its loss exists at its end.

    Returns train_s, and for the measured window its wall time and the sum of its steps: they must agree, or the clock is wrong. Evaluations
    between steps are in no time. Raises CheckpointRequested between two steps, the first one finished.
    """
    clock, barrier, events, request = around
    measured_s = 0.0
    evaluated = {}  # type: Dict[int, float]

    def report(finished: Sequence[Finished]) -> None:
        nonlocal measured_s
        for (number, input_s, samples, _, tokens, length), seconds, parts, loss in finished:
            if not math.isfinite(loss):
                raise LossNotFinite("the loss of step %d is %r" % (number, loss))
            measured = steps.first_measured <= number < steps.end_measured
            measured_s += seconds if measured else 0.0
            times = {"seconds": seconds, "input_s": input_s, "samples": samples}  # type: Dict[str, float]
            times.update({part + "_s": lasted for part, lasted in parts.items()})
            times.update({name: value for name, value in (("tokens", tokens), ("length", length)) if value is not None})
            events.emit("step", step=number, measured=measured, **times, loss=loss, loss_scope="local")

    start = time.perf_counter()
    marks = {steps.first: start}
    if steps.first_measured > steps.first:
        events.phase("warmup")
    clock.begin()
    for number in range(steps.first, steps.total):
        if request.is_there():
            report(clock.drain())
            raise CheckpointRequested(number)
        if number in evaluations.before:
            report(clock.drain())
            before = time.perf_counter()
            evaluations.evaluate(number)
            barrier()
            events.phase("train" if number > steps.first_measured else "warmup")
            evaluated[number] = time.perf_counter() - before
            clock.begin()
        if number in (steps.first_measured, steps.end_measured):
            report(clock.drain())
            if number == steps.first_measured:
                barrier()  # all ranks begin the window together
                events.phase("train")
            marks[number] = time.perf_counter()
            clock.begin()
        before = time.perf_counter()
        images, labels = next(batches)
        input_s = time.perf_counter() - before
        loss, moments = step(number, images, labels)
        report(clock.end(Issued(number, input_s, len(labels), moments, *tokens_of(labels)), loss))
    report(clock.drain())
    end = time.perf_counter()
    window_s = marks.get(steps.end_measured, end) - marks.get(steps.first_measured, end)
    window_s -= sum(lasted for number, lasted in evaluated.items() if steps.first_measured < number <= steps.end_measured)
    return {"train_s": end - start - sum(evaluated.values()), "window_wall_s": window_s, "window_steps_s": measured_s}


def tokens_of(labels: Any) -> Tuple[Optional[int], Optional[int]]:
    """Return the number of targets and the length of the sequences of a batch, None for images. A label below 0 is no target."""
    return (int((labels >= 0).sum()), int(labels.shape[1])) if labels.ndim > 1 else (None, None)
