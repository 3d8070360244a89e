"""Whether the files that were pushed confirm the status `ok`. Pure.

That the ranks ended well was seen while they wrote. Their directory is open to the program, and to whoever else may write there, until it
is pushed: what makes a row of the tables is what then lies on storage.
"""

from __future__ import annotations

from collections.abc import Mapping

from workflow.run.record.events import RankEvents
from workflow.run.record.model_check import wrong_model
from workflow.run.record.steps_asked import StepsAsked, too_few_lines, too_few_steps
from workflow.run.record.steps_source import drives_all, processes, telling


def contradiction(
    events: Mapping[int, RankEvents], world_size: int, model: tuple[str, int] | None, steps: StepsAsked | None = None
) -> str | None:
    """Why a run with these pushed events is none that ended `ok`, None where nothing speaks against it. `model`: name and parameter count
    of the cell's network; `steps`: what was asked of each rank."""
    return (
        unfinished(events, world_size)
        or elsewhere(events, world_size)
        or (None if model is None else wrong_model(events, *model))
        or untrained(events)
        or uncounted(events)
        or (None if steps is None else _too_few(events, world_size, steps))
    )


def _too_few(events: Mapping[int, RankEvents], world_size: int, steps: StepsAsked) -> str | None:
    source, told, _ = telling(events, world_size)
    return too_few_steps(told, steps) if source == "program" else too_few_lines(told, steps)


def elsewhere(events: Mapping[int, RankEvents], world_size: int) -> str | None:
    """The first rank that was not in the run that was asked for: one that worked for itself, where all should work together, has done
    nothing that a table compares, however well it ended."""
    if drives_all(events) and len(events) > 1:
        return f"rank 0 tells that it works for all ranks, and there is an events-{max(events)}.jsonl: they did not work together"
    for rank, entry in sorted(events.items()):
        start = entry.start or {}
        if start.get("world_size") not in (None, world_size):
            return f"rank {rank} tells of {start['world_size']} ranks in all, and the run has {world_size}: they did not work together"
        if start.get("rank") not in (None, rank):
            return f"events-{rank}.jsonl was written by rank {start['rank']}, as that tells"
    return None


def untrained(events: Mapping[int, RankEvents]) -> str | None:
    """The first rank with a loss that is not finite: where a node program saw it, the run ended as `nan`."""
    for rank, entry in sorted(events.items()):
        if entry.not_finite is not None:
            return f"rank {rank} ended well, and tells that the loss of its step {entry.not_finite} is NaN or infinite"
    return None


def uncounted(events: Mapping[int, RankEvents]) -> str | None:
    """The first rank that told of samples or tokens that are no number of them: without them its rate would be of the batch of the cell,
    which it may not have done."""
    for rank, entry in sorted(events.items()):
        if entry.no_count is not None:
            return f"rank {rank} tells of {entry.no_count}: expected a whole number from 0 on, or nothing where it does not know"
    return None


def other_device(events: Mapping[int, RankEvents], device: str) -> str | None:
    """The first rank that computed on something else than the run was granted, cpu or cuda."""
    for rank, entry in sorted(events.items()):
        told = (entry.start or {}).get("device")
        if told is not None and told.partition(":")[0] != device:
            return f"rank {rank} computed on {told}, as it tells, and the run's device is {device}"
    return None


def unfinished(events: Mapping[int, RankEvents], world_size: int) -> str | None:
    """The first rank whose events do not go from run_start to run_stop."""
    for rank in range(processes(events, world_size)):
        entry = events.get(rank)
        if entry is None:
            return f"rank {rank} ended well, and there is no events-{rank}.jsonl among what could be pushed: {_WHY}"
        missing = [kind for kind, event in (("run_start", entry.start), ("run_stop", entry.stop)) if event is None]
        if missing:
            return f"rank {rank} ended well, and its events-{rank}.jsonl was pushed without {' and '.join(missing)}: {_WHY}"
    return None


_WHY = "the program, or another process, has changed its output directory before it was on storage; nothing in it is to be believed"
