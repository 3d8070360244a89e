"""The record of one attempt, schema `slipway.run/1`: everything measured and everything one must know to believe it. Pure.

A missing number is null, never 0 or -1. The record carries the whole cell: nothing is ever read back from a path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from base.foreign import text
from workflow.run.chain import checkpoint_of, joined, pushed_checkpoint, resumed_from
from workflow.run.events import RankEvents
from workflow.run.model_check import unchecked_model
from workflow.run.ok_check import contradiction
from workflow.run.outcome import Ending
from workflow.run.performance import performance, training
from workflow.run.rate import goes_back, measured_steps, own_steps, samples_asked, samples_of, windows_of

SCHEMA: Final = "slipway.run/1"
MAX_WARNINGS: Final = 20
MAX_SAID: Final = 200
OF_EACH_RANK: Final = ("hostname", "gpu_uuid", "cpu_cores", "environment")
"""Provenance that may differ between ranks."""


def measured(
    events: Mapping[int, RankEvents], world_size: int, global_batch: int, mode: str = "train", model: tuple[str, int] | None = None
) -> dict[str, Any]:
    """What the events say: `performance`, `training`, `provenance` of the program, `checkpoint`, `warnings`, `windows`: what would be wrong
    with the measured steps of a run that ended well, and `contradiction`: why this was no run that ended `ok`, or None. `model`: name and
    parameter count of the cell's network."""
    starts = {rank: entry.start for rank, entry in sorted(events.items()) if entry.start is not None}
    unchecked = unchecked_model(events, model[0]) if model is not None else []
    miscounted = _miscounted(events, world_size, global_batch, mode)
    return {
        "performance": performance(events, world_size, global_batch, mode),
        "training": training(events, world_size),
        "provenance": program_provenance(starts),
        "checkpoint": checkpoint_of(events),
        "contradiction": contradiction(events, world_size, model),
        "windows": _windows(events),
        "warnings": [*unchecked, *disagreements(starts), *_said(events), *miscounted, *_broken(events)][:MAX_WARNINGS],
    }


def program_provenance(starts: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """What the first rank's run_start says of the framework and its libraries."""
    if not starts:
        return {}
    start = starts[min(starts)]
    said = start.get("provenance")
    own = {key: start.get(key) for key in ("framework", "framework_version")}
    return {**(said if isinstance(said, dict) else {}), **own}


def disagreements(starts: Mapping[int, Mapping[str, Any]]) -> list[str]:
    """One warning for each thing that the ranks say differently: then they did not run the same program on the same libraries."""
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
    """What the preflight found."""
    return [f"network: {text}" for text in (preflight or {}).get("findings", [])]


def _said(events: Mapping[int, RankEvents]) -> list[str]:
    """What the programs warned of, each thing once."""
    return list(dict.fromkeys(warning for _, entry in sorted(events.items()) for warning in entry.warnings))


def _miscounted(events: Mapping[int, RankEvents], world_size: int, global_batch: int, mode: str) -> list[str]:
    """A warning where the ranks did another number of samples than the cell asks for in their steps; more than that are not counted."""
    ranks = [entry.steps for _, entry in sorted(events.items())]
    measured = measured_steps(ranks) if len(ranks) == world_size else []
    if not measured:
        return []
    windows = windows_of(ranks, measured, mode)
    told, asked = samples_of(ranks, windows, global_batch), samples_asked(windows, global_batch)
    where = f"in {len(measured)} measured steps"
    return [] if told == asked else [f"the ranks tell of {told} samples {where}, and the cell asks for {asked}"]


def _windows(events: Mapping[int, RankEvents]) -> list[str]:
    """A sentence each where ranks measure different steps, or one by a clock that goes back."""
    windows = {rank: own_steps(entry.steps) for rank, entry in sorted(events.items())}
    back = [rank for rank, window in windows.items() if goes_back(events[rank].steps, window)]
    warnings = [f"the clock of {_ranks(back)} goes back between measured steps: time between its steps is not known"] if back else []
    said: dict[str, list[int]] = {}
    for rank, window in windows.items():
        said.setdefault(f"{len(window)} ({window[0]} to {window[-1]})" if window else "none", []).append(rank)
    if any(window != windows[min(windows)] for window in windows.values()):
        shown = ", ".join(f"{steps} on {_ranks(ranks)}" for steps, ranks in said.items())
        warnings.append(text(f"ranks measure different steps: {shown}"))
    return warnings


def window_warnings(ending: Ending, cell: Mapping[str, Any], found: Mapping[str, Any], *, resumed: bool) -> list[str]:
    """Warnings where a run that ended well has no window, or another one than was asked for; `found`: of chain.joined; `resumed`: a shorter
    one is what is left after the resume."""
    if ending.status != "ok":
        return []
    performance, asked = found.get("performance"), (cell["steps"] or {}).get("measured")
    count = performance["num_measured_steps"] if performance else 0
    if not count:
        cells = "" if asked is None else f", and the cell asks for {asked}"
        return [f"no step was told as measured by every rank{cells}: the run has no rate", *found.get("windows", [])]
    short = [] if resumed or asked in (None, count) else [f"the window has {count} measured steps, and the cell asks for {asked}"]
    return [*short, *found.get("windows", [])]


def _broken(events: Mapping[int, RankEvents]) -> list[str]:
    counts = {rank: entry.broken_lines for rank, entry in sorted(events.items()) if entry.broken_lines}
    return [f"rank {rank} wrote {count} lines that are no events, or tell a step again" for rank, count in counts.items()]


def build_record(
    run: Mapping[str, Any],
    ending: Ending,
    times: Mapping[str, Any],
    found: Mapping[str, Any],
    files: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The record.

    `run`: what was known before (run_id, study, cell, repeat, attempt, result_number, site, engine, allocation as JSON, nodes,
    threads_per_rank, preflight, dataset, provenance, and `earlier`, the attempt it goes on from, of chain.resumable); `times`: start, end,
    run_s, steps_s; `found`: of `measured`; `files`: path, bytes, blake3.
    """
    allocation = run["allocation"]
    found = joined(found, run.get("earlier"))
    return {
        "schema": SCHEMA,
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
        "time": {"start": times["start"], "end": times["end"]},
        "run_s": times["run_s"],
        "steps_s": times["steps_s"],
        "scheduler": allocation["scheduler"],
        "scheduler_version": allocation["scheduler_version"],
        "job_id": allocation["job_id"],
        "restart_count": allocation["restart_count"],
        "site": run["site"],
        "engine": run["engine"],
        "exclusive": run["exclusive"],
        "oversubscribed": allocation["oversubscribed"],
        "nodes": run["nodes"],
        "world_size": run["cell"]["nodes"] * run["cell"]["gpus_per_node"],
        "device": allocation["device"],
        "threads_per_rank": run["threads_per_rank"],
        "preflight": run["preflight"],
        "performance": found.get("performance"),
        "training": found.get("training"),
        "resumed_from": resumed_from(run.get("earlier")),
        "checkpoint": pushed_checkpoint(found, files),
        "dataset": run["dataset"],
        "provenance": {**run["provenance"], **found.get("provenance", {})},
        "warnings": [
            *run.get("warnings", []),
            *network_warnings(run["preflight"]),
            *window_warnings(ending, run["cell"], found, resumed=run.get("earlier") is not None),
            *found.get("warnings", []),
        ][:MAX_WARNINGS],
        "files": sorted((dict(file) for file in files), key=lambda file: str(file["path"])),
    }
