"""Break the time of GPUs down as HolisticTraceAnalysis does, and the idle time of the steps by its causes.

Pure. `holistic` follows HolisticTraceAnalysis 0.5 (hta/analyzers/breakdown_analysis.py), with its rounding: starts up and ends down to
whole microseconds, where the times of a trace are fractions. A short kernel loses about one of them, and one within a microsecond counts
as -1: of 17.68 ms of kernels 16.70 are left in a step of ResNet-50 with a thousand kernels. It looks at all kernels of a trace,
also outside of steps, and leaves out the last ProfilerStep where there are several.

It is no dependency: with pandas, plotly and JupyterLab it is 104 packages and 500 MB; these are the 100 lines of it that count.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final, Literal

from msgspec import Struct

from workflow.report.profile.layers import COLLECTIVE, Attributed, merged, total, within
from workflow.report.profile.trace import Activity, Trace

KERNEL_WAIT_US: Final = 30
"""A gap between two kernels that is shorter, and for which the processor is not to blame, is the time that a GPU needs to start one."""
MEMORY: Final = re.compile(r"Memcpy|Memset|dma")
NOT_COMPUTING: Final = re.compile(r"nccl.*Kernel|.*Memcpy|Memset|.*Sync")

Type = Literal["computation", "communication", "memory", "other"]
TYPES: Final[tuple[Type, ...]] = ("computation", "communication", "memory")
Cause = Literal["host_wait", "kernel_wait", "other"]
Interval = tuple[float, float]


class Temporal(Struct, frozen=True, kw_only=True):
    """The time from the first kernel's start to the last one's end, in ms: idle + compute + non_compute."""

    kernel_time_ms: float
    idle_ms: float
    compute_ms: float
    """The time in which at least one kernel computes."""
    non_compute_ms: float
    """Nothing computes, but something copies or communicates."""


class StreamIdle(Struct, frozen=True, kw_only=True):
    """The gaps between the kernels of one stream, in ms."""

    device: int
    stream: int
    host_wait_ms: float
    """The next kernel was launched after the one before had ended: the processor was late."""
    kernel_wait_ms: float
    other_ms: float
    host_wait_share: float | None
    """The share of host wait in the three."""


class KernelTypes(Struct, frozen=True, kw_only=True):
    """The time in which each type of kernels ran, in ms; `a_b`: both at once."""

    computation_ms: float
    communication_ms: float
    memory_ms: float
    computation_communication_ms: float
    computation_memory_ms: float
    communication_memory_ms: float
    all_three_ms: float
    overlap_share: float | None
    """The share of communication that is hidden behind computation; null without communication."""


class Breakdown(Struct, frozen=True, kw_only=True):
    """The figures of HolisticTraceAnalysis, of the whole trace."""

    temporal: Temporal
    idle: tuple[StreamIdle, ...]
    kernels: KernelTypes


def type_of(name: str) -> Type:
    """Return the type of a kernel by its name."""
    if COLLECTIVE.match(name):
        return "communication"
    if MEMORY.match(name):
        return "memory"
    return "other" if NOT_COMPUTING.match(name) else "computation"


def cause_of(launch: float | None, gap: Interval) -> Cause:
    """Return why nothing ran in a gap before an activity that was launched at `launch` (None: not known)."""
    if launch is not None and launch > gap[0]:
        return "host_wait"
    return "kernel_wait" if gap[1] - gap[0] < KERNEL_WAIT_US else "other"


def holistic(trace: Trace) -> Breakdown | None:
    """Return the breakdown as HolisticTraceAnalysis makes it; None without kernels."""
    launches = {
        span.link: span.start for spans in trace.threads.values() for span in spans if span.kind == "launch" and span.link is not None
    }
    limit = trace.last_step_start
    chosen = [one for one in trace.activities if limit is None or launches.get(one.link or -1, math.inf) < limit]
    if not any(one.kind != "sync" for one in chosen):
        return None
    is_rounded = any(one.start % 1 or one.end % 1 for one in chosen)
    times = [(float(math.ceil(one.start)), float(math.floor(one.end))) if is_rounded else (one.start, one.end) for one in chosen]
    by_type: dict[Type, list[Interval]] = {"computation": [], "communication": [], "memory": [], "other": []}
    for one, interval in zip(chosen, times, strict=True):
        by_type[type_of(one.name)].append(interval)
    unions = {kind: merged(one for one in found if one[0] <= one[1]) for kind, found in by_type.items()}
    busy = merged(times)
    span, compute = busy[-1][1] - busy[0][0], total(merged(by_type["computation"]))
    return Breakdown(
        temporal=Temporal(
            kernel_time_ms=_ms(span),
            idle_ms=_ms(span - total(busy)),
            compute_ms=_ms(compute),
            non_compute_ms=_ms(max(0.0, total(busy) - compute)),
        ),
        idle=_streams(chosen, times, launches, is_rounded=is_rounded),
        kernels=_types(unions),
    )


def _streams(
    chosen: Sequence[Activity], times: Sequence[Interval], launches: Mapping[int, float], *, is_rounded: bool
) -> tuple[StreamIdle, ...]:
    ends: dict[tuple[int, int], float] = {}
    gaps: dict[tuple[int, int], dict[Cause, float]] = {}
    for one, (start, end) in sorted(zip(chosen, times, strict=True), key=lambda pair: pair[1][0]):
        if one.kind == "sync":
            continue
        stream = (one.device, one.stream)
        found = gaps.setdefault(stream, {"host_wait": 0.0, "kernel_wait": 0.0, "other": 0.0})
        if stream in ends:
            launch = launches.get(one.link) if one.link is not None else None
            rounded = None if launch is None else math.ceil(launch) if is_rounded else launch
            found[cause_of(rounded, (ends[stream], start))] += start - ends[stream]
        ends[stream] = end
    return tuple(
        StreamIdle(
            device=device,
            stream=stream,
            **{f"{cause}_ms": _ms(spent) for cause, spent in found.items()},
            host_wait_share=round(found["host_wait"] / sum(found.values()), 6) if sum(found.values()) > 0 else None,
        )
        for (device, stream), found in sorted(gaps.items())
    )


def _types(unions: Mapping[Type, Sequence[Interval]]) -> KernelTypes:
    edges = sorted((moment, kind) for kind in TYPES for interval in unions[kind] for moment in interval)
    spent: defaultdict[str, float] = defaultdict(float)
    running: set[Type] = set()
    for (moment, kind), (after, _) in pairwise(edges):
        running ^= {kind}
        spent["_".join(one for one in TYPES if one in running)] += after - moment
    hidden, communication = spent["computation_communication"] + spent["_".join(TYPES)], total(unions["communication"])
    return KernelTypes(
        **{f"{name}_ms": _ms(spent[name]) for name in ("computation_communication", "computation_memory", "communication_memory", *TYPES)},
        all_three_ms=_ms(spent["_".join(TYPES)]),
        overlap_share=round(hidden / communication, 6) if communication > 0 else None,
    )


def idle_causes(found: Attributed) -> dict[str, float]:
    """Return the microseconds of the steps in which no work was done, by cause: host_wait, kernel_wait, other, and edges, which are those
    before the first and after the last kernel of a stretch of steps."""
    spent = {"host_wait": 0.0, "kernel_wait": 0.0, "other": 0.0, "edges": 0.0}
    first: dict[float, float | None] = {}  # the start of a busy stretch -> when its first activity was launched
    for one in found.work:
        first.setdefault(one.start, one.launch)
    for window in found.windows:
        before = None
        for start, end in within(found.busy, [window]):
            if before is None:
                spent["edges"] += start - window[0]
            else:
                spent[cause_of(first.get(start), (before, start))] += start - before
            before = end
        spent["edges"] += window[1] - (window[0] if before is None else before)
    return spent


def _ms(microseconds: float) -> float:
    return round(microseconds / 1000, 6)
