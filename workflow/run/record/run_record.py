"""Build the record of one attempt, schema `slipway.run/1`: everything measured and everything one must know to believe it. Pure.

A missing number is null, never 0 or -1. The record carries the whole cell: nothing is ever read back from a path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict, cast

from base.sanitize import text, whole
from base.typed import Check, Count, Like
from base.units import counted
from workflow.run.record.continuation import checkpoint_of, joined, pushed_checkpoint, resumed_from
from workflow.run.record.events import RankEvents, StepsAsked, processes, slack, telling, unchecked_model
from workflow.run.record.machine_load import busy, others_seen
from workflow.run.record.model import SCHEMA_NAME, Provenance, Status
from workflow.run.record.outcome import Ending, contradiction
from workflow.run.record.rate import (
    goes_back,
    late_ranks,
    late_warnings,
    measured_steps,
    not_compared,
    own_steps,
    performance,
    replica_warnings,
    replicas_of,
    samples_asked,
    samples_of,
    tells_wall,
    training,
    windows_of,
    windows_told,
)
from workflow.run.record.window_seen import clock_warnings, evaluation_warnings, seen_warnings, unconfirmed, window_seen
from workflow.study.cell import unit_of

PROVENANCE: Final = frozenset(Provenance.__struct_fields__)
"""Keys of a program's provenance that readers of records look at."""
MAX_WARNINGS: Final = 20
MAX_SAID: Final = 200
UNTOLD: Final = (
    "unit is tokens, and not every rank tells the tokens of each measured step: the run has no rate; "
    "run.steps(loader, tokens=...) tells them, or the group tokens of an expression under events"
)
MAX_TOLD: Final = 1000
"""Characters: as bytes less than a column takes."""
OURS: Final = frozenset(
    {"slipway_version", "git_sha", "git_dirty", "kernel", "os", "driver_version", "image", "image_digest", "image_id", "program_digest"}
    | {"site_mounts", "site_env"}
)
"""Provenance that we know, and a program cannot."""
OF_EACH_RANK: Final = ("hostname", "gpu_uuid", "cpu_cores", "environment")
"""Provenance that may differ between ranks."""


def measured(
    events: Mapping[int, RankEvents],
    world_size: int,
    global_batch: int,
    mode: str = "train",
    model: tuple[str, int] | None = None,
    steps: StepsAsked | None = None,
) -> dict[str, Any]:
    """Compute what the events of an attempt say.

    The result has `performance`, `training`, `provenance` of the program, `checkpoint`, `warnings`, `steps_source`; `window`: the
    numbers of its first and last step, or None; `windows_told`: a WindowTold for each rank; `windows`: what would be wrong with the
    measured steps of a run that ended well; and `contradiction`: why this run did not end `ok`, or None. `model`: name and parameter
    count of the cell's network; `steps`: the steps requested of each rank.
    """
    starts = {rank: entry.start for rank, entry in sorted(events.items()) if entry.start is not None}
    unchecked = unchecked_model(events, model[0]) if model is not None else []
    replicas = replicas_of(events)
    source, told, num_telling = telling(events, world_size)
    num_to_compare = processes(events, world_size) if mode == "train" and source != "none" else 1
    apart = [*replica_warnings(replicas), *not_compared(events, replicas, num_to_compare)]
    miscounted = _miscounted(told, num_telling, global_batch, mode)
    window = _common(told, num_telling)
    found = performance(told, num_telling, global_batch, mode, world_size)
    if found is not None and source == "log":
        found["first_step_s"] = None  # its first line comes after the start of the program too
    late = late_ranks(events, told, found["window_s"]) if found is not None and source == "log" and mode == "train" else {}
    return {
        "steps_source": source,
        "performance": found,
        "training": training(events, world_size, told, late),
        "provenance": program_provenance(starts),
        "checkpoint": checkpoint_of(events),
        "contradiction": contradiction(events, world_size, model, steps),
        "window": [window[0], window[-1]] if window else None,
        "windows_told": [list(one) for one in windows_told(told, num_telling, mode)] if found is not None else [],
        "windows": [*_windows(told), *(_too_many(told) if source == "program" else [])],
        "warnings": [*unchecked, *apart, *late_warnings(late), *disagreements(starts), *_said(events), *miscounted, *_broken(events)][
            :MAX_WARNINGS
        ],
    }


def program_provenance(starts: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the first rank's run_start reports of the framework and its libraries, without the keys in OURS.

    Values of a column of the tables are of the column's type, or null.
    """
    if not starts:
        return {}
    start = starts[min(starts)]
    said = start.get("provenance")
    kept = {key: value for key, value in (said if isinstance(said, dict) else {}).items() if key not in OURS}
    told = {**kept, **{key: start.get(key) for key in ("framework", "framework_version")}}
    return {**told, **{key: _tamed(key, told[key]) for key in told.keys() & PROVENANCE}}


def _tamed(key: str, value: Any) -> Any:
    """Return what a program reports as the readers of records accept it: one wrong value makes a whole record unreadable."""
    if key == "gpu_memory_bytes":
        return whole(value)  # a program may write 85e9
    return value if isinstance(value, int | float | None) else text(value, MAX_TOLD)


def disagreements(starts: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """Return one warning for each value that differs between ranks: they did not run the same program on the same libraries."""
    if len(starts) < 2:
        return []
    views = {rank: {**_flat(start), "parameters": start.get("parameters")} for rank, start in starts.items()}
    keys = sorted({key for view in views.values() for key in view})
    found = []
    for key in keys:
        values: dict[str, list[int]] = {}
        for rank, view in views.items():
            values.setdefault(text(repr(view.get(key)), MAX_SAID), []).append(rank)
        if len(values) > 1:
            said = ", ".join(f"{value} on {_ranks(ranks)}" for value, ranks in sorted(values.items()))
            found.append(f"ranks disagree on {key}: {said}")
    return found


def _flat(start: Mapping[str, Any]) -> dict[str, Any]:
    said = start.get("provenance")
    own = {key: start.get(key) for key in ("framework", "framework_version", "world_size")}
    return {**{key: value for key, value in (said if isinstance(said, dict) else {}).items() if key not in OF_EACH_RANK}, **own}


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{' ...' if len(ranks) > 8 else ''}"


def network_warnings(preflight: Mapping[str, Any] | None) -> list[str]:
    """Return the findings of the preflight as warnings."""
    return [f"network: {text}" for text in (preflight or {}).get("findings", [])]


def _said(events: Mapping[int, RankEvents]) -> list[str]:
    """Return the warnings that the programs wrote, each once."""
    return list(dict.fromkeys(warning for _, entry in sorted(events.items()) for warning in entry.warnings))


def _common(events: Mapping[int, RankEvents], world_size: int) -> list[int]:
    ranks = [entry.steps for _, entry in sorted(events.items())]
    return measured_steps(ranks) if len(ranks) == world_size else []


def _miscounted(events: Mapping[int, RankEvents], world_size: int, global_batch: int, mode: str) -> list[str]:
    """Return a warning where the ranks report another number of samples than the cell asks for in their steps; more than that are not
    counted."""
    measured = _common(events, world_size)
    if not measured:
        return []
    ranks = [entry.steps for _, entry in sorted(events.items())]
    windows = windows_of(ranks, measured, mode)
    told, asked = samples_of(ranks, windows, global_batch), samples_asked(windows, global_batch)
    where = f"in {len(measured)} measured steps"
    return [] if told == asked else [f"the ranks tell of {told} samples {where}, and the cell asks for {asked}"]


def _windows(events: Mapping[int, RankEvents]) -> list[str]:
    """Return a sentence for each finding: ranks measure different steps, or by a clock that goes back or reports nothing."""
    windows = {rank: own_steps(entry.steps) for rank, entry in sorted(events.items())}
    back = [rank for rank, window in windows.items() if goes_back(events[rank].steps, window)]
    warnings = [f"the clock of {_ranks(back)} goes back between measured steps: time between its steps is not known"] if back else []
    silent = [rank for rank, window in windows.items() if window and not tells_wall(events[rank], window)]
    if silent and not back:
        warnings.append(f"the wall time of the window is not known on {_ranks(silent)}: time between its steps is in no number")
    untimed = [
        rank for rank, window in windows.items() if rank not in silent and any(events[rank].steps[step].end_ns is None for step in window)
    ]
    if untimed:
        warnings.append(f"the steps of {_ranks(untimed)} tell no monotonic_ns: nobody has compared their seconds with Slipway's clock")
    said: dict[str, list[int]] = {}
    for rank, window in windows.items():
        said.setdefault(f"{len(window)} ({window[0]} to {window[-1]})" if window else "none", []).append(rank)
    if any(window != windows[min(windows)] for window in windows.values()):
        shown = ", ".join(f"{steps} on {_ranks(ranks)}" for steps, ranks in said.items())
        warnings.append(text(f"ranks measure different steps: {shown}"))
    return warnings


def _too_many(events: Mapping[int, RankEvents]) -> list[str]:
    """Return a sentence where a program reports more steps than the cell asks for. One whose output is read may go on to its own end."""
    return [
        f"rank {rank} wrote {entry.most + entry.beyond} steps, and the cell asks for {entry.most}: the last ones were left out"
        for rank, entry in sorted(events.items())
        if entry.beyond
    ]


def window_warnings(ending: Ending, cell: Mapping[str, Any], found: Mapping[str, Any], since: int | None) -> list[str]:
    """Return warnings where a run that ended well has no window, or another one than requested.

    `found`: the result of continuation.joined; `since`: the first step after a resume, from which on a shorter window is what is left.
    """
    if ending.status != "ok" or found.get("steps_source") == "none":
        return []
    performance, steps = found.get("performance"), cell["steps"] or {}
    count, asked = performance["num_measured_steps"] if performance else 0, steps.get("measured")
    if not count:
        cells = "" if asked is None else f", and the cell asks for {asked}"
        return [f"no step was told as measured by every rank{cells}: the run has no rate", *found.get("windows", [])]
    if unit_of(cell) == "tokens" and performance is not None and performance.get("tokens_per_s") is None:
        return [UNTOLD, *found.get("windows", [])]
    if found.get("steps_source") == "log" and asked is not None and count >= asked - slack(performance):
        return list(found.get("windows", []))
    if since is None and asked not in (None, count):
        return [f"the window has {count} measured steps, and the cell asks for {asked}", *found.get("windows", [])]
    return [*_misplaced(found.get("window"), count, steps, since or 0), *found.get("windows", [])]


def _misplaced(window: Sequence[int] | None, count: int, steps: Mapping[str, Any], since: int) -> list[str]:
    """Return a warning where other steps were measured than those after the warm-up, such as the fastest or the first ones."""
    if window is None or "warmup" not in steps:
        return []
    begin = since + steps["warmup"]
    if (window[0], window[1]) == (begin, begin + count - 1):
        return []
    return [f"the {count} measured steps are from {window[0]} to {window[1]}, and the cell asks for {begin} to {begin + count - 1}"]


def _broken(events: Mapping[int, RankEvents]) -> list[str]:
    counts = {rank: entry.broken_lines for rank, entry in sorted(events.items()) if entry.broken_lines}
    return [f"rank {rank} wrote {count} lines that are no events, or tell a step again" for rank, count in counts.items()]


def _has_few_cores(run: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> bool:
    """Return True if the processes of a node have more threads than it has cores. On GPUs threads only feed them."""
    threads = run["cell"]["gpus_per_node"] * run["threads_per_rank"]
    return run["allocation"]["device"] == "cpu" and any(0 < len(node.get("cores") or ()) < threads for node in nodes)


def _macs_of_what_ran(run: Mapping[str, Any], performance: Mapping[str, Any] | None) -> int | None:
    """Return the multiply-adds forward of an image or a token.

    A token in a longer sequence has more. For several lengths it is the mean over the tokens of the window, None where these were not
    reported.
    """
    macs: dict[int, int] = dict(run.get("macs_by_length") or ())
    told: dict[int, int] = dict((performance or {}).get("tokens_by_length") or ())
    if len(macs) < 2:
        of_all: int | None = run.get("model_macs")
        return of_all
    total = sum(told.values())
    if not total or not macs.keys() >= told.keys():
        return None
    return round(sum(macs[length] * tokens for length, tokens in told.items()) / total)


def build_record(
    run: Mapping[str, Any],
    ending: Ending,
    times: Mapping[str, Any],
    found: Mapping[str, Any],
    files: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Build the record.

    `run`: what was known before (run_id, study, cell, repeat, attempt, result_number, site, engine, allocation as JSON, nodes,
    threads_per_rank, preflight, dataset, model_macs, model_first_macs, provenance, `splits`: samples of each of the dataset's, and
    `earlier`, the attempt before, of continuation.resumable; `windows_seen`: a WindowSeen for each rank; `macs_by_length`, where
    sequences of the dataset lie in buckets: the length of each, and model_macs of a token in it); `times`: start, end, run_s, steps_s;
    `found`: the result of attempt.read_measured; `files`: path, bytes, blake3.
    """
    allocation, earlier = run["allocation"], run.get("earlier")
    loads = dict(found.get("loads", []))
    nodes = [{**node, "load": loads.get(index)} for index, node in enumerate(run["nodes"])]
    own, found = found, joined(found, earlier)
    seen = window_seen(own.get("windows_told") or [], run.get("windows_seen") or [])
    if seen is None and earlier is not None:
        seen = earlier.get("window_seen") or unconfirmed(found.get("performance"))
    return {
        "schema": SCHEMA_NAME,
        "run_id": run["run_id"],
        "study": run["study"],
        "cell": run["cell"],
        "repeat": run["repeat"],
        "attempt": run["attempt"],
        "result_number": run["result_number"] if ending.kind == "result" else None,
        "status": ending.status,
        "kind": ending.kind,
        "status_reason": ending.reason,
        "failed_rank": ending.failed_rank(),
        "failed_nodes": list(ending.failed_nodes),
        "time": {"start": times["start"], "end": times["end"]},
        "run_s": times["run_s"],
        "steps_s": times["steps_s"],
        "scheduler": allocation["scheduler"],
        "scheduler_version": allocation["scheduler_version"],
        "job_id": allocation["job_id"],
        "restart_count": allocation["restart_count"],
        "site": run["site"],
        "engine": run["engine"],
        "exclusive": False if others_seen(nodes) else run["exclusive"],
        "oversubscribed": allocation["oversubscribed"] or _has_few_cores(run, nodes),
        "nodes": nodes,
        "world_size": run["cell"]["nodes"] * run["cell"]["gpus_per_node"],
        "device": allocation["device"],
        "threads_per_rank": run["threads_per_rank"],
        "steps_source": found.get("steps_source"),
        "preflight": run["preflight"],
        "performance": found.get("performance"),
        "training": found.get("training"),
        "window_seen": seen if ending.status == "ok" else None,
        "resumed_from": resumed_from(earlier),
        "checkpoint": pushed_checkpoint(found, files),
        "dataset": run["dataset"],
        "model_macs": _macs_of_what_ran(run, found.get("performance")),
        "model_first_macs": run.get("model_first_macs"),
        "provenance": {**run["provenance"], **found.get("provenance", {})},
        "busy": busy(nodes),
        "warnings": [
            *run.get("warnings", []),
            *network_warnings(run["preflight"]),
            *window_warnings(ending, run["cell"], found, None if earlier is None else earlier["step"]),
            *clock_warnings(own, times["steps_s"]["train"], run["cell"]["mode"]),
            *(seen_warnings(seen) if ending.status == "ok" else []),
            *evaluation_warnings(own, run.get("splits")),
            *found.get("warnings", []),
        ][:MAX_WARNINGS]
        + busy(nodes),
        "files": sorted((dict(file) for file in files), key=lambda file: str(file["path"])),
    }


# The note that a node keeps beside the files of a result that storage did not take: all else that its record needs.


SCHEMA: Final = "slipway.ended/1"


class RankEndNote(TypedDict):
    """A RankEnd, in its words."""

    ranks: list[Count]
    host: str
    exit_code: int | None
    time: float
    error_kind: str | None
    error_message: str | None
    oom_kill: bool
    run_stop: bool
    last_lines: str
    failed_rank: Count | None
    checkpoint: Count | None
    wrong_clock: NotRequired[str | None]
    unwatched: NotRequired[str | None]
    """Only in notes of earlier versions."""
    sidecar: NotRequired[str | None]
    may_end: NotRequired[bool]
    launcher: NotRequired[str | None]


class EndingNote(TypedDict):
    """How the run ended, or would have."""

    status: Status
    reason: str | None
    rank_end: RankEndNote | None


class RunFacts(TypedDict):
    """What was known of the run before its events were read, as far as it is looked into."""

    allocation: dict[str, Any]
    provenance: dict[str, Any]
    preflight: dict[str, Any] | None
    earlier: dict[str, Any] | None
    nodes: list[dict[str, Any]]
    warnings: list[str]


class EndedNote(TypedDict):
    """`facts`, `times`: as run_record.build_record takes them; `nodes`: positions of those whose files make the result."""

    schema: Literal["slipway.ended/1"]
    facts: Annotated[dict[str, Any], Like(RunFacts)]
    times: dict[str, Any]
    nodes: Annotated[list[Count], Check("the nodes that deliver", bool)]
    parameters: Count | None
    steps: NotRequired[tuple[Count, Count]]
    """Of StepsAsked; a note of an earlier version has none."""
    ending: EndingNote


def ended_note(
    facts: Mapping[str, Any], ending: Ending, times: Mapping[str, Any], nodes: Sequence[int], parameters: int | None, steps: StepsAsked
) -> EndedNote:
    """Return what build_record needs besides the files.

    `nodes`: positions of those whose files make the result; `parameters`: the parameter count of the cell's model; `steps`: the steps
    requested of each rank.
    """
    end = ending.rank_end
    told = {} if end is None else {key: value for key, value in end._asdict().items() if key != "windows"}  # they are among the facts
    rank_end = None if end is None else cast(RankEndNote, {**told, "ranks": list(end.ranks)})
    return {
        "schema": SCHEMA,
        "facts": dict(facts),
        "times": dict(times),
        "nodes": list(nodes),
        "parameters": parameters,
        "steps": (steps[0], steps[1]),
        "ending": {"status": ending.status, "reason": ending.reason, "rank_end": rank_end},
    }


# The summary of a run for its log.


def measured_words(found: Mapping[str, Any], unit: str = "samples") -> str:
    """Format rate, loss and accuracy from the result of `measured`, as far as they were measured, after a colon.

    Return an empty text if there are none. `unit`: what the rate counts, samples or tokens.
    """
    parts = list(_parts(found.get("performance") or {}, found.get("training") or {}, unit))
    return f": {', '.join(parts)}" if parts else ""


def _parts(performance: Mapping[str, Any], training: Mapping[str, Any], unit: str) -> Iterator[str]:
    rate, steps = performance.get(f"{unit}_per_s"), performance.get("num_measured_steps")
    if rate is not None and steps is not None:
        yield f"{_number(rate)} {unit}/s over {counted(steps, 'step')}"
    first, final = training.get("first_loss"), training.get("final_loss")
    if final is not None:
        yield f"loss {_number(final)}" if first is None else f"loss {_number(first)} -> {_number(final)}"
    evaluation = training.get("eval") or {}
    if evaluation.get("accuracy") is not None:
        yield f"{100 * evaluation['accuracy']:.1f} % of {evaluation.get('split') or 'the evaluation'} correct"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
