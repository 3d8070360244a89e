"""Make `slipway.profile/1` of a trace, what it says of its steps: layers, the rest of the step, copies, idle time. Pure.

Times are milliseconds of a mean step. A profiled step may be twice as long as a real one, because the processor is slower: the times of
kernels are right, the gaps between them are not.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from base.humanize import counted, format_size
from workflow.report.profile.layers import COLLECTIVE, Attributed, Work, attribute, has_activities, total, within
from workflow.report.profile.trace import Trace
from workflow.report.table_type import percent, significant

SCHEMA: Final = "slipway.profile/1"
MAX_KERNELS: Final = 50
DATA: Final = re.compile("dgrad|backward_input|backward_data", re.IGNORECASE)
WEIGHTS: Final = re.compile("wgrad|backward_weight|grad_weight", re.IGNORECASE)
NAMED_SHARE: Final = 0.8
"""The names must say of so much of a backward whether it is of data or of weights; the rest are sums of biases and changes of layout."""
NOTICED_SHARE: Final = 0.02
KERNEL_WAIT_US: Final = 30
"""A gap between two kernels that is shorter, and for which the processor is not to blame, is the time that a GPU needs to start one."""
MEMORY: Final = re.compile(r"Memcpy|Memset|dma")
NOT_COMPUTING: Final = re.compile(r"nccl.*Kernel|.*Memcpy|Memset|.*Sync")
ALGORITHMS: Final = (
    ("winograd", re.compile("winograd|jit_wino|wino:", re.IGNORECASE)),
    ("fft", re.compile("fft|flip_filter|gemm_cf32|cgemm", re.IGNORECASE)),
    ("implicit gemm", re.compile("implicit|fprop|dgrad|wgrad|convolve|brg_?conv", re.IGNORECASE)),
    ("direct", re.compile(r"depthwise|direct(?!_copy)|conv\w{0,99}2d_\w{0,99}kernel|\bjit(_\w+)?:", re.IGNORECASE)),
    ("gemm", re.compile("gemm|gemv|cutlass|nvjet|slow_conv2d", re.IGNORECASE)),
)


class Layer(Struct, frozen=True, kw_only=True):
    """One layer in a mean step. A layer with others in it has what is in none of those."""

    name: str
    forward_ms: float
    backward_ms: float
    """It includes the forward that checkpointing computes again."""
    backward_data_ms: float | None
    """The time of the gradient of its input; null unless the names of most kernels tell of what they are (dgrad, wgrad)."""
    backward_weights_ms: float | None
    """The time of the gradient of its weights, by the same rule."""
    forward_kernel: str | None
    """The kernel, or the operator of a processor, that took most of the forward."""
    backward_kernel: str | None
    algorithm: str | None
    """How the forward is computed, as the longest of its kernels says whose name tells: winograd, fft, implicit gemm, gemm, direct."""


class Copy(Struct, frozen=True, kw_only=True):
    """Copies of one kind, in a mean step."""

    kind: str
    """The profiler's name of it, such as `Memcpy HtoD (Pageable -> Device)`."""
    pinned: bool | None
    """True if the memory of the host is pinned; null where it is not told, or none of the host's."""
    invocations: float
    bytes: float | None
    """Null where the trace does not tell them, as with ROCm."""
    ms: float
    gb_per_s: float | None


class Idle(Struct, frozen=True, kw_only=True):
    """The part of a mean step in which nothing was done. The causes are null on a processor."""

    ms: float
    host_wait_ms: float | None
    kernel_wait_ms: float | None
    other_ms: float | None
    edges_ms: float | None
    """The time before the first and after the last kernel."""
    host_wait_share: float | None
    """The share of the gaps between kernels."""


class Kernel(Struct, frozen=True, kw_only=True):
    """Kernels, or operators of a processor, of one name in a mean step."""

    name: str
    type: str
    calls: float
    ms: float


class Profile(Struct, frozen=True, kw_only=True):
    """What a trace says of a mean step."""

    schema: Literal["slipway.profile/1"] = SCHEMA
    device: str
    """The GPU, or `cpu`."""
    steps: int
    """0: no range is a step, and all times are those of the whole trace."""
    step_ms: float
    """A step in this trace, until its last kernel has ended."""
    kernel_ms: float
    """All kernels and memsets, or all operators of a processor; those at the same time are each counted."""
    layers: tuple[Layer, ...]
    other: dict[str, float]
    """optimizer, loss, functional; where there are such: copies, communication, input, unattributed; without a GPU host, what the program
    does between its operators."""
    copies: tuple[Copy, ...]
    idle: Idle
    overlap_ms: float
    """Work that was done while other work of these steps was done: layers + other - overlap + idle are the step."""
    kernels: tuple[Kernel, ...]
    notes: tuple[str, ...]

    @property
    def worked_ms(self) -> float:
        """Return the time of all layers and other rows."""
        return sum(one.forward_ms + one.backward_ms for one in self.layers) + sum(self.other.values())


def profile_of(trace: Trace) -> Profile:
    """Return what a trace says of a mean step of it."""
    found = attribute(trace)
    mean = _Mean(max(1, len(trace.steps)))
    layers, other = _rows(found, mean)
    step, busy = mean.ms(total(found.windows)), mean.ms(total(found.busy))
    idle_ms = round(max(0.0, step - busy), 6)
    if not has_activities(trace):  # a processor does not idle between operators: it works in the program that calls them
        other["host"], idle_ms = idle_ms, 0.0
    return Profile(
        device=", ".join(trace.devices) or "gpu" if has_activities(trace) else "cpu",
        steps=len(trace.steps),
        step_ms=step,
        kernel_ms=mean.spent([one for one in found.work if one.kind not in ("copy", "range")]),
        layers=layers,
        other=other,
        copies=_copies(found.work, mean),
        idle=_idle(idle_ms, idle_causes(found), mean, known=has_activities(trace)),
        overlap_ms=round(max(0.0, mean.spent(found.work) - busy), 6),
        kernels=_kernels(found.work, mean),
        notes=tuple(_notes(trace, found, other, step)),
    )


def type_of(name: str) -> str:
    """Return the type of a kernel by its name, as HolisticTraceAnalysis has it."""
    if COLLECTIVE.match(name):
        return "communication"
    if MEMORY.match(name):
        return "memory"
    return "other" if NOT_COMPUTING.match(name) else "computation"


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
                launch = first.get(start)
                late = launch is not None and launch > before
                spent["host_wait" if late else "kernel_wait" if start - before < KERNEL_WAIT_US else "other"] += start - before
            before = end
        spent["edges"] += window[1] - (window[0] if before is None else before)
    return spent


class _Mean:
    """A mean step."""

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps

    def ms(self, microseconds: float) -> float:
        return round(microseconds / 1000 / self.num_steps, 6)

    def spent(self, work: Iterable[Work]) -> float:
        return self.ms(sum(one.own for one in work))


def _idle(idle_ms: float, causes: Mapping[str, float], mean: _Mean, *, known: bool) -> Idle:
    gaps = sum(causes.values()) - causes["edges"]
    found = {f"{cause}_ms": mean.ms(spent) if known else None for cause, spent in causes.items()}
    return Idle(ms=idle_ms, host_wait_share=round(causes["host_wait"] / gaps, 6) if known and gaps > 0 else None, **found)


def _rows(found: Attributed, mean: _Mean) -> tuple[tuple[Layer, ...], dict[str, float]]:
    by_layer: dict[str, list[Work]] = {name: [] for name in found.layers}
    by_row: dict[str, list[Work]] = {row: [] for row in ("optimizer", "loss", "functional")}
    for one in found.work:
        rows = by_layer if one.owner.kind == "layer" else by_row
        rows.setdefault(one.owner.name, []).append(one)
    return tuple(_layer(name, work, mean) for name, work in by_layer.items()), {row: mean.spent(work) for row, work in by_row.items()}


def _layer(name: str, work: Sequence[Work], mean: _Mean) -> Layer:
    forward, backward = ([one for one in work if one.owner.phase == phase] for phase in ("forward", "backward"))
    data, weights = (mean.spent(one for one in backward if pattern.search(one.name)) for pattern in (DATA, WEIGHTS))
    is_told = data + weights > 0 and data + weights >= NAMED_SHARE * mean.spent(backward)
    return Layer(
        name=name,
        forward_ms=mean.spent(forward),
        backward_ms=mean.spent(backward),
        backward_data_ms=data if is_told else None,
        backward_weights_ms=weights if is_told else None,
        forward_kernel=_longest(forward, mean),
        backward_kernel=_longest(backward, mean),
        algorithm=algorithm_of(_longest([one for one in forward if algorithm_of(one.name)], mean) or ""),
    )


def _longest(work: Sequence[Work], mean: _Mean) -> str | None:
    return next((one.name for one in _kernels(work, mean)), None)


def algorithm_of(kernel: str) -> str | None:
    """Return the algorithm that the name of a kernel tells, if it does: of cuDNN, cuBLAS (nvjet; of complex numbers as a part of an FFT),
    CUTLASS, PyTorch, or an implementation of oneDNN as its verbose log has it."""
    return next((word for word, pattern in ALGORITHMS if pattern.search(kernel)), None)


def _copies(work: Sequence[Work], mean: _Mean) -> tuple[Copy, ...]:
    found = []
    for name, copies in sorted(_by_name(one for one in work if one.kind == "copy").items()):
        told = [one.num_bytes for one in copies if one.num_bytes is not None]
        total_bytes, spent = sum(told) if len(told) == len(copies) else None, sum(one.own for one in copies)
        found.append(
            Copy(
                kind=name,
                pinned=False if "Pageable" in name else True if "Pinned" in name else None,
                invocations=len(copies) / mean.num_steps,
                bytes=None if total_bytes is None else total_bytes / mean.num_steps,
                ms=mean.ms(spent),
                gb_per_s=round(total_bytes / spent / 1000, 6) if total_bytes is not None and spent > 0 else None,
            )
        )
    return tuple(found)


def _by_name(work: Iterable[Work]) -> dict[str, list[Work]]:
    found: dict[str, list[Work]] = {}
    for one in work:
        found.setdefault(one.name, []).append(one)
    return found


def _kernels(work: Sequence[Work], mean: _Mean) -> tuple[Kernel, ...]:
    by_name = _by_name(one for one in work if one.kind != "range")
    longest = sorted(by_name.items(), key=lambda item: -sum(one.own for one in item[1]))[:MAX_KERNELS]
    return tuple(
        Kernel(
            name=name,
            type="operator" if alike[0].kind == "operator" else type_of(name),
            calls=len(alike) / mean.num_steps,
            ms=mean.spent(alike),
        )
        for name, alike in longest
    )


def _notes(trace: Trace, found: Attributed, other: dict[str, float], step_ms: float) -> Iterator[str]:
    if not trace.steps:
        yield "no range is called step:<n> or ProfilerStep#<n>: all times are those of the whole trace"
    if not found.layers:
        yield "no range is called layer:<name>, so no layer has a row"
    if not found.work:
        yield "there are no kernels and no operators in the steps"
    if (lost := other.get("unattributed", 0.0)) > NOTICED_SHARE * step_ms:
        yield f"{lost:.3g} ms of a step belong to nothing that is in the trace, such as a forward before it begins"
    if trace.num_left_out:
        yield f"{counted(trace.num_left_out, 'event')} without a valid time or of another form left out"


MAX_NAME: Final = 48
CUTLASS: Final = re.compile(r"(?:\w+::)*Kernel2?<((?:\w+::)*\w+)")
"""The kernel of this library has its name as its first type."""


def short_kernel(name: str) -> str:
    """Return the name of a kernel without its types, namespaces and arguments."""
    if name.startswith("Mem") or "aten::" in name:
        return name
    plain = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    if named := CUTLASS.match(plain):
        plain = named[1]
    while (shorter := re.sub(r"<[^<>]*>", "", plain)) != plain:
        plain = shorter
    plain = plain.partition("(")[0].partition("<")[0].rpartition("::")[2]
    return plain if len(plain) <= MAX_NAME else plain[: MAX_NAME - 3] + "..."


# What copies between memories cost, and what to do about it.


LARGE_SHARE: Final = 0.1
NOTICED_COPIES: Final = 0.01
MANY: Final = 20
SMALL_BYTES: Final = 64 << 10
WORDS: Final = {"Memcpy ": "", "HtoD": "host to device", "DtoH": "device to host", "DtoD": "device to device"}


def described(copy: Copy, whole_ms: float) -> str:
    """Return what copies of one kind are: how many, bytes, time, rate, share of a step of `whole_ms`."""
    kind = copy.kind
    for short, words in WORDS.items():
        kind = kind.replace(short, words)
    size = f"{copy.invocations:.3g} a step, {'bytes not reported' if copy.bytes is None else format_size(copy.bytes)}"
    rate = f", {significant(copy.gb_per_s)} GB/s" if copy.gb_per_s else ""
    share = percent(copy.ms / whole_ms if whole_ms else None)
    return f"{kind}: {size}, {significant(copy.ms)} ms{rate}, {share} of the step"


def advice_on(copy: Copy, whole_ms: float) -> str:
    """Return what to do about copies of one kind; empty where they cost nothing to speak of."""
    share = copy.ms / whole_ms if whole_ms else 0.0
    if copy.pinned is False and share > NOTICED_COPIES:
        return "from pinned memory they are several times as fast: pin_memory=True in the data loader, and .to(device, non_blocking=True)"
    if copy.invocations >= MANY and copy.bytes is not None and copy.bytes < SMALL_BYTES * copy.invocations:
        return "many small copies: join them into one, and read values back (.item(), print) only every few steps"
    if share > LARGE_SHARE and ("HtoD" in copy.kind or "DtoH" in copy.kind):
        return (
            "a large share: copy the next batch while this one is computed (a stream of its own), or send bytes and convert them on the GPU"
        )
    if share > LARGE_SHARE:
        return "a large share: look for .contiguous(), .clone() and changes of layout between layers"
    return ""
