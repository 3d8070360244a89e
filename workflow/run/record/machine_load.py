"""Summarise the load of a node for its record: what its watchers saw during the measured window.

The window is that of the node's ranks, by the clock of their events; watcher and ranks of a node read the same monotonic clock, so a window
that lies outside of the watcher's own time was told by another clock, and nothing is said of it. It is widened to the lines around it: what
happened in it is never missed, and what happened just beside it may be in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import replace

from base import calls, sanitize, untrusted
from workflow.run.record.events import RankEvents, bounded_lines, reporting_ranks
from workflow.run.record.model import Busiest, GpuLoad, Load, LoadOf, Node, Rapl
from workflow.run.record.rate import moments, window_of
from workflow.study.cell import Cell

# The file of a node's watchers, read into lines whose values are in range.


T = TypeVar("T")
MAX_LINES: Final = 100_000
OWN_FELL_S: Final = 0.1
"""How far our time may fall: a process with a parent of others, as a container, takes its time along. Then it is not known."""

Amount = Annotated[float, Meta(ge=0, le=1e15)]


Seen = Amount | UnsetType
"""A value of a line, or that the line does not have it."""


class GpuSample(Struct, frozen=True):
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
    joules: Amount | None = None
    """used since its driver was loaded"""


class Sample(Struct, frozen=True):
    """What the watcher saw at the moment `t`; counters and seconds are since boot, or since it began."""

    t: Amount
    idle: Seen = UNSET
    steal: Seen = UNSET
    interrupts: Seen = UNSET
    own: Seen = UNSET
    faults: Seen = UNSET
    kernel: Seen = UNSET
    busiest: list[tuple[str, Amount]] | UnsetType = UNSET
    available: Seen = UNSET
    swapped_in: Seen = UNSET
    swapped_out: Seen = UNSET
    cpu_some: Seen = UNSET
    memory_some: Seen = UNSET
    memory_full: Seen = UNSET
    io_some: Seen = UNSET
    io_full: Seen = UNSET
    throttled: Seen = UNSET
    gpus: list[GpuSample] | UnsetType = UNSET
    package_j: Seen = UNSET


class Watched(Struct, frozen=True):
    """The file of one node: its head, and the samples in order of their times. Where the kernel's threads cannot be seen, nobody knows
    what of the rest was theirs and what was of others."""

    schema: Literal["slipway.load/1"]
    cores: Annotated[int, Meta(gt=0, lt=1 << 20)]
    """How many cores the run had."""
    kernel_seen: bool = True
    rapl: Rapl | None = None
    lines: tuple[Sample, ...] = ()


def file_name(index: int) -> str:
    """Return the name of a node's file in an attempt's directory, by the node's position."""
    return f"load-{index}.jsonl"


def read_watched(path: Path) -> Watched | None:
    """Read the file of a watcher, without lines that are not its own. None where there is no such file."""
    try:
        descriptor = untrusted.open_file(path)
    except (FileNotFoundError, NotADirectoryError, untrusted.Unusable):
        return None
    with open(descriptor, "rb") as file:
        return parse_watched(bounded_lines(file))


def parse_watched(lines: Iterable[bytes]) -> Watched | None:
    """Parse the lines of a watcher's file. Two watchers write to it, one of them about GPUs only, each in the order of its own times."""
    head: Watched | None = None
    found: list[Sample] = []
    latest: dict[bool, float] = {}
    most_own = 0.0
    for number, line in enumerate(lines):
        if number > MAX_LINES or not line.endswith(b"\n"):  # the last one may be torn
            break
        if head is None and (head := _decoded(_HEAD, line)) is not None:
            continue
        sample = _decoded(_SAMPLE, line)
        if sample is None or sample.t < latest.get(of_gpus := sample.gpus is not UNSET, 0.0):
            continue
        latest[of_gpus] = sample.t
        if sample.own is not UNSET and sample.own < most_own - OWN_FELL_S:
            sample = replace(sample, own=UNSET)
        most_own = most_own if sample.own is UNSET else max(most_own, sample.own)
        found.append(sample)
    if head is None:
        return None
    found.sort(key=lambda sample: sample.t)
    return replace(head, lines=tuple(found))


_HEAD: Final = msgspec.json.Decoder(Watched)
_SAMPLE: Final = msgspec.json.Decoder(Sample)


def _decoded(decoder: msgspec.json.Decoder[T], line: bytes) -> T | None:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


MAX_NAMED: Final = 3
MAX_NAME: Final = 100
GPU_MEAN_S: Final = 1.0
"""Over so long before a look nvidia-smi takes the mean of power and of work."""

Span = tuple[float, float]


def loads(directory: Path, events: Mapping[int, RankEvents], cell: Cell) -> dict[int, Load]:
    """Return the `load` of a record by the position of its node, for nodes with a file in `directory`."""
    per_node, found = cell.gpus_per_node, {}
    _, tell, num_telling = reporting_ranks(events, cell.world_size)
    window = window_of(tell, num_telling, cell.mode)
    spans = [] if window is None else [moments(rank.steps, own) for rank, own in zip(window.ranks, window.own, strict=True)]
    for index in range(cell.nodes):
        calls.moved()
        watched = read_watched(directory / file_name(index))
        if watched is not None:
            found[index] = load_of(watched, whole_span(spans[index * per_node : (index + 1) * per_node]))
    return found


def whole_span(spans: Sequence[Span | None]) -> Span | None:
    """Return the time from the first start to the last end, or None unless all spans are known."""
    known = [span for span in spans if span is not None]
    if not known or len(known) < len(spans):
        return None
    return min(begin for begin, _ in known), max(end for _, end in known)


def load_of(watched: Watched, window: Span | None) -> Load:
    """Build the `load` of a node for its record."""
    load = Load(cores=watched.cores, kernel_seen=watched.kernel_seen, rapl=watched.rapl)
    if not watched.lines:
        return load
    first, last = watched.lines[0].t, watched.lines[-1].t
    if window is None or not first <= window[0] <= window[1] <= last + 60.0:
        return load
    return replace(load, during=_between(watched, *window))


def _between(watched: Watched, begin: float, end: float) -> LoadOf | None:
    """Describe the samples from `begin` to `end`, with one more on each side. None for fewer than two."""
    cut = _Cut(watched.lines, begin, end)
    seconds = cut.seconds("own")
    if seconds is None:
        return None
    idle, steal, interrupts, own = (cut.used(key) for key in ("idle", "steal", "interrupts", "own"))
    if idle is None or steal is None or interrupts is None or own is None:
        return None
    kernel = cut.rate("kernel")
    busy = watched.cores - (idle + steal + interrupts) / seconds
    return LoadOf(
        seconds=round(seconds, 4),
        others_cores=_round(max(0.0, busy - own / seconds - (kernel or 0.0))) if watched.kernel_seen else None,
        own_cores=_round(max(0.0, own / seconds)),
        kernel_cores=_round(kernel),
        interrupt_cores=_round(max(0.0, interrupts / seconds)),
        steal_ratio=_round(min(1.0, max(0.0, steal / seconds / watched.cores))),
        busiest=_busiest(cut.having("busiest"), seconds),
        major_faults=_count(cut.change("faults")),
        cpu_wait_ratio=_ratio(cut.rate("cpu_some")),
        memory_wait_ratio=_ratio(cut.rate("memory_some")),
        memory_stall_ratio=_ratio(cut.rate("memory_full")),
        io_wait_ratio=_ratio(cut.rate("io_some")),
        io_stall_ratio=_ratio(cut.rate("io_full")),
        available_bytes_min=_count(min(cut.values("available"), default=None)),
        swapped_in_bytes=_count(cut.change("swapped_in")),
        swapped_out_bytes=_count(cut.change("swapped_out")),
        throttle_events=_count(cut.change("throttled")),
        gpus=_gpus(cut.having("gpus"), (begin, end)),
        package_j=energy_of([(line.t, line.package_j) for line in cut.having("package_j") if line.package_j is not UNSET], begin, end),
    )


class _Cut:
    """The samples of a time."""

    def __init__(self, lines: Sequence[Sample], begin: float, end: float) -> None:
        self._lines, self._begin, self._end = lines, begin, end
        self._found: dict[str, list[Sample]] = {}

    def having(self, key: str) -> list[Sample]:
        """Return the samples in the time that have `key`, with one before and one after it."""
        if key not in self._found:  # there may be many lines
            known = [line for line in self._lines if getattr(line, key) is not UNSET]
            before = [line for line in known if line.t <= self._begin][-1:]
            after = [line for line in known if line.t >= self._end][:1]
            self._found[key] = [*before, *(line for line in known if self._begin < line.t < self._end), *after]
        return self._found[key]

    def values(self, key: str) -> list[Any]:
        return [getattr(line, key) for line in self.having(key)]

    def seconds(self, key: str) -> float | None:
        """Return the time from the first to the last sample that has `key`, or None if no time is between them."""
        lines = self.having(key)
        return lines[-1].t - lines[0].t if len(lines) > 1 and lines[-1].t > lines[0].t else None

    def used(self, key: str) -> float | None:
        """Return the change of a value between the first and the last sample that has `own`."""
        lines = self.having("own")
        first, last = getattr(lines[0], key), getattr(lines[-1], key)
        return None if first is UNSET or last is UNSET else last - first

    def change(self, key: str) -> float | None:
        """Return None for a counter that was reset."""
        if self.seconds(key) is None:
            return None
        first, *_, last = self.values(key)
        return float(last - first) if last >= first else None

    def rate(self, key: str) -> float | None:
        change, seconds = self.change(key), self.seconds(key)
        return None if change is None or seconds is None else change / seconds


def _busiest(lines: Sequence[Sample], seconds: float) -> tuple[Busiest, ...]:
    """List the other processes that used most. A line covers the time since the one before it, so the first line covers an earlier time."""
    used: dict[str, float] = {}
    for line in lines[1:]:
        for name, spent in line.busiest or ():
            shown = sanitize.text(" ".join(name.split()), MAX_NAME)
            used[shown] = used.get(shown, 0.0) + spent
    ordered = sorted(used, key=lambda name: -used[name])[:MAX_NAMED]
    span = lines[-1].t - lines[0].t if len(lines) > 1 else seconds
    return tuple(Busiest(name=name, cores=round(used[name] / span, 4)) for name in ordered) if span > 0 else ()


def _gpus(lines: Sequence[Sample], span: Span) -> tuple[GpuLoad, ...] | None:
    """Describe what each GPU did, or return None where nobody looked."""
    seen: dict[str, list[tuple[float, GpuSample]]] = {}
    for line in lines:
        for gpu in line.gpus or ():
            seen.setdefault(sanitize.text(gpu.uuid, MAX_NAME), []).append((line.t, gpu))
    return tuple(_gpu(uuid, looks, span) for uuid, looks in seen.items()) or None


def _gpu(uuid: str, timed: Sequence[tuple[float, GpuSample]], span: Span) -> GpuLoad:
    begin, end = span
    looks = [look for _, look in timed]
    in_time = [look for t, look in timed if begin + GPU_MEAN_S <= t <= end]  # a look tells of the second before it

    def known(key: str, of: Sequence[GpuSample] = looks) -> list[Any]:
        return [value for look in of if (value := getattr(look, key)) is not None]

    def mean(key: str) -> float | None:
        """Take the mean of the looks inside the window: a GPU may be idle around it."""
        values = known(key, in_time)
        return _round(sum(values) / len(values)) if values else None

    reasons = known("reasons")
    ecc = known("ecc_errors")
    return GpuLoad(
        uuid=uuid,
        looks=len(in_time),
        mhz_mean=mean("mhz"),
        max_mhz=_round(max(known("max_mhz"), default=None)),
        celsius_max=_round(max(known("celsius"), default=None)),
        watts_mean=mean("watts"),
        busy_ratio_mean=_ratio(mean("busy_ratio")),
        throttled=tuple(name for name, bit in REASONS.items() if any(bits & bit for bits in reasons)) if reasons else None,
        ecc_errors=_count(ecc[-1] - ecc[0]) if ecc and ecc[-1] >= ecc[0] else None,
        others_max=_count(max(known("others"), default=None)),
        energy_j=energy_of([(t, look.joules) for t, look in timed if look.joules is not None], begin, end),
    )


MIN_COVERED: Final = 0.5
"""The part of the window that looks at a counter must cover."""


def energy_of(counted: Sequence[tuple[float, float]], begin: float, end: float) -> float | None:
    """Return the joules from `begin` to `end`: the mean power from the first look between them to the last one, times their distance.

    `counted`: moments in seconds and the counter in joules then. Looks beside the window are not used: what a machine does there is
    something else. None where the looks cover too little of it, and where the counter began again.
    """
    inside = [(t, joules) for t, joules in counted if begin <= t <= end]
    if len(inside) < 2 or inside[-1][0] - inside[0][0] < MIN_COVERED * (end - begin):
        return None
    if any(after < before for (_, before), (_, after) in pairwise(inside)):
        return None
    (first, before), (last, after) = inside[0], inside[-1]
    return round((after - before) / (last - first) * (end - begin), 3) if last > first else None


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
# Each is a fact: a measured number beyond a limit. how-numbers-are-made.md has how often the limit for others is passed on a machine where
# nobody else works, and how often a program beside the run passes it.


OTHERS_CORES: Final = 0.2
"""What a quiet machine's own services use at most."""
OTHERS_RATIO: Final = 0.05
"""The same as a share of the run's cores, where these are few."""
MIN_OTHERS_S: Final = 0.15
"""Processor seconds: the kernel tells those of each process in hundredths."""
STEAL_RATIO: Final = 0.05
MEMORY_RATIO: Final = 0.05
SLOWED: Final = frozenset({"hardware slowdown", "heat (driver)", "heat (hardware)", "power brake"})
"""The reasons that slow a GPU down; a power cap holds at full load on many, and says nothing."""
MAX_SENTENCES: Final = 10


def busy(nodes: Sequence[Node]) -> list[str]:
    """Return one sentence for each load that was too high in the measured window, on any node."""
    found = []
    for node in nodes:
        if node.load and node.load.during is not None:
            found += [f"{node.name}: {words}" for words in _reasons(node.load.cores, node.load.during)]
    return found[:MAX_SENTENCES]


def together(sentences: Sequence[str]) -> list[str]:
    """Combine sentences for readers: the same finding on several nodes becomes one sentence."""
    nodes: dict[str, list[str]] = {}
    for sentence in sentences:
        name, colon, words = sentence.partition(": ")
        nodes.setdefault(words if colon else sentence, []).append(name)
    return [f"{', '.join(names)}: {words}" if words != names[0] else words for words, names in nodes.items()]


def others_seen(nodes: Sequence[Node]) -> bool:
    """Return True if others worked on any node during the window.

    Load before the window does not count: daemons load the image then, and nodes stage the dataset.
    """
    parts = [(node.load.cores, node.load.during) for node in nodes if node.load]
    return any(during is not None and is_loaded_by_others(cores, during.others_cores, during.seconds) for cores, during in parts)


def is_loaded_by_others(cores: int, others_cores: float | None, seconds: float) -> bool:
    """Return whether others used more of the run's `cores` in these seconds than a quiet machine does; False where nobody knows."""
    if others_cores is None:
        return False
    return others_cores > max(min(OTHERS_CORES, OTHERS_RATIO * cores), MIN_OTHERS_S / seconds if seconds else OTHERS_CORES)


def _reasons(cores: int, part: LoadOf) -> list[str]:
    found = []
    if is_loaded_by_others(cores, part.others_cores, part.seconds):
        names = ", ".join(one.name for one in part.busiest)
        found.append(
            f"others used {part.others_cores:.2g} of {cores} core{'s' * (cores > 1)} while it measured{f' ({names})' if names else ''}"
        )
    if part.steal_ratio is not None and part.steal_ratio > STEAL_RATIO:
        found.append(f"the host of this virtual machine took {part.steal_ratio * 100:.0f} % of its cores' time while it measured")
    if part.memory_wait_ratio is not None and part.memory_wait_ratio > MEMORY_RATIO:
        found.append(f"programs waited for memory in {part.memory_wait_ratio * 100:.0f} % of the time that was measured")
    if part.swapped_in_bytes:
        found.append(f"{part.swapped_in_bytes / 2**20:.1f} MiB came back from the swap space while it measured")
    if part.throttle_events:
        found.append(f"heat slowed its cores down {part.throttle_events} times while it measured")
    for gpu in part.gpus or ():
        found += [f"{gpu.uuid}: {words}" for words in _gpu_reasons(gpu)]
    return found


def _gpu_reasons(gpu: GpuLoad) -> list[str]:
    slowed = [name for name in gpu.throttled or () if name in SLOWED]
    others = gpu.others_max or 0
    return [
        *([f"its clock was held down by {', '.join(slowed)} while it measured"] if slowed else []),
        *([f"{others} process{'es' * (others > 1)} of others used it while it measured"] if others else []),
    ]
