"""How fast a run was: the samples, or tokens, of the measured window over its wall time. Pure.

`train`: ranks go on together, since each waits for all in the exchange of every step. The wall time is the longest of the ranks' own
windows, each from the begin of its first to the end of its last measured step, by its own clock: clocks of different nodes need not
agree. Where ranks begin the window together, as ours do behind a barrier, that is the time from the last rank's begin to the last rank's
end; else it is longer, by less than a step. `infer`: nobody waits, so the rate is the sum of the ranks' own, each over the steps that it
calls measured; a slower rank works on alone at the end, and the longest window tells for how long.

The median step is no rate. Where the two differ, `Pace.cause` says what most of the difference is made of.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from base.sanitize import number
from workflow.run.record.events import RankEvents, Step
from workflow.run.record.quantiles import median
from workflow.run.record.stragglers import own_work

UNEVEN: Final = 0.05
"""How far the rate may be from what the median step says before a cause is named."""

CLOCK_RATIO: Final = 0.02
"""How much shorter than the sum of its steps a window is believed to be, as for the mark `window`: the clock of a GPU is another one."""

MAX_LENGTHS: Final = 100

Ranks = Sequence[Mapping[int, Step]]
Windows = Sequence[Sequence[int]]
"""The numbers of the steps of each rank that count, in order."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Of a window. `ratio`: the rate over the one that the median step alone would give; None where that is not a number. `cause`:
    `input`, `stalls`, `stragglers` or `gaps` (between steps), where `ratio` is further from 1 than UNEVEN. `tokens`: None unless every rank
    tells them of each of its steps. `reported`: the samples, where `samples` are at most those that the cell asks for."""

    samples: int
    reported: int
    window_s: float
    samples_per_s: float | None
    tokens: int | None
    tokens_per_s: float | None
    ratio: float | None
    cause: str | None


def pace(ranks: Ranks, measured: Sequence[int], walls_s: Sequence[float], asked: int, mode: str) -> Pace:
    """`ranks`: the steps of each; `measured`: of `measured_steps`, at least one; `walls_s`: of `own_window` of each rank; `asked`: samples
    of a step, all ranks together."""
    windows = windows_of(ranks, measured, mode)
    samples = [_samples(steps, window, asked / len(ranks)) for steps, window in zip(ranks, windows, strict=True)]
    reported = samples_of(ranks, windows, asked)
    total = min(reported, samples_asked(windows, asked))  # a miscount never makes a run faster
    wall_s = _together(samples, walls_s, mode)
    rate = total / wall_s if wall_s else None
    middle = median([max(steps[step].seconds for steps in ranks) for step in measured])
    scale = len(measured) * len(ranks) / sum(map(len, windows))  # 1, but for ranks that do not wait and measure different steps
    ratio = rate * middle * len(measured) / (total * scale) if rate and middle else None
    cause = None
    if ratio is not None and abs(ratio - 1) > UNEVEN:
        alone_s = scale * _together(samples, [_sum_s(steps, window) for steps, window in zip(ranks, windows, strict=True)], mode)
        parts = {**_parts(ranks, measured, alone_s, mode), "gaps": scale * wall_s - alone_s}
        cause = max(parts, key=lambda name: parts[name] if ratio < 1 else -parts[name])
    tokens, tokens_per_s = _tokens(ranks, windows, walls_s, mode)
    return Pace(
        samples=total,
        reported=reported,
        window_s=max(walls_s),
        samples_per_s=rate,
        tokens=tokens,
        tokens_per_s=tokens_per_s,
        ratio=ratio,
        cause=cause,
    )


def _tokens(ranks: Ranks, windows: Windows, walls_s: Sequence[float], mode: str) -> tuple[int | None, float | None]:
    """Tokens of all ranks in their windows, and per second. How many a sample has is not known here: they count as they are told."""
    told = [[steps[step].tokens for step in window] for steps, window in zip(ranks, windows, strict=True)]
    counts = [sum(tokens for tokens in rank if tokens is not None) for rank in told]
    if any(tokens is None for rank in told for tokens in rank):
        return None, None
    wall_s = _together(counts, walls_s, mode)
    return sum(counts), sum(counts) / wall_s if wall_s else None


def tokens_by_length(ranks: Ranks, windows: Windows) -> list[list[int]] | None:
    """[length of a sequence, tokens of all ranks in such], the shortest first; None unless every rank tells both of each of its steps, and
    for more lengths than a dataset has."""
    found: dict[int, int] = {}
    for steps, window in zip(ranks, windows, strict=True):
        for step in window:
            length, tokens = steps[step].length, steps[step].tokens
            if not length or tokens is None:
                return None
            found[length] = found.get(length, 0) + tokens
    return [list(entry) for entry in sorted(found.items())] if len(found) <= MAX_LENGTHS else None


def measured_steps(ranks: Ranks) -> list[int]:
    """The numbers of the steps that every rank has and calls measured, in order."""
    common = set(ranks[0]).intersection(*ranks[1:]) if ranks else set()
    return sorted(step for step in common if all(steps[step].measured for steps in ranks))


def own_steps(steps: Mapping[int, Step]) -> list[int]:
    """The numbers of the steps that a rank calls measured, in order."""
    return sorted(number for number, step in steps.items() if step.measured)


def windows_of(ranks: Ranks, measured: Sequence[int], mode: str) -> Windows:
    """Of each rank the steps that its rate is made of: those of all ranks in common, and where nobody waits its own."""
    return [own_steps(steps) if mode == "infer" else measured for steps in ranks]


def own_window(rank: RankEvents, window: Sequence[int]) -> float:
    """Return the seconds from the begin of a rank's first step of `window` to the end of its last one, by its own clock.

    A program reports them in run_stop, which counts if all steps that it calls measured are in `window`, or by the times of its lines. The
    longer one is taken, since beside a GPU a line may come some steps late. Where it is shorter than the sum of these steps, or not known,
    that sum is taken. For steps that were read from output only the times of the lines count, which are Slipway's: what a line says of
    seconds may be the latency of steps that overlap.
    """
    longest, sum_s = _wall(rank, window), _sum_s(rank.steps, window)
    return longest if longest >= sum_s * (1 - CLOCK_RATIO) or (longest and _is_log(rank)) else sum_s


def tells_wall(rank: RankEvents, window: Sequence[int]) -> bool:
    """Return whether the wall time of the window is known: without it, what lies between its steps is in no rate."""
    return _wall(rank, window) > 0


def _wall(rank: RankEvents, window: Sequence[int]) -> float:
    """0 where it is not known."""
    whole = not rank.beyond and len(window) == sum(step.measured for step in rank.steps.values())
    told = (number((rank.stop or {}).get("window_wall_s")) or 0.0) if whole else 0.0
    return max(told, _by_lines(rank, window))


def _is_log(rank: RankEvents) -> bool:
    return (rank.start or {}).get("steps_source") == "log"


def goes_back(steps: Mapping[int, Step], window: Sequence[int]) -> bool:
    """Whether a step of `window` ended before an earlier one did, by the rank's own clock: then its lines tell no wall time."""
    ends_ns = [end_ns for step in window if (end_ns := steps[step].end_ns) is not None]
    return any(after < before for before, after in pairwise(ends_ns))


def moments(steps: Mapping[int, Step], window: Sequence[int]) -> tuple[float, float] | None:
    """When a rank's `window` began and ended, in seconds of its own monotonic clock; None where its lines do not tell."""
    first, last = (steps[window[0]], steps[window[-1]]) if window else (None, None)
    if first is None or last is None or first.end_ns is None or last.end_ns is None or goes_back(steps, window):
        return None
    return first.end_ns / 1e9 - first.seconds, last.end_ns / 1e9


def _by_lines(rank: RankEvents, window: Sequence[int]) -> float:
    """Seconds of the window by the times of its lines; 0 where they do not tell. A window of steps that were read from output begins no
    earlier than the line before it."""
    steps = rank.steps
    first, last = steps[window[0]], steps[window[-1]]
    if first.end_ns is None or last.end_ns is None or goes_back(steps, window):
        return 0.0
    before = steps.get(window[0] - 1) if _is_log(rank) else None
    first_s = first.seconds if before is None or before.end_ns is None else min(first.seconds, (first.end_ns - before.end_ns) / 1e9)
    return (last.end_ns - first.end_ns) / 1e9 + first_s


def _sum_s(steps: Mapping[int, Step], window: Sequence[int]) -> float:
    return math.fsum(steps[step].seconds for step in window)


def samples_of(ranks: Ranks, windows: Windows, asked: int) -> int:
    """Samples that all ranks tell of in these steps."""
    return round(math.fsum(_samples(steps, window, asked / len(ranks)) for steps, window in zip(ranks, windows, strict=True)))


def samples_asked(windows: Windows, asked: int) -> int:
    """Samples that the cell asks for in these steps; `asked`: of a step, all ranks together."""
    return asked * sum(map(len, windows)) // len(windows)


def _samples(steps: Mapping[int, Step], measured: Sequence[int], share: float) -> float:
    """Of one rank; a step that does not tell them has its share of the global batch."""
    told = [steps[step].samples for step in measured]
    return math.fsum(share if samples is None else samples for samples in told)


def _together(samples: Sequence[float], seconds: Sequence[float], mode: str) -> float:
    """The time in which all ranks did their samples: the longest, or, where they do not wait, what the sum of their rates needs."""
    if mode != "infer":
        return max(seconds)
    rate = math.fsum(count / took for count, took in zip(samples, seconds, strict=True) if took > 0)
    return math.fsum(samples) / rate if rate else 0.0


def _parts(ranks: Ranks, measured: Sequence[int], alone_s: float, mode: str) -> dict[str, float]:
    """Seconds by which the steps last longer than as many as long as the median step, by cause; negative where they are shorter."""
    slowest = [max(steps[step].seconds for steps in ranks) for step in measured]
    waits = [max(steps[step].input_s or 0.0 for steps in ranks) for step in measured]
    work = [own_work(ranks, step, mode) for step in measured]
    ahead = [0.0 if own is None else max(0.0, max(own) - median(own) - wait) for own, wait in zip(work, waits, strict=True)]
    parts = {"input": _beyond_median(waits), "stragglers": _beyond_median(ahead)}
    parts["stalls"] = _beyond_median(slowest) - parts["input"] - parts["stragglers"]
    parts["stragglers"] += alone_s - math.fsum(slowest)  # ranks that are slow in turn: no window is as long as the slowest of each step
    return parts


def _beyond_median(values: Sequence[float]) -> float:
    """The sum of the values beyond as many of their median."""
    return math.fsum(values) - len(values) * median(values)
