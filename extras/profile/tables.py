"""Show a profile to people: the table of layers, the copies, the idle time, and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from base.humanize import counted, format_size
from containers.models.facts import LayerCost
from workflow.commands.watching import output
from workflow.report.layers_table import layers_of_trace
from workflow.report.profile.profile import Copy, Profile, short_kernel
from workflow.report.table import percent, significant
from workflow.report.terminal import print_table

MOST_KERNELS: Final = 10
LARGE_SHARE: Final = 0.1
NOTICED_SHARE: Final = 0.01
MANY: Final = 20
SMALL_BYTES: Final = 64 << 10


def print_profile(profile: Profile, step_ms: float | None, costs: Mapping[str, LayerCost]) -> None:
    """Print the tables of a profile on standard output; shares are of `step_ms`, or of the step in the trace."""
    whole_ms = step_ms or profile.step_ms
    steps = f"mean of {counted(profile.steps, 'profiled step')}" if profile.steps else "the whole trace"
    output.prose(f"{profile.device}: {steps}, {significant(profile.step_ms)} ms; shares are of {significant(whole_ms)} ms")
    output.line()
    print_table(layers_of_trace(profile, whole_ms, costs))
    for title, rows in (
        ("Longest kernels", _kernels(profile, whole_ms)),
        ("Copies", _copies(profile, whole_ms)),
        ("Not computing", _idle(profile, is_measured=step_ms is not None)),
        ("Notes", iter(profile.notes)),
    ):
        if lines := list(rows):
            output.line()
            output.heading(title)
            for line in lines:
                output.prose(f"  {line}", "    ")


def _share(spent: float, whole_ms: float) -> str:
    return percent(spent / whole_ms if whole_ms else None)


def _kernels(profile: Profile, whole_ms: float) -> Iterator[str]:
    if not profile.layers:
        for one in profile.kernels[:MOST_KERNELS]:
            yield f"{short_kernel(one.name)}: {significant(one.calls)} a step, {significant(one.ms)} ms, {_share(one.ms, whole_ms)}"


def _copies(profile: Profile, whole_ms: float) -> Iterator[str]:
    for one in profile.copies:
        kind = one.kind.removeprefix("Memcpy ").replace("HtoD", "host to device").replace("DtoH", "device to host")
        size = f"{one.invocations:.3g} a step, {'bytes not told' if one.bytes is None else format_size(one.bytes)}"
        rate = f", {significant(one.gb_per_s)} GB/s" if one.gb_per_s else ""
        kind = kind.replace("DtoD", "device to device")
        yield f"{kind}: {size}, {significant(one.ms)} ms{rate}, {_share(one.ms, whole_ms)} of the step"
        if advice := advice_on(one, whole_ms):
            yield f"  -> {advice}"


def advice_on(copy: Copy, whole_ms: float) -> str:
    """Return what to do about copies of one kind; empty where they cost nothing to speak of."""
    share = copy.ms / whole_ms if whole_ms else 0.0
    if copy.pinned is False and share > NOTICED_SHARE:
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


def _idle(profile: Profile, *, is_measured: bool) -> Iterator[str]:
    idle = profile.idle
    if idle.host_wait_ms is None or idle.kernel_wait_ms is None or idle.other_ms is None or idle.edges_ms is None:
        return
    hint = "" if is_measured else ", which may take twice as long as a real one: see --step-ms"
    yield f"{significant(idle.ms)} ms of the {significant(profile.step_ms)} ms of a profiled step{hint}"
    share = f" ({percent(idle.host_wait_share)} of the gaps)" if idle.host_wait_share is not None else ""
    yield f"host wait {significant(idle.host_wait_ms)} ms{share}: the processor started the next kernel too late"
    yield f"kernel wait {significant(idle.kernel_wait_ms)} ms: what a GPU needs between two kernels; other {significant(idle.other_ms)} ms"
    yield f"before the first and after the last kernel {significant(idle.edges_ms)} ms"
