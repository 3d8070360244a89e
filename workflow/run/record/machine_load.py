"""Summarise the load of a node for its record: what its watchers saw before and during the measured window.

The window is that of the node's ranks, by the clock of their events; watcher and ranks of a node read the same monotonic clock, so a window
that lies outside of the watcher's own time was told by another clock, and nothing is said of it. It is widened to the lines around it: what
happened in it is never missed, and what happened just beside it may be in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from base.sanitize import text
from base.untrusted import Unusable, open_file
from workflow.run.record.events import RankEvents, bounded_lines, parse_line, telling
from workflow.run.record.rate import measured_steps, moments, windows_of

# The file of a node's watchers, read into lines whose values are in range.


MAX_LINES: Final = 100_000
OWN_FELL_S: Final = 0.1
"""Processes whose parent is none of ours take their time along when they end, as a container does: from then on ours is not known."""

Amount = Annotated[float, Meta(ge=0, le=1e15)]


class Gpu(TypedDict):
    """One GPU at that moment. `reasons`: bits of why its clock is not higher; `others`: processes on it that are not ours."""

    uuid: str
    mhz: Amount | None
    max_mhz: Amount | None
    reasons: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None
    celsius: Amount | None
    watts: Amount | None
    busy_ratio: Amount | None
    ecc_errors: Amount | None
    others: Amount | None


class Line(TypedDict):
    """What the watcher saw at the moment `t`; counters and seconds are since boot, or since it began."""

    t: Amount
    idle: NotRequired[Amount]
    steal: NotRequired[Amount]
    interrupts: NotRequired[Amount]
    own: NotRequired[Amount]
    faults: NotRequired[Amount]
    kernel: NotRequired[Amount]
    busiest: NotRequired[list[tuple[str, Amount]]]
    switches: NotRequired[tuple[Amount, Amount]]
    available: NotRequired[Amount]
    swapped_in: NotRequired[Amount]
    swapped_out: NotRequired[Amount]
    cpu_some: NotRequired[Amount]
    memory_some: NotRequired[Amount]
    memory_full: NotRequired[Amount]
    io_some: NotRequired[Amount]
    io_full: NotRequired[Amount]
    mhz: NotRequired[tuple[Amount, Amount]]
    throttled: NotRequired[Amount]
    gpus: NotRequired[list[Gpu]]


class _Head(TypedDict):
    schema: Literal["slipway.load/1"]
    cores: Annotated[int, Meta(gt=0, lt=1 << 20)]
    kernel_seen: NotRequired[bool]


@dataclass(frozen=True, kw_only=True)
class Watched:
    """Of one node: how many cores the run had, the lines in order of their times, and whether the kernel's threads could be seen: where
    they cannot, nobody knows what of the rest was theirs and what was of others."""

    cores: int
    lines: tuple[Mapping[str, Any], ...]
    kernel_seen: bool = True


def file_name(index: int) -> str:
    """Return the name of a node's file in an attempt's directory, by the node's position."""
    return f"load-{index}.jsonl"


def read_watched(path: Path) -> Watched | None:
    """Read the file of a watcher, without lines that are not its own. None where there is no such file."""
    try:
        descriptor = open_file(path)
    except (FileNotFoundError, NotADirectoryError, Unusable):
        return None
    with open(descriptor, "rb") as file:
        return parse_watched(bounded_lines(file))


def parse_watched(lines: Iterable[bytes]) -> Watched | None:
    """Parse the lines of a watcher's file. Two watchers write to it, one of them about GPUs only, each in the order of its own times."""
    head: Any = None
    found: list[Any] = []
    latest: dict[bool, float] = {}
    most_own = 0.0
    for number, line in enumerate(lines):
        if number > MAX_LINES or not line.endswith(b"\n"):  # the last one may be torn
            break
        value = parse_line(line)
        if head is None and (head := _read(_Head, value)) is not None:
            continue
        sample = _read(Line, value)
        if sample is None or sample["t"] < latest.get(kind := "gpus" in sample, 0.0):
            continue
        latest[kind] = sample["t"]
        if sample.get("own", most_own) < most_own - OWN_FELL_S:
            sample = {key: seen for key, seen in sample.items() if key != "own"}
        most_own = max(most_own, sample.get("own", 0.0))
        found.append(sample)
    if head is None:
        return None
    found.sort(key=lambda sample: sample["t"])
    return Watched(cores=head["cores"], lines=tuple(found), kernel_seen=head.get("kernel_seen", True))


def _read(kind: Any, value: Any) -> Any:
    """Convert a value to `kind`, without unknown keys. None where it does not fit."""
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, UnicodeEncodeError):  # which it wants to tell of a text with half of a character
        return None


MOST_NAMED: Final = 3
MAX_NAME: Final = 100
GPU_MEAN_S: Final = 1.0
"""Over so long before a look nvidia-smi takes the mean of power and of work."""

Span = tuple[float, float]


def loads(
    directory: Path, events: Mapping[int, RankEvents], cell: Mapping[str, Any], told: Callable[[Path], None] = lambda _: None
) -> dict[int, dict[str, Any]]:
    """Return the `load` of a record by the position of its node, for nodes with a file in `directory`.

    `told` is called with each path before it is read.
    """
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
            found[index] = load_of(watched, whole_span(spans[index * per_node : (index + 1) * per_node]))
    return found


def whole_span(spans: Sequence[Span | None]) -> Span | None:
    """Return the time from the first begin to the last end, or None unless all spans are known."""
    known = [span for span in spans if span is not None]
    if not known or len(known) < len(spans):
        return None
    return min(begin for begin, _ in known), max(end for _, end in known)


def load_of(watched: Watched, window: Span | None) -> dict[str, Any]:
    """Build the `load` of a node for its record."""
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
    """Describe the lines from `begin` to `end`: only those inside (`inner`), or also one on each side. None for fewer than two lines."""
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
        """Return the lines in the time that have `key`, with one before and one after it unless only those inside count."""
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
        """Return the first and the last line that has `key`."""
        lines = self.having(key)
        return (lines[0], lines[-1]) if len(lines) > 1 and lines[-1]["t"] > lines[0]["t"] else None

    def change(self, key: str, place: int | None = None) -> float | None:
        """Return the change of a counter from the first to the last line. None for a counter that was reset."""
        edges = self.edges(key)
        if edges is None:
            return None
        first, last = (line[key] if place is None else line[key][place] for line in edges)
        return float(last - first) if last >= first else None

    def rate(self, key: str, place: int | None = None) -> float | None:
        """Return the change of a counter per second."""
        change, edges = self.change(key, place), self.edges(key)
        return None if change is None or edges is None else change / (edges[1]["t"] - edges[0]["t"])


def _busiest(lines: Sequence[Mapping[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """List the other processes that used most. A line covers the time since the one before it, so the first line covers an earlier time."""
    used: dict[str, float] = {}
    for line in lines[1:]:
        for name, spent in line["busiest"]:
            shown = text(" ".join(name.split()), MAX_NAME)
            used[shown] = used.get(shown, 0.0) + spent
    ordered = sorted(used, key=lambda name: -used[name])[:MOST_NAMED]
    span = lines[-1]["t"] - lines[0]["t"] if len(lines) > 1 else seconds
    return [{"name": name, "cores": _round(used[name] / span)} for name in ordered] if span > 0 else []


def _gpus(lines: Sequence[Mapping[str, Any]], inside: Span) -> list[dict[str, Any]] | None:
    """Describe what each GPU did, or return None where nobody looked. `inside`: the time in which a look covers only the window."""
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
        """Take the mean of the looks inside the window: a GPU may be idle around it."""
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


# The mark `busy`: the machine did something else while it measured, so much that the number can have moved.
#
# Each is a fact: a measured number beyond a limit. How often the limit for others is passed on a machine where nobody else works, and how
# often a program beside the run passes it, `python -m benchmarks.busy` measures; docs/tables.md has the figures.


OTHERS_CORES: Final = 0.2
"""What a quiet machine's own services use at most."""
OTHERS_RATIO: Final = 0.05
"""Of the run's cores, where these are few."""
LEAST_OTHERS_S: Final = 0.15
"""Processor seconds: the kernel tells those of each process in hundredths."""
STEAL_RATIO: Final = 0.05
MEMORY_RATIO: Final = 0.05
SLOWED: Final = frozenset({"hardware slowdown", "heat (driver)", "heat (hardware)", "power brake"})
"""Of a GPU's reasons; a power cap holds at full load on many, and says nothing."""
MOST: Final = 10


def busy(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one sentence for each load that was too high in the measured window, on any node."""
    found = []
    for node in nodes:
        load = node.get("load")
        if load is not None and load["during"] is not None:
            found += [f"{node['name']}: {words}" for words in _reasons(load["cores"], load["during"])]
    return found[:MOST]


def together(sentences: Sequence[str]) -> list[str]:
    """Combine sentences for readers: the same finding on several nodes becomes one sentence."""
    nodes: dict[str, list[str]] = {}
    for sentence in sentences:
        name, colon, words = sentence.partition(": ")
        nodes.setdefault(words if colon else sentence, []).append(name)
    return [f"{', '.join(names)}: {words}" if words != names[0] else words for words, names in nodes.items()]


def others_seen(nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if others worked on any node during the window.

    Load before the window does not count: daemons load the image then, and nodes stage the dataset.
    """
    loads = [node["load"] for node in nodes if node.get("load") is not None]
    parts = [(load["cores"], load["during"]) for load in loads if load["during"] is not None]
    return any(beyond(cores, part["others_cores"], part["seconds"]) for cores, part in parts)


def beyond(cores: int, others_cores: float | None, seconds: float) -> bool:
    """Return whether others used more of the run's `cores` in these seconds than a quiet machine does; False where nobody knows."""
    if others_cores is None:
        return False
    return others_cores > max(min(OTHERS_CORES, OTHERS_RATIO * cores), LEAST_OTHERS_S / seconds if seconds else OTHERS_CORES)


def _reasons(cores: int, part: Mapping[str, Any]) -> list[str]:
    found = []
    if beyond(cores, part["others_cores"], part["seconds"]):
        names = ", ".join(one["name"] for one in part["busiest"])
        found.append(
            f"others used {part['others_cores']:.2g} of {cores} core{'s' * (cores > 1)} while it measured{f' ({names})' if names else ''}"
        )
    if part["steal_ratio"] > STEAL_RATIO:
        found.append(f"the host of this virtual machine took {part['steal_ratio'] * 100:.0f} % of its cores' time while it measured")
    if (part["memory_wait_ratio"] or 0.0) > MEMORY_RATIO:
        found.append(f"programs waited for memory in {part['memory_wait_ratio'] * 100:.0f} % of the time that was measured")
    if part["swapped_in_bytes"]:
        found.append(f"{part['swapped_in_bytes'] / 2**20:.1f} MiB came back from the swap space while it measured")
    if part["throttle_events"]:
        found.append(f"heat slowed its cores down {part['throttle_events']} times while it measured")
    for gpu in part["gpus"] or ():
        found += [f"{gpu['uuid']}: {words}" for words in _gpu_reasons(gpu)]
    return found


def _gpu_reasons(gpu: Mapping[str, Any]) -> list[str]:
    slowed = [name for name in gpu["throttled"] or () if name in SLOWED]
    others = gpu["others_max"] or 0
    return [
        *([f"its clock was held down by {', '.join(slowed)} while it measured"] if slowed else []),
        *([f"{others} process{'es' * (others > 1)} of others used it while it measured"] if others else []),
    ]
