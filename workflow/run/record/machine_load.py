"""The `load` of a node in the record: what its watchers saw, cut to the measured window: before it and during it.

The window is that of the node's ranks, by the clock of their events; watcher and ranks of a node read the same monotonic clock, so a window
that lies outside of the watcher's own time was told by another clock, and nothing is said of it. It is widened to the lines around it: what
happened in it is never missed, and what happened just beside it may be in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from base.sanitize import text
from workflow.run.record.events import RankEvents
from workflow.run.record.rate import measured_steps, moments, windows_of
from workflow.run.record.steps_source import telling
from workflow.run.record.watcher_file import Watched, file_name, read_watched

MOST_NAMED: Final = 3
MAX_NAME: Final = 100
GPU_MEAN_S: Final = 1.0
"""Over so long before a look nvidia-smi takes the mean of power and of work."""

Span = tuple[float, float]


def loads(
    directory: Path, events: Mapping[int, RankEvents], cell: Mapping[str, Any], told: Callable[[Path], None] = lambda _: None
) -> dict[int, dict[str, Any]]:
    """Position of a node -> the record's `load` of it, of those with a file in `directory`; `told` hears of each before it is read."""
    per_node, found = cell["gpus_per_node"], {}
    _, tell, num_telling = telling(events, cell["nodes"] * per_node)
    ranks = [tell[rank].steps for rank in range(num_telling) if rank in tell]
    whole = len(ranks) == num_telling
    measured = measured_steps(ranks) if whole else []
    spans = (
        [moments(steps, window) for steps, window in zip(ranks, windows_of(ranks, measured, cell["mode"]), strict=True)] if measured else []
    )
    for index in range(cell["nodes"]):
        path = directory / file_name(index)
        told(path)
        watched = read_watched(path)
        if watched is not None:
            found[index] = load_of(watched, together(spans[index * per_node : (index + 1) * per_node]))
    return found


def together(spans: Sequence[Span | None]) -> Span | None:
    """From the first begin to the last end; None unless all are known."""
    known = [span for span in spans if span is not None]
    if not known or len(known) < len(spans):
        return None
    return min(begin for begin, _ in known), max(end for _, end in known)


def load_of(watched: Watched, window: Span | None) -> dict[str, Any]:
    """The record's `load` of a node."""
    lines = watched.lines
    head = {"cores": watched.cores, "kernel_seen": watched.kernel_seen}
    if not lines:
        return {**head, "before": None, "during": None}
    first, last = lines[0]["t"], lines[-1]["t"]
    if window is None or not first <= window[0] <= window[1] <= last + 60.0:
        return {**head, "before": _between(watched, first, last, inner=True), "during": None}
    return {
        **head,
        "before": _between(watched, first, window[0], inner=True),
        "during": _between(watched, *window, inner=False),
    }


def _between(watched: Watched, begin: float, end: float, *, inner: bool) -> dict[str, Any] | None:
    """Of the lines from `begin` to `end`: those that lie between, or also the ones around. None where there are not two of them."""
    cut = _Cut(watched.lines, begin, end, inner)
    edges = cut.edges("own")
    if edges is None:
        return None
    seconds = edges[1]["t"] - edges[0]["t"]
    used = {key: edges[1][key] - edges[0][key] for key in ("idle", "steal", "interrupts", "own") if key in edges[0] and key in edges[1]}
    if len(used) < 4:
        return None
    kernel = cut.rate("kernel")
    busy = watched.cores - (used["idle"] + used["steal"] + used["interrupts"]) / seconds
    switches = [cut.rate("switches", place) for place in (0, 1)]
    mhz = [(line["mhz"][0], line["mhz"][1]) for line in cut.having("mhz")]
    return {
        "seconds": _round(seconds),
        "others_cores": _round(max(0.0, busy - used["own"] / seconds - (kernel or 0.0))) if watched.kernel_seen else None,
        "own_cores": _round(max(0.0, used["own"] / seconds)),
        "kernel_cores": _round(kernel),
        "interrupt_cores": _round(max(0.0, used["interrupts"] / seconds)),
        "steal_ratio": _round(min(1.0, max(0.0, used["steal"] / seconds / watched.cores))),
        "busiest": _busiest(cut.having("busiest"), seconds),
        "voluntary_switches_per_s": _round(switches[0]),
        "involuntary_switches_per_s": _round(switches[1]),
        "major_faults": _count(cut.change("faults")),
        "cpu_wait_ratio": _ratio(cut.rate("cpu_some")),
        "memory_wait_ratio": _ratio(cut.rate("memory_some")),
        "memory_stall_ratio": _ratio(cut.rate("memory_full")),
        "io_wait_ratio": _ratio(cut.rate("io_some")),
        "io_stall_ratio": _ratio(cut.rate("io_full")),
        "available_bytes_min": _count(min((line["available"] for line in cut.having("available")), default=None)),
        "swapped_in_bytes": _count(cut.change("swapped_in")),
        "swapped_out_bytes": _count(cut.change("swapped_out")),
        "mhz_mean": _round(sum(mean for mean, _ in mhz) / len(mhz)) if mhz else None,
        "mhz_min": _round(min(least for _, least in mhz)) if mhz else None,
        "throttle_events": _count(cut.change("throttled")),
        "gpus": _gpus(cut.having("gpus"), (begin if inner else begin + GPU_MEAN_S, end)),
    }


class _Cut:
    """The lines of a time."""

    def __init__(self, lines: Sequence[Mapping[str, Any]], begin: float, end: float, inner: bool) -> None:
        self._lines, self._begin, self._end, self._inner = lines, begin, end, inner
        self._found: dict[str, list[Mapping[str, Any]]] = {}

    def having(self, key: str) -> list[Mapping[str, Any]]:
        """Those that tell `key`, in the time; around it one each, unless only what lies between counts."""
        if key not in self._found:  # there may be many lines
            self._found[key] = self._having(key)
        return self._found[key]

    def _having(self, key: str) -> list[Mapping[str, Any]]:
        told = [line for line in self._lines if key in line]
        if self._inner:
            return [line for line in told if self._begin <= line["t"] <= self._end]
        before = [line for line in told if line["t"] <= self._begin][-1:]
        after = [line for line in told if line["t"] >= self._end][:1]
        return [*before, *(line for line in told if self._begin < line["t"] < self._end), *after]

    def edges(self, key: str) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
        """The first and the last of them."""
        lines = self.having(key)
        return (lines[0], lines[-1]) if len(lines) > 1 and lines[-1]["t"] > lines[0]["t"] else None

    def change(self, key: str, place: int | None = None) -> float | None:
        """Of a counter from the first to the last; one that was set back (by a reset) is not known."""
        edges = self.edges(key)
        if edges is None:
            return None
        first, last = (line[key] if place is None else line[key][place] for line in edges)
        return float(last - first) if last >= first else None

    def rate(self, key: str, place: int | None = None) -> float | None:
        """Per second."""
        change, edges = self.change(key, place), self.edges(key)
        return None if change is None or edges is None else change / (edges[1]["t"] - edges[0]["t"])


def _busiest(lines: Sequence[Mapping[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """Who of others used most. A line tells of the time since the one before it, so the first tells of what was earlier."""
    used: dict[str, float] = {}
    for line in lines[1:]:
        for name, spent in line["busiest"]:
            shown = text(" ".join(name.split()), MAX_NAME)
            used[shown] = used.get(shown, 0.0) + spent
    ordered = sorted(used, key=lambda name: -used[name])[:MOST_NAMED]
    span = lines[-1]["t"] - lines[0]["t"] if len(lines) > 1 else seconds
    return [{"name": name, "cores": _round(used[name] / span)} for name in ordered] if span > 0 else []


def _gpus(lines: Sequence[Mapping[str, Any]], inside: Span) -> list[dict[str, Any]] | None:
    """What each GPU did; None where nobody looked. `inside`: from when to when a look tells of nothing but the time that is meant."""
    seen: dict[str, list[tuple[float, Mapping[str, Any]]]] = {}
    for line in lines:
        for gpu in line["gpus"]:
            seen.setdefault(text(gpu["uuid"], MAX_NAME), []).append((line["t"], gpu))
    return [_gpu(uuid, looks, inside) for uuid, looks in seen.items()] if seen else None


def _gpu(uuid: str, timed: Sequence[tuple[float, Mapping[str, Any]]], inside: Span) -> dict[str, Any]:
    looks = [look for _, look in timed]
    in_time = [look for t, look in timed if inside[0] <= t <= inside[1]]

    def told(key: str) -> list[Any]:
        return [look[key] for look in looks if look[key] is not None]

    def mean(key: str) -> float | None:
        """A GPU beside the window may do nothing: that is no part of what it did in it."""
        values = [look[key] for look in in_time if look[key] is not None]
        return _round(sum(values) / len(values)) if values else None

    reasons = 0
    for bits in told("reasons"):
        reasons |= bits
    ecc = told("ecc_errors")
    return {
        "uuid": uuid,
        "looks": len(in_time),
        "mhz_mean": mean("mhz"),
        "max_mhz": _round(max(told("max_mhz"), default=None)),
        "celsius_max": _round(max(told("celsius"), default=None)),
        "watts_mean": mean("watts"),
        "busy_ratio_mean": _ratio(mean("busy_ratio")),
        "throttled": [name for name, bit in REASONS.items() if reasons & bit] if told("reasons") else None,
        "ecc_errors": _count(ecc[-1] - ecc[0]) if ecc and ecc[-1] >= ecc[0] else None,
        "others_max": _count(max(told("others"), default=None)),
    }


REASONS: Final = {
    "power cap": 0x4,
    "hardware slowdown": 0x8,
    "sync boost": 0x10,
    "heat (driver)": 0x20,
    "heat (hardware)": 0x40,
    "power brake": 0x80,
}
"""Why a GPU's clock is not higher, as NVML numbers it; idle and what somebody has set are none."""


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def _ratio(value: float | None) -> float | None:
    return None if value is None else round(min(1.0, value), 4)


def _count(value: float | None) -> int | None:
    return None if value is None else int(value)
