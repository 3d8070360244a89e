"""Who told of the steps of a run: its program by events, its output by lines that an expression matched, or nobody. Pure.

The adapter that writes the events of a program which writes none (containers/lib/slipway_log.py) says so in run_start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple

from workflow.run.record.events import RankEvents

SOURCES: Final = ("program", "log", "none")
Source = Literal["program", "log", "none"]


class Telling(NamedTuple):
    """`events`: of the ranks that are to tell of steps; `num_ranks`: how many these are."""

    source: Source
    events: Mapping[int, RankEvents]
    num_ranks: int


def drives_all(events: Mapping[int, RankEvents]) -> bool:
    """Whether rank 0 is the one process of the run, and works for all (launcher single): what it tells is of all of them."""
    return 0 in events and bool((events[0].start or {}).get("drives_all"))


def processes(events: Mapping[int, RankEvents], world_size: int) -> int:
    """How many ranks are processes, and write events."""
    return 1 if drives_all(events) else world_size


def telling(events: Mapping[int, RankEvents], world_size: int) -> Telling:
    """Ranks whose output nobody searched count as silent only beside a rank 0 whose output was."""
    world_size = processes(events, world_size)
    said = {rank: (entry.start or {}).get("steps_source") for rank, entry in events.items()}
    silent = {rank for rank, word in said.items() if word == "none"}
    if len(silent) == world_size:
        return Telling("none", {}, 0)
    if said.get(0) != "log":
        return Telling("program", events, world_size)
    return Telling("log", {rank: entry for rank, entry in events.items() if rank not in silent}, world_size - len(silent))


def largest_together(events: Mapping[int, RankEvents]) -> int:
    """The most steps that a line told of at once, in the measured window of any rank; 1 where each was told for itself."""
    return max((step.together for entry in events.values() for step in entry.steps.values() if step.measured), default=1)


def slack(performance: Mapping[str, Any] | None) -> int:
    """By how many steps a window that was read from output may be shorter than the one that was asked for: lines do not begin and end
    where it does."""
    return 2 * int((performance or {}).get("steps_together") or 1)
