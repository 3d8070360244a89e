"""The measured window as a rank tells it, beside what its node program saw of it by its own clock. Pure.

A line that was not there at one look and was at the next was written in between. So the lines around a window give a least and a most that
it took, whatever the program tells. Where they leave more open than CONFIRMED, nobody but the program knows how long its window was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

# The report of the ranks, compared with Slipway's own clock and the dataset. One warning for each contradiction.


SLACK_RATIO: Final = 0.05
SLACK_S: Final = 1.0
"""Clocks that are in order differ by less."""
CLOSE_RATIO: Final = 0.2
CLOSE_S: Final = 0.1
"""The same, where lines were seen as they came: on a busy machine a line comes a little after its moment."""


def clock_warnings(found: Mapping[str, Any], ran_s: float | None, mode: str) -> list[str]:
    """Warn where the times that a program reports cannot be.

    Nothing can have taken longer than the ranks ran, and all steps of a training take no less than those of the window. `found`:
    `performance` and `training` of one attempt; `ran_s`: how long its ranks ran, by Slipway's own clock.
    """
    window_s = (found.get("performance") or {}).get("window_s")
    training = found.get("training") or {}
    train_s = training.get("train_s")
    told = {"the measured window": window_s, "all steps": train_s, "the evaluation": training.get("eval_s")}
    warnings = []
    for what, seconds in told.items():
        if ran_s is not None and seconds is not None and seconds > ran_s * (1 + SLACK_RATIO) + SLACK_S:
            warnings.append(f"the ranks tell of {seconds:.6g} s for {what}, and ran for {ran_s:.6g} s: a clock of theirs is wrong")
    if mode == "train" and window_s is not None and train_s is not None and train_s < window_s * (1 - SLACK_RATIO) - SLACK_S:
        warnings.append(f"rank 0 tells of {train_s:.6g} s for all its steps, and the measured ones alone took {window_s:.6g} s")
    return warnings


def evaluation_warnings(found: Mapping[str, Any], splits: Mapping[str, int] | None) -> list[str]:
    """Warn where an accuracy is not that of a whole split. `splits`: samples of each split, None where the dataset's are not known."""
    evaluation = (found.get("training") or {}).get("eval")
    if not evaluation or splits is None:
        return []
    split, samples = evaluation["split"], evaluation["samples"]
    if split not in splits:
        return [f"rank 0 tells of an evaluation on {split!r}, and the dataset has {', '.join(sorted(splits))}"]
    if samples == splits[split]:
        return []
    count = "an unknown number of" if samples is None else samples
    return [f"rank 0 tells of an evaluation on {count} samples of {split}, which has {splits[split]}"]


STAGGERED_RATIO: Final = 0.1
STAGGERED_S: Final = 0.5
"""By how much, in parts of a window and beside that, the time from the first begin to the last end of all ranks' windows is longer than
the longest of them, before they did not measure at the same time: messages of nodes may be on their way for a moment."""
CONFIRMED: Final = 0.1
"""How far, in parts of a window, what was seen may be from what is told for it to confirm that."""


class WindowSeen(NamedTuple):
    """Of one rank: numbers of the first and the last step that it called measured; by its node's clock."""

    rank: int
    first: int
    last: int
    least_s: float
    most_s: float
    begin_s: float | None = None
    """When it began and ended: as the node tells it, before the moment of telling (negative); where the supervisor has it, by the
    supervisor's monotonic clock."""
    end_s: float | None = None


class WindowTold(NamedTuple):
    """Of one rank: numbers of the first and the last step of its window, and how long it tells that this was (rate.own_window)."""

    rank: int
    first: int
    last: int
    window_s: float


def window_seen(told: Sequence[Sequence[Any]], seen: Sequence[Sequence[Any]]) -> dict[str, Any] | None:
    """Return the `window_seen` of a record for the rank whose window is confirmed least, or None where no rank has a window.

    `least_s` and `most_s` are None where nobody has seen it. `together_s`: from the first begin to the last end of all ranks' windows,
    None where not all were seen. The entries of `told` and `seen` are values of WindowTold and WindowSeen, which may have been through
    JSON.
    """
    watched = {entry.rank: entry for entry in (WindowSeen(*values) for values in seen)}
    found = []
    for rank, first, last, window_s in told:
        entry = watched.get(rank)
        same = entry is not None and (entry.first, entry.last) == (first, last)
        least_s, most_s = (entry.least_s, entry.most_s) if entry is not None and same else (None, None)
        found.append({"rank": rank, "window_s": window_s, "least_s": least_s, "most_s": most_s})
    worst = max(found, key=_doubt, default=None)
    return worst and {**worst, "together_s": _together_s([watched.get(rank) for rank, *_ in told])}


def unconfirmed(performance: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the `window_seen` for a window of an earlier attempt that was cut off: what its nodes saw ended with it."""
    window_s = (performance or {}).get("window_s")
    return None if window_s is None else {"rank": 0, "window_s": window_s, "least_s": None, "most_s": None, "together_s": None}


def _together_s(seen: Sequence[WindowSeen | None]) -> float | None:
    spans = [(one.begin_s, one.end_s) for one in seen if one is not None and one.begin_s is not None and one.end_s is not None]
    if len(spans) < len(seen):
        return None
    return round(max(0.0, max(end for _, end in spans) - min(begin for begin, _ in spans)), 6)


def in_supervisor_s(seen: WindowSeen, now: float) -> WindowSeen:
    """Convert what a node has just reported, at `now`, to the supervisor's clock. Clocks of nodes are not compared."""
    if seen.begin_s is None or seen.end_s is None:
        return seen
    return seen._replace(begin_s=round(now + seen.begin_s, 6), end_s=round(now + seen.end_s, 6))


def _doubt(seen: Mapping[str, Any]) -> float:
    told, least, most = seen["window_s"], seen["least_s"], seen["most_s"]
    return math.inf if not told or least is None or most is None else max(most / told - 1, 1 - least / told)


def seen_warnings(seen: Mapping[str, Any] | None) -> list[str]:
    """Warn where the reported window is shorter or longer than the time between the lines around it."""
    if seen is None or seen["least_s"] is None or seen["most_s"] is None:
        return []
    told, least, most = seen["window_s"], seen["least_s"], seen["most_s"]
    who = f"rank {seen['rank']} tells of {told:.3g} s for its measured window"
    if told < least * (1 - CLOSE_RATIO) - CLOSE_S:
        return [f"{who}, and at least {least:.3g} s went by between the lines around it by Slipway's clock: its rate looks too high"]
    if told > most * (1 + CLOSE_RATIO) + CLOSE_S:
        return [f"{who}, and at most {most:.3g} s went by between the lines around it by Slipway's clock: its rate looks too low"]
    return []
