"""Show a profile to people: the table of layers, the copies, the idle time, and what to do."""

from collections.abc import Iterator, Mapping
from typing import Final

from base.humanize import counted
from containers.models.facts import LayerCost
from workflow.commands.watching import output
from workflow.report import layers_table, terminal
from workflow.report.profile.profile import Profile, advice_on, described, short_kernel
from workflow.report.table_type import percent, significant

MAX_KERNELS: Final = 10


def print_profile(profile: Profile, step_ms: float | None, costs: Mapping[str, LayerCost], network: str = "") -> None:
    """Print the tables of a profile on standard output; shares are of `step_ms`, or of the step in the trace, costs of `network`."""
    whole_ms = step_ms or profile.step_ms
    steps = f"mean of {counted(profile.steps, 'profiled step')}" if profile.steps else "the whole trace"
    output.prose(f"{profile.device}: {steps}, {significant(profile.step_ms)} ms; shares are of {significant(whole_ms)} ms")
    if network:
        output.prose(f"FLOP/s and bytes are of {network}")
    output.line()
    terminal.print_table(layers_table.layers_of_trace(profile, whole_ms, costs))
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
        for one in profile.kernels[:MAX_KERNELS]:
            yield f"{short_kernel(one.name)}: {significant(one.calls)} a step, {significant(one.ms)} ms, {_share(one.ms, whole_ms)}"


def _copies(profile: Profile, whole_ms: float) -> Iterator[str]:
    for one in profile.copies:
        yield described(one, whole_ms)
        if advice := advice_on(one, whole_ms):
            yield f"  -> {advice}"


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
