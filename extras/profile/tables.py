"""Show a profile to people: the table of layers, the copies, the idle time, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from base.humanize import and_more, counted, format_size
from workflow.commands.watching import output
from workflow.report.profile.profile import Copy, Layer, Profile, short_kernel
from workflow.report.table import MOST_ROWS, percent, significant

MOST_KERNELS: Final = 10
LARGE_SHARE: Final = 0.1
NOTICED_SHARE: Final = 0.01
MANY: Final = 20
SMALL_BYTES: Final = 64 << 10
ROWS: Final = {
    "functional": "functional (between layers)",
    "communication": "communication",
    "copies": "copies (outside of layers)",
    "input": "input (data loader)",
    "unattributed": "belongs to nothing in the trace",
}
"""Row of `other` -> its title, where that is another one."""


def print_profile(profile: Profile) -> None:
    """Print the tables of a profile on standard output."""
    steps = f"mean of {counted(profile.steps, 'profiled step')}" if profile.steps else "the whole trace"
    taken = f", without profiler {significant(profile.unprofiled_step_ms)} ms" if profile.unprofiled_step_ms else ""
    output.prose(f"{profile.device}: {steps}, {significant(profile.step_ms)} ms{taken}; shares are of {significant(profile.whole_ms)} ms")
    output.line()
    _print_layers(profile)
    for title, rows in (
        ("Longest kernels", _kernels(profile)),
        ("Copies", _copies(profile)),
        ("Not computing", _idle(profile)),
        ("Notes", iter(profile.notes)),
    ):
        if lines := list(rows):
            output.line()
            output.heading(title)
            for line in lines:
                output.prose(f"  {line}", "    ")


def _print_layers(profile: Profile) -> None:
    titles = {"name": "Layer", "forward": "Forward ms", "backward": "Backward ms", "data": "of data", "weights": "of weights"}
    titles |= {"recomputed": "Recomputed ms", "share": "Share", "kernel": "Longest kernel"}
    rows = [_layer(one, profile) for one in profile.layers[:MOST_ROWS]]
    if more := and_more(len(profile.layers), MOST_ROWS):
        rows.append({"name": more})
    rows += [_row(ROWS.get(name, name), spent, profile) for name, spent in profile.other.items()]
    signed = {
        "at the same time": -profile.overlap_ms,
        "work of no step": profile.elsewhere_ms if profile.unprofiled_step_ms is None else 0.0,
        "not computing": profile.not_computing_ms,
        "sum": profile.sum_ms,
    }
    rows += [_row(name, spent, profile) for name, spent in signed.items() if spent or name == "not computing"]
    if abs(profile.missing_ms) > NOTICED_SHARE * profile.whole_ms:
        rows.append(_row("missing to the step" if profile.missing_ms > 0 else "more than the step", profile.missing_ms, profile))
    keys = [key for key in titles if any(row.get(key) for row in rows) or key == "backward"]
    output.table([titles[key] for key in keys], [[row.get(key, "") for key in keys] for row in rows])


def _row(name: str, spent: float, profile: Profile) -> dict[str, str]:
    return {"name": name, "forward": significant(spent), "share": _share(spent, profile)}


def _layer(layer: Layer, profile: Profile) -> dict[str, str]:
    kernels = dict.fromkeys(short_kernel(kernel) for kernel in (layer.forward_kernel, layer.backward_kernel) if kernel)
    return {
        "name": layer.name,
        "forward": significant(layer.forward_ms),
        "backward": significant(layer.backward_ms),
        "data": _ms(layer.backward_data_ms),
        "weights": _ms(layer.backward_weights_ms),
        "recomputed": significant(layer.recomputed_ms) if layer.recomputed_ms else "",
        "share": _share(layer.forward_ms + layer.backward_ms + layer.recomputed_ms, profile),
        "kernel": " / ".join(kernels),
    }


def _share(spent: float, profile: Profile) -> str:
    return percent(spent / profile.whole_ms if profile.whole_ms else None)


def _ms(value: float | None) -> str:
    return "" if value is None else significant(value)


def _kernels(profile: Profile) -> Iterator[str]:
    if not profile.layers:
        for one in profile.kernels[:MOST_KERNELS]:
            yield f"{short_kernel(one.name)}: {significant(one.calls)} a step, {significant(one.ms)} ms, {_share(one.ms, profile)}"


def _copies(profile: Profile) -> Iterator[str]:
    for one in profile.copies:
        rate = f", {significant(one.gb_per_s)} GB/s" if one.gb_per_s else ""
        size = f"{significant(one.invocations)} a step, {'bytes not told' if one.bytes is None else format_size(one.bytes)}"
        yield f"{one.kind.removeprefix('Memcpy ')}: {size}, {significant(one.ms)} ms{rate}, {_share(one.ms, profile)}"
        if advice := advice_on(one, profile):
            yield f"  -> {advice}"


def advice_on(copy: Copy, profile: Profile) -> str:
    """Return what to do about copies of one kind; empty where they cost nothing to speak of."""
    share = copy.ms / profile.whole_ms if profile.whole_ms else 0.0
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


def _idle(profile: Profile) -> Iterator[str]:
    idle = profile.idle
    hint = "" if profile.unprofiled_step_ms or profile.device == "cpu" else ", which may take twice as long as a real one: see --step-ms"
    yield f"{significant(idle.ms)} ms of the {significant(profile.step_ms)} ms of a profiled step{hint}"
    if idle.host_wait_ms is None or idle.kernel_wait_ms is None or idle.other_ms is None or idle.edges_ms is None:
        return
    share = f" ({percent(idle.host_wait_share)} of the gaps)" if idle.host_wait_share is not None else ""
    yield f"host wait {significant(idle.host_wait_ms)} ms{share}: the processor started the next kernel too late"
    yield f"kernel wait {significant(idle.kernel_wait_ms)} ms: what a GPU needs between two kernels; other {significant(idle.other_ms)} ms"
    yield f"before the first and after the last kernel {significant(idle.edges_ms)} ms"
