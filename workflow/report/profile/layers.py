"""Attribute the work in a trace, kernels or operators of a processor, to layers, optimizer, loss and what else a step does.

Pure. A kernel belongs where its launch lies, by the correlation id. On a processor an operator belongs where it lies itself, with the time
that is not in operators below it, and what is left of a range that decides belongs to the range. There the innermost of these decides:

- a range `layer:<name>`: this layer's forward; below a backward operator, where checkpointing computes it again, its backward;
- `autograd::engine::evaluate_function`: the backward of what made the node, by its sequence number; a sum of gradients (AccumulateGrad)
  has none, and follows the node before it;
- the ranges of optimizers, data loaders, collectives and DDP's reducer.

Else the outermost operator decides: a loss, an optimizer's by its name, or functional, between the layers.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Struct

from workflow.report.profile.trace import Span, Step, Trace

Phase = Literal["forward", "backward"]
COLLECTIVE: Final = re.compile("nccl.*Kernel")
EVALUATE: Final = "autograd::engine::evaluate_function"
LAYER: Final = "layer:"
BEGINNINGS: Final = (
    ("Optimizer.", "optimizer"),
    ("enumerate(DataLoader)", "input"),
    ("gloo:", "communication"),
    ("nccl:", "communication"),
    ("mpi:", "communication"),
    ("ucc:", "communication"),
    ("c10d::", "communication"),
    ("record_param_comms", "communication"),
    ("torch::distributed::reducer", "communication"),
)
"""What a name begins with -> the row of `other` that it belongs to, wherever it lies."""
OPTIMIZERS: Final = ("aten::_foreach_", "aten::_fused_adam", "aten::_fused_sgd", "aten::_fused_adagrad", "aten::_amp_")
LOSSES: Final = ("_loss", "cross_entropy", "kl_div", "LossForward", "LossBackward")


class Owner(NamedTuple):
    """What work belongs to: a layer, or a row of `other`."""

    kind: Literal["layer", "other"]
    name: str
    phase: Phase = "forward"


UNKNOWN: Final = Owner("other", "unattributed")


class Node(Struct, frozen=True, gc=False):
    """An autograd node in its backward, of which the owner is looked up when all threads are read."""

    sequence: int
    start: float


class Work(Struct, frozen=True, gc=False):
    """One activity of a GPU, or one operator or range of a processor with the time that is its own."""

    owner: Owner
    kind: str
    """`operator` or `range`; `kernel`, `copy` or `set`."""
    name: str
    start: float
    end: float
    own: float
    """Microseconds that count; of an operator those without the operators below it."""
    num_bytes: int | None = None
    launch: float | None = None
    """The moment of the launch of the activity, if it is known."""


@dataclass(frozen=True, kw_only=True)
class Attributed:
    """The work of all steps, and what else was busy meanwhile."""

    work: Sequence[Work]
    windows: Sequence[tuple[float, float]]
    """The times of the steps; they do not overlap."""
    busy: Sequence[tuple[float, float]]
    """The times in which work of the steps was done; they do not overlap."""
    layers: Sequence[str]
    """The layers that were called in the steps, in the order of their first calls."""


def attribute(trace: Trace) -> Attributed:
    """Return all work of the steps with its owners; where no range is a step, the whole trace is taken for one."""
    found = _Owners(trace)
    steps = trace.steps or (_whole(trace),)
    starts, ends = [step.start for step in steps], [step.end for step in steps]

    def step_at(moment: float) -> int | None:
        place = bisect_right(starts, moment) - 1
        return place if place >= 0 and moment <= steps[place].end else None

    work: list[Work] = []
    for one, asked in found.activities(trace) if has_activities(trace) else found.operators():
        place = step_at(asked)
        if place is not None:
            work.append(_until(one, steps[place].end))
            ends[place] = max(ends[place], work[-1].end)  # a GPU works on after the range has ended
    return Attributed(
        work=work,
        windows=merged(zip(starts, ends, strict=True)),
        busy=merged((one.start, one.end) for one in work),
        layers=list(dict.fromkeys(name for start, name in sorted(found.ranges) if step_at(start) is not None)),
    )


def has_activities(trace: Trace) -> bool:
    """Return True if a GPU worked in this trace: then kernels count, and operators do not."""
    return bool(trace.activities)


def merged(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the union of intervals as sorted intervals that do not touch."""
    found: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def within(intervals: Sequence[tuple[float, float]], windows: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the parts of `intervals` that lie in `windows`; neither overlap among themselves."""
    found = []
    place = 0
    for start, end in intervals:
        while place < len(windows) and windows[place][1] <= start:
            place += 1
        at = place
        while at < len(windows) and windows[at][0] < end:
            found.append((max(start, windows[at][0]), min(end, windows[at][1])))
            at += 1
    return found


def total(intervals: Sequence[tuple[float, float]]) -> float:
    """Return the length of intervals that do not overlap."""
    return sum(end - start for start, end in intervals)


def _whole(trace: Trace) -> Step:
    starts = [spans[0].start for spans in trace.threads.values()] + [one.start for one in trace.activities[:1]]
    ends = [max(span.end for span in spans) for spans in trace.threads.values()] + [one.end for one in trace.activities]
    return Step("", min(starts, default=0.0), max(ends, default=0.0))


def _until(work: Work, end: float) -> Work:
    """Return `work` of a step that ends then. An operator that goes on after it, on another thread, counts until the step ends."""
    late = max(0.0, work.end - end) if work.kind in ("operator", "range") else 0.0
    return msgspec.structs.replace(work, end=work.end - late, own=max(0.0, work.own - late)) if late else work


class _Owners:
    """The owners of all spans of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.own: dict[str, Owner | None] = {}
        self.forward: dict[int, list[tuple[float, Owner | Node | None]]] = {}
        self.launches: dict[int, list[tuple[float, Owner | Node | None]]] = {}
        self.ranges: list[tuple[float, str]] = []
        self.work: list[tuple[Span, Owner | Node | None, float]] = []
        self.on_gpu = has_activities(trace)
        for spans in trace.threads.values():
            self._sweep(spans)
        for noted in (*self.forward.values(), *self.launches.values()):
            noted.sort(key=_start)

    def _sweep(self, spans: Sequence[Span]) -> None:
        """Note the owners of the spans of one thread, with a stack of those that are open."""
        stack: list[tuple[float, Owner | Node | None, bool, int | None]] = []  # end, owner, in a backward, place of the work
        node: Node | None = None
        own: list[float] = []
        first = len(self.work)
        for span in spans:
            while stack and stack[-1][0] <= span.start:
                stack.pop()
            end, parent, in_backward, above = stack[-1] if stack else (span.end, None, False, None)
            owner: Owner | Node | None
            if span.name.startswith(EVALUATE):
                if span.sequence is not None:
                    node = Node(span.sequence, span.start)
                owner, in_backward = node or UNKNOWN, True
            else:
                owner = self._owner(span, parent, in_backward)
            self._note(span, owner)
            place = above
            if not self.on_gpu and owner is not None:
                place = len(own)
                length = max(0.0, min(span.end, end) - span.start)
                own.append(length)
                if above is not None:
                    own[above] -= length
                self.work.append((span, owner, 0.0))
            stack.append((min(span.end, end), owner, in_backward, place))
        self.work[first:] = [(span, owner, max(0.0, spent)) for (span, owner, _), spent in zip(self.work[first:], own, strict=True)]

    def _owner(self, span: Span, parent: Owner | Node | None, in_backward: bool) -> Owner | Node | None:
        if span.name not in self.own:
            self.own[span.name] = _named(span.name)
        found = self.own[span.name]
        if found is not None:
            return found._replace(phase="backward") if in_backward and found.kind == "layer" else found
        return parent if parent is not None or span.kind != "operator" else _outermost(span.name)

    def _note(self, span: Span, owner: Owner | Node | None) -> None:
        if span.kind == "launch":
            if span.link is not None:
                self.launches.setdefault(span.link, []).append((span.start, owner))
            return
        if span.name.startswith(LAYER):
            self.ranges.append((span.start, span.name.removeprefix(LAYER)))
        elif span.sequence is not None and not span.is_backward:
            self.forward.setdefault(span.sequence, []).append((span.start, owner))

    def activities(self, trace: Trace) -> Iterator[tuple[Work, float]]:
        """Yield the activities of GPUs, each with the moment at which the processor asked for it."""
        for one in trace.activities:
            known = self.launches.get(one.link, []) if one.link is not None else []
            place = bisect_right(known, one.end, key=_start)
            launch, owner = known[place - 1] if place else (None, None)
            found = self._resolved(owner)
            if COLLECTIVE.match(one.name):
                found = COMMUNICATION
            elif one.kind == "copy" and found.kind != "layer" and found.name not in ("optimizer", "communication"):
                found = COPIES
            work = Work(found, one.kind, one.name, one.start, one.end, one.end - one.start, one.num_bytes, launch)
            yield work, one.start if launch is None else launch

    def operators(self) -> Iterator[tuple[Work, float]]:
        """Yield the operators with the time of their own, and the ranges that decide with the time between the operators in them."""
        for span, owner, own in self.work:
            yield Work(self._resolved(owner), span.kind, span.name, span.start, span.end, own), span.start

    def _resolved(self, owner: Owner | Node | None) -> Owner:
        is_backward = False
        while isinstance(owner, Node):  # of a backward of a backward more than once; each time the start is earlier
            is_backward = True
            owner = self._forward(owner)
        if owner is None:
            return UNKNOWN
        return owner._replace(phase="backward") if is_backward else owner

    def _forward(self, node: Node) -> Owner | Node | None:
        """Return the owner of the forward operator that made a node: of those with its sequence number the last one that began before."""
        made = self.forward.get(node.sequence, [])
        place = bisect_left(made, node.start, key=_start)
        return made[place - 1][1] if place else None


COMMUNICATION: Final = Owner("other", "communication")
COPIES: Final = Owner("other", "copies")


def _start(one: tuple[Any, ...]) -> float:
    found: float = one[0]
    return found


def _named(name: str) -> Owner | None:
    """Return the owner that a name alone decides."""
    if name.startswith(LAYER):
        return Owner("layer", name.removeprefix(LAYER))
    return next((Owner("other", row) for beginning, row in BEGINNINGS if name.startswith(beginning)), None)


def _outermost(name: str) -> Owner:
    """Return the owner of an operator that lies in nothing which decides."""
    if any(word in name for word in LOSSES):
        return Owner("other", "loss")
    if name.startswith(OPTIMIZERS):
        return Owner("other", "optimizer")
    return Owner("other", "functional")
