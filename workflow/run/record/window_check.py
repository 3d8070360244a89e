"""Compare the measured window that a rank reports with what its node program saw by its own clock. Pure.

A line that was not there at one look and was at the next was written in between. So the lines around a window give a least and a most that
it took, whatever the program tells. Where they leave more open than CONFIRMED, nobody but the program knows how long its window was.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from workflow.run.record.model import Performance, Training, WindowSeen
from workflow.run.record.outcome import ObservedWindow

# The report of the ranks, compared with Slipway's own clock and the dataset. One warning for each contradiction.


SLACK_RATIO: Final = 0.05
SLACK_S: Final = 1.0
"""Clocks that are in order differ by less."""
CLOSE_RATIO: Final = 0.2
CLOSE_S: Final = 0.1
"""The same, where lines were seen as they came: on a busy machine a line comes a little after its moment."""


def clock_warnings(performance: Performance | None, training: Training | None, ran_s: float | None, mode: str) -> list[str]:
    """Warn where the times that a program reports are longer than its ranks ran by Slipway's own clock, or than all steps together."""
    window_s = None if performance is None else performance.window_s
    train_s, eval_s = (training.train_s, training.eval_s) if training is not None else (None, None)
    warnings = []
    for what, seconds in (("the measured window", window_s), ("all steps", train_s), ("the evaluation", eval_s)):
        if ran_s is not None and seconds is not None and seconds > ran_s * (1 + SLACK_RATIO) + SLACK_S:
            warnings.append(f"the ranks tell of {seconds:.6g} s for {what}, and ran for {ran_s:.6g} s: a clock of theirs is wrong")
    if mode == "train" and window_s is not None and train_s is not None and train_s < window_s * (1 - SLACK_RATIO) - SLACK_S:
        warnings.append(f"rank 0 tells of {train_s:.6g} s for all its steps, and the measured ones alone took {window_s:.6g} s")
    return warnings


def evaluation_warnings(training: Training | None, splits: Mapping[str, int] | None) -> list[str]:
    """Warn where an accuracy is not that of a whole split. `splits`: samples of each split, None where the dataset's are not known."""
    evaluation = None if training is None else training.eval
    if evaluation is None or splits is None:
        return []
    split, samples = evaluation.split or "no split", evaluation.samples
    if split not in splits:
        return [f"rank 0 tells of an evaluation on {split!r}, and the dataset has {', '.join(sorted(splits))}"]
    if samples == splits[split]:
        return []
    count = "an unknown number of" if samples is None else samples
    return [f"rank 0 tells of an evaluation on {count} samples of {split}, which has {splits[split]}"]


STAGGERED_RATIO: Final = 0.1
STAGGERED_S: Final = 0.5
"""The most, in parts of a window and in seconds, by which the time from the first start to the last end of all ranks' windows is longer
than the longest of them, if they measured at the same time: messages of nodes may be on their way for a moment."""
CONFIRMED: Final = 0.1
"""How far, in parts of a window, what was seen may be from what is told for it to confirm that."""


class ReportedWindow(NamedTuple):
    """The window of one rank: numbers of its first and its last step, and how long it tells that it was (rate.own_window), without
    the evaluations between its steps."""

    rank: int
    first: int
    last: int
    window_s: float
    evaluation_s: float = 0.0


def window_seen(reported: Sequence[ReportedWindow], observed: Sequence[ObservedWindow]) -> WindowSeen | None:
    """Return the `window_seen` of a record for the rank whose window is confirmed least, or None where no rank has a window.

    `least_s` and `most_s` are None where nobody has observed it. `together_s`: from the first start to the last end of all ranks' windows,
    None where not all were observed. Evaluations that a rank tells are in none of them.
    """
    by_rank = {entry.rank: entry for entry in observed}
    found = []
    for rank, first, last, window_s, evaluation_s in reported:
        entry = by_rank.get(rank)
        if entry is None or (entry.first, entry.last) != (first, last):
            found.append(WindowSeen(rank=rank, window_s=window_s))
            continue
        least_s, most_s = (round(max(0.0, seen_s - evaluation_s), 6) for seen_s in (entry.least_s, entry.most_s))
        found.append(WindowSeen(rank=rank, window_s=window_s, least_s=least_s, most_s=most_s))
    worst = max(found, key=_doubt, default=None)
    return None if worst is None else replace(worst, together_s=_together_s(reported, by_rank))


def unconfirmed(performance: Performance | None) -> WindowSeen | None:
    """Return the `window_seen` for a window of an earlier attempt that was cut off: what its nodes saw ended with it."""
    window_s = None if performance is None else performance.window_s
    return None if window_s is None else WindowSeen(rank=0, window_s=window_s)


def _together_s(reported: Sequence[ReportedWindow], by_rank: Mapping[int, ObservedWindow]) -> float | None:
    observed = [by_rank.get(one.rank) for one in reported]
    spans = [(one.begin_s, one.end_s) for one in observed if one is not None and one.begin_s is not None and one.end_s is not None]
    if len(spans) < len(observed):
        return None
    evaluation_s = max(one.evaluation_s for one in reported)
    return round(max(0.0, max(end for _, end in spans) - min(begin for begin, _ in spans) - evaluation_s), 6)


def in_supervisor_s(observed: ObservedWindow, now: float) -> ObservedWindow:
    """Convert what a node has just reported, at `now`, to the supervisor's clock. Clocks of nodes are not compared."""
    if observed.begin_s is None or observed.end_s is None:
        return observed
    return observed._replace(begin_s=round(now + observed.begin_s, 6), end_s=round(now + observed.end_s, 6))


def _doubt(seen: WindowSeen) -> float:
    reported, least, most = seen.window_s, seen.least_s, seen.most_s
    return math.inf if not reported or least is None or most is None else max(most / reported - 1, 1 - least / reported)


def seen_warnings(seen: WindowSeen | None) -> list[str]:
    """Warn where the reported window is shorter or longer than the time between the lines around it."""
    if seen is None or seen.window_s is None or seen.least_s is None or seen.most_s is None:
        return []
    reported, least, most = seen.window_s, seen.least_s, seen.most_s
    who = f"rank {seen.rank} tells of {reported:.3g} s for its measured window"
    if reported < least * (1 - CLOSE_RATIO) - CLOSE_S:
        return [f"{who}, and at least {least:.3g} s went by between the lines around it by Slipway's clock: its rate looks too high"]
    if reported > most * (1 + CLOSE_RATIO) + CLOSE_S:
        return [f"{who}, and at most {most:.3g} s went by between the lines around it by Slipway's clock: its rate looks too low"]
    return []
