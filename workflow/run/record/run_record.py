"""Build the record of one attempt, schema `slipway.run/1`: everything measured and everything one must know to believe it. Pure.

A missing number is null, never 0 or -1. The record carries the whole cell: nothing is ever read back from a path.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from base.humanize import counted
from base.sanitize import text, whole
from workflow.run.record.events import RankEvents, RequestedSteps, RunStart, Source, processes, reporting_ranks, slack, unchecked_model
from workflow.run.record.machine_load import busy, others_seen
from workflow.run.record.model import (
    SCHEMA_NAME,
    Checkpoint,
    Dataset,
    File,
    Load,
    NewRecord,
    Node,
    OwnKeys,
    Performance,
    Preflight,
    Provenance,
    ResumedFrom,
    RunRecord,
    Status,
    Steps,
    Times,
    Training,
)
from workflow.run.record.outcome import Ending, ObservedWindow, RankEnd, contradiction
from workflow.run.record.rate import (
    Window,
    goes_back,
    late_ranks,
    late_warnings,
    not_compared,
    own_steps,
    performance,
    ranks_text,
    replica_warnings,
    replicas_of,
    reported_windows,
    reports_wall_time,
    training,
    window_of,
)
from workflow.run.record.resume import EarlierAttempt, checkpoint_of, join_training, pushed_checkpoint
from workflow.run.record.window_check import ReportedWindow, clock_warnings, evaluation_warnings, seen_warnings, unconfirmed, window_seen
from workflow.study.cell import Cell, unit_of

Count = Annotated[int, Meta(ge=0)]
PROVENANCE: Final = frozenset(Provenance.__struct_fields__)
"""Keys of a program's provenance that readers of records look at."""
MAX_WARNINGS: Final = 20
MAX_SHOWN: Final = 200
NO_TOKENS: Final = (
    "unit is tokens, and not every rank tells the tokens of each measured step: the run has no rate; "
    "run.steps(loader, tokens=...) tells them, or the group tokens of an expression under events"
)
MAX_PROVENANCE_TEXT: Final = 1000
"""Characters: as bytes less than a column takes."""
NOT_FROM_PROGRAMS: Final = frozenset(
    {"slipway_version", "git_sha", "git_dirty", "kernel", "os", "driver_version", "image", "image_digest", "image_id", "program_digest"}
    | {"site_mounts", "site_env"}
)
"""Provenance that we know, and a program cannot."""
OF_EACH_RANK: Final = ("hostname", "gpu_uuid", "cpu_cores", "environment")
"""Provenance that may differ between ranks."""


class Measurements(Struct, frozen=True, kw_only=True):
    """The numbers in the files that an attempt has pushed, and what was noticed in them."""

    steps_source: Source | None = None
    performance: Performance | None = None
    training: Training | None = None
    provenance: OwnKeys = field(default_factory=dict)
    """What the program reports of its libraries."""
    checkpoint: Checkpoint | None = None
    contradiction: str | None = None
    """Why this run did not end `ok`."""
    window: tuple[int, int] | None = None
    """The numbers of the first and the last step that all ranks measured."""
    windows: tuple[ReportedWindow, ...] = ()
    window_findings: tuple[str, ...] = ()
    """What would be wrong with the measured steps of a run that ended well."""
    warnings: tuple[str, ...] = ()
    loads: tuple[tuple[int, Load], ...] = ()
    """The load of nodes, by their position."""


def measured(  # noqa: PLR0913 - what is known of the cell
    events: Mapping[int, RankEvents],
    world_size: int,
    global_batch: int,
    mode: str = "train",
    model: tuple[str, int] | None = None,
    steps: RequestedSteps | None = None,
    *,
    one_network: bool = True,
) -> Measurements:
    """Compute the numbers in the events of an attempt.

    `model`: name and parameter count of the cell's network; `steps`: the steps requested of each rank; `one_network`:
    whether the ranks train the same one, so that their parameters have to be the same at the end.
    """
    starts = {rank: entry.start for rank, entry in sorted(events.items()) if entry.start is not None}
    replicas = replicas_of(events)
    source, told, num_telling = reporting_ranks(events, world_size)
    num_to_compare = processes(events, world_size) if mode == "train" and source != "none" else 1
    window = window_of(told, num_telling, mode)
    found = performance(told, num_telling, global_batch, mode, world_size)
    if found is not None and source == "log":
        found = replace(found, first_step_s=None)  # its first line comes after the start of the program too
    late = late_ranks(events, told, found.window_s) if found is not None and source == "log" and mode == "train" else {}
    warnings = [
        *(unchecked_model(events, model[0]) if model is not None else []),
        *(replica_warnings(replicas) if one_network else []),
        *not_compared(events, replicas, num_to_compare),
        *late_warnings(late),
        *disagreements(starts),
        *dict.fromkeys(warning for _, entry in sorted(events.items()) for warning in entry.warnings),
        *(_miscounted(window, global_batch) if window is not None else []),
        *_broken(events),
    ]
    return Measurements(
        steps_source=source,
        performance=found,
        training=training(events, world_size, told, late),
        provenance=program_provenance(starts),
        checkpoint=checkpoint_of(events),
        contradiction=contradiction(events, world_size, model, steps),
        window=(window.measured[0], window.measured[-1]) if window is not None else None,
        windows=tuple(reported_windows(window)) if window is not None and found is not None else (),
        window_findings=(*_windows(told), *(_too_many(told) if source == "program" else [])),
        warnings=tuple(warnings[:MAX_WARNINGS]),
    )


def program_provenance(starts: Mapping[int, RunStart]) -> OwnKeys:
    """Return what the first rank's run_start reports of the framework and its libraries, without the keys in NOT_FROM_PROGRAMS.

    Values of a column of the tables are of the column's type, or null.
    """
    if not starts:
        return {}
    start = starts[min(starts)]
    kept = {key: value for key, value in (start.provenance or {}).items() if key not in NOT_FROM_PROGRAMS}
    told = {**kept, "framework": start.framework, "framework_version": start.framework_version}
    return {**told, **{key: _readable(key, told[key]) for key in told.keys() & PROVENANCE}}


def _readable(key: str, value: object) -> object:
    """Return what a program reports as the readers of records accept it: one wrong value makes a whole record unreadable."""
    if key == "gpu_memory_bytes":
        return whole(value)  # a program may write 85e9
    return value if isinstance(value, int | float | None) else text(value, MAX_PROVENANCE_TEXT)


def disagreements(starts: Mapping[int, RunStart]) -> list[str]:
    """Return one warning for each value that differs between ranks: they did not run the same program on the same libraries."""
    if len(starts) < 2:
        return []
    views = {rank: _compared(start) for rank, start in starts.items()}
    keys = sorted({key for view in views.values() for key in view})
    found = []
    for key in keys:
        values: dict[str, list[int]] = {}
        for rank, view in views.items():
            values.setdefault(text(repr(view.get(key)), MAX_SHOWN), []).append(rank)
        if len(values) > 1:
            said = ", ".join(f"{value} on {ranks_text(ranks)}" for value, ranks in sorted(values.items()))
            found.append(f"ranks disagree on {key}: {said}")
    return found


def _compared(start: RunStart) -> OwnKeys:
    own = {key: getattr(start, key) for key in ("framework", "framework_version", "world_size", "parameters")}
    return {**{key: value for key, value in (start.provenance or {}).items() if key not in OF_EACH_RANK}, **own}


def network_warnings(preflight: Preflight | None) -> list[str]:
    """Return the findings of the preflight as warnings."""
    return [f"network: {finding}" for finding in (preflight and preflight.findings) or ()]


def _miscounted(window: Window, global_batch: int) -> list[str]:
    """Return a warning where the ranks report another number of samples than the cell asks for in their steps; more than that are not
    counted."""
    reported, asked = round(math.fsum(window.samples(global_batch))), window.requested_samples(global_batch)
    where = f"in {len(window.measured)} measured steps"
    return [] if reported == asked else [f"the ranks tell of {reported} samples {where}, and the cell asks for {asked}"]


def _windows(events: Mapping[int, RankEvents]) -> list[str]:
    """Return a sentence for each finding: ranks measure different steps, or by a clock that goes back or reports nothing."""
    windows = {rank: own_steps(entry.steps) for rank, entry in sorted(events.items())}
    back = [rank for rank, window in windows.items() if goes_back(events[rank].steps, window)]
    warnings = [f"the clock of {ranks_text(back)} goes back between measured steps: time between its steps is not known"] if back else []
    silent = [rank for rank, window in windows.items() if window and not reports_wall_time(events[rank], window)]
    if silent and not back:
        warnings.append(f"the wall time of the window is not known on {ranks_text(silent)}: time between its steps is in no number")
    untimed = [
        rank
        for rank, window in windows.items()
        if rank not in silent and any(events[rank].steps[step].monotonic_ns is None for step in window)
    ]
    if untimed:
        warnings.append(f"the steps of {ranks_text(untimed)} tell no monotonic_ns: nobody has compared their seconds with Slipway's clock")
    said: dict[str, list[int]] = {}
    for rank, window in windows.items():
        said.setdefault(f"{len(window)} ({window[0]} to {window[-1]})" if window else "none", []).append(rank)
    if any(window != windows[min(windows)] for window in windows.values()):
        shown = ", ".join(f"{steps} on {ranks_text(ranks)}" for steps, ranks in said.items())
        warnings.append(text(f"ranks measure different steps: {shown}"))
    return warnings


def _too_many(events: Mapping[int, RankEvents]) -> list[str]:
    """Return a sentence where a program reports more steps than the cell asks for. One whose output is read may go on to its own end."""
    return [
        f"rank {rank} wrote {entry.most + entry.beyond} steps, and the cell asks for {entry.most}: the last ones were left out"
        for rank, entry in sorted(events.items())
        if entry.beyond
    ]


def window_warnings(ending: Ending, cell: Cell, found: Measurements, resumed_step: int | None) -> list[str]:
    """Return warnings where a run that ended well has no window, or another one than requested.

    `resumed_step`: the first step after a resume, from which on a shorter window is what is left.
    """
    if ending.status != "ok" or found.steps_source == "none":
        return []
    performance, asked = found.performance, None if cell.steps is None else cell.steps.get("measured")
    if performance is None:
        cells = "" if asked is None else f", and the cell asks for {asked}"
        return [f"no step was told as measured by every rank{cells}: the run has no rate", *found.window_findings]
    count = performance.num_measured_steps
    own: list[str] = []
    if unit_of(cell.to_json()) == "tokens" and performance.tokens_per_s is None:
        own = [NO_TOKENS]
    elif found.steps_source == "log" and asked is not None and count >= asked - slack(performance):
        pass
    elif resumed_step is None and asked not in (None, count):
        own = [f"the window has {count} measured steps, and the cell asks for {asked}"]
    elif found.window is not None and cell.steps is not None:
        first = (resumed_step or 0) + cell.steps["warmup"]
        if found.window != (first, first + count - 1):
            where = f"from {found.window[0]} to {found.window[1]}"
            own = [f"the {count} measured steps are {where}, and the cell asks for {first} to {first + count - 1}"]
    return [*own, *found.window_findings]


def _broken(events: Mapping[int, RankEvents]) -> list[str]:
    counts = {rank: entry.broken_lines for rank, entry in sorted(events.items()) if entry.broken_lines}
    return [f"rank {rank} wrote {count} lines that are no events, or tell a step again" for rank, count in counts.items()]


class RunFacts(Struct, frozen=True, kw_only=True):
    """What is known of an attempt besides its ending, its times and its files."""

    run_id: str
    study: str
    cell: Cell
    repeat: int
    attempt: int
    result_number: int
    """The number of the result that the attempt may become."""
    allocation: "Granted"
    site: str
    engine: str
    nodes: tuple[Node, ...]
    threads_per_rank: int
    preflight: Preflight | None = None
    earlier: EarlierAttempt | None = None
    """The attempt that this one resumed from."""
    exclusive: bool | None
    warnings: tuple[str, ...] = ()
    windows_seen: tuple[ObservedWindow, ...] = ()
    dataset: Dataset | None
    splits: Mapping[str, int] | None = None
    """The samples of each split of the dataset, where they are known."""
    model_macs: int | None = None
    model_first_macs: int | None = None
    macs_by_length: tuple[tuple[int, int], ...] | None = None
    """The buckets of the sequences of the dataset: the length of each, and model_macs of a token in it."""
    provenance: OwnKeys


class Granted(Struct, frozen=True, kw_only=True):
    """What a record has of an allocation."""

    scheduler: str
    scheduler_version: str | None
    job_id: str
    restart_count: int
    device: Literal["cpu", "cuda"]
    oversubscribed: bool


class RunTimes(Struct, frozen=True, kw_only=True):
    """Wall clock and durations of an attempt."""

    start: str
    end: str
    run_s: float
    steps_s: Steps


def _has_few_cores(run: RunFacts) -> bool:
    """Return True if the processes of a node have more threads than it has cores. On GPUs threads only feed them."""
    threads = run.cell.gpus_per_node * run.threads_per_rank
    return run.allocation.device == "cpu" and any(0 < len(node.cores) < threads for node in run.nodes)


def _macs_of_what_ran(run: RunFacts, performance: Performance | None) -> int | None:
    """Return the multiply-adds forward of an image or a token.

    A token in a longer sequence has more. For several lengths it is the mean over the tokens of the window, None where these were not
    reported.
    """
    macs = dict(run.macs_by_length or ())
    if len(macs) < 2:
        return run.model_macs
    tokens = dict((performance and performance.tokens_by_length) or ())
    total = sum(tokens.values())
    if not total or not macs.keys() >= tokens.keys():
        return None
    return round(sum(macs[length] * count for length, count in tokens.items()) / total)


def build_record(run: RunFacts, ending: Ending, times: RunTimes, own: Measurements, files: Sequence[File]) -> NewRecord:
    """Build the record of an attempt. `own`: the measurements of this attempt alone; `files`: all that was pushed."""
    loads, earlier = dict(own.loads), run.earlier
    nodes = tuple(replace(node, load=loads.get(index)) for index, node in enumerate(run.nodes))
    found = own if earlier is None else join_measurements(own, earlier.performance, earlier.training, earlier.step)
    seen = window_seen(own.windows, run.windows_seen)
    if seen is None and earlier is not None:
        seen = earlier.window_seen or unconfirmed(found.performance)
    is_ok = ending.status == "ok"
    warnings = [
        *run.warnings,
        *network_warnings(run.preflight),
        *window_warnings(ending, run.cell, found, None if earlier is None else earlier.step),
        *clock_warnings(own.performance, own.training, times.steps_s.train, run.cell.mode),
        *(seen_warnings(seen) if is_ok else []),
        *evaluation_warnings(own.training, run.splits),
        *found.warnings,
    ]
    provenance = {**run.provenance, **found.provenance}
    record = RunRecord(
        schema_=SCHEMA_NAME,
        run_id=run.run_id,
        study=run.study,
        cell=run.cell,
        repeat=run.repeat,
        attempt=run.attempt,
        result_number=run.result_number if ending.kind == "result" else None,
        status=ending.status,
        kind=ending.kind,
        status_reason=ending.reason,
        failed_rank=ending.failed_rank(),
        failed_nodes=ending.failed_nodes,
        time=Times(start=times.start, end=times.end),
        run_s=times.run_s,
        steps_s=times.steps_s,
        scheduler=run.allocation.scheduler,
        scheduler_version=run.allocation.scheduler_version,
        job_id=run.allocation.job_id,
        restart_count=run.allocation.restart_count,
        site=run.site,
        engine=run.engine,
        exclusive=False if others_seen(nodes) else run.exclusive,
        oversubscribed=run.allocation.oversubscribed or _has_few_cores(run),
        busy=tuple(busy(nodes)),
        nodes=nodes,
        world_size=run.cell.world_size,
        device=run.allocation.device,
        threads_per_rank=run.threads_per_rank,
        steps_source=found.steps_source,
        preflight=run.preflight,
        performance=found.performance,
        training=found.training,
        window_seen=seen if is_ok else None,
        resumed_from=None if earlier is None else ResumedFrom(attempt=earlier.attempt, step=earlier.step, used_s=earlier.used_s),
        checkpoint=pushed_checkpoint(found.checkpoint, files),
        dataset=run.dataset,
        model_macs=_macs_of_what_ran(run, found.performance),
        model_first_macs=run.model_first_macs,
        provenance=msgspec.convert(provenance, Provenance),
        warnings=(*warnings[:MAX_WARNINGS], *busy(nodes)),
        files=tuple(sorted(files, key=lambda file: file.path)),
    )
    return NewRecord(record=record, provenance=provenance)


def join_measurements(own: Measurements, performance: Performance | None, training: Training | None, step: int) -> Measurements:
    """Add to an attempt's measurements what only the attempt that it resumed from has, which ended before `step`.

    The window is this attempt's; that of the earlier one counts only where this one had no step left to measure.
    """
    return replace(own, performance=own.performance or performance, training=join_training(own.training, training, step))


# The note that a node keeps beside the files of a result that storage did not take: all else that its record needs.


SCHEMA: Final[Literal["slipway.ended/1"]] = "slipway.ended/1"


class EndingNote(Struct, frozen=True, kw_only=True):
    """How the run ended, or would have."""

    status: Status
    reason: str | None
    rank_end: OwnKeys | None
    """The fields of a RankEnd, but for the windows of its ranks, which are among the facts."""


def ending_note(ending: Ending) -> EndingNote:
    """Return the ending in the form of a note."""
    end = ending.rank_end
    note = None if end is None else {key: value for key, value in end._asdict().items() if key != "windows"}
    return EndingNote(status=ending.status, reason=ending.reason, rank_end=note)


def noted_ending(note: EndingNote) -> Ending:
    """Return the ending that a note holds. Raises ValueError where it is none."""
    end = note.rank_end
    values = None if end is None else [end.get(name, RankEnd._field_defaults.get(name)) for name in RankEnd._fields]
    return Ending(status=note.status, reason=note.reason, rank_end=None if values is None else msgspec.convert(values, RankEnd))


class EndedNote(Struct, frozen=True, kw_only=True):
    """What build_record needs besides the files, kept until these are on storage."""

    schema: Literal["slipway.ended/1"] = SCHEMA
    facts: RunFacts
    times: RunTimes
    nodes: Annotated[tuple[Count, ...], Meta(min_length=1)]
    """The positions of the nodes whose files make the result."""
    parameters: Count | None
    """The parameter count of the cell's model."""
    steps: RequestedSteps | None = None
    """The steps requested of each rank; a note of an earlier version has none."""
    ending: EndingNote


# The summary of a run for its log.


def measured_words(found: Measurements, unit: str = "samples") -> str:
    """Format rate, loss and accuracy, as far as they were measured, after a colon.

    Return an empty text if there are none. `unit`: what the rate counts, samples or tokens.
    """
    parts = list(_parts(found.performance, found.training, unit))
    return f": {', '.join(parts)}" if parts else ""


def _parts(performance: Performance | None, training: Training | None, unit: str) -> Iterator[str]:
    rate = None if performance is None else performance.tokens_per_s if unit == "tokens" else performance.samples_per_s
    if performance is not None and rate is not None:
        yield f"{_number(rate)} {unit}/s over {counted(performance.num_measured_steps, 'step')}"
    if training is not None and training.final_loss is not None:
        begin = "" if training.first_loss is None else f"{_number(training.first_loss)} -> "
        yield f"loss {begin}{_number(training.final_loss)}"
    evaluation = None if training is None else training.eval
    if evaluation is not None and evaluation.accuracy is not None:
        yield f"{100 * evaluation.accuracy:.1f} % of {evaluation.split or 'the evaluation'} correct"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
