"""From events to numbers. Pure: the rules of the tables, in closed form, so that each can be checked by hand.

The rate is samples, or tokens, of the measured window over its wall time (rate.py). The time of a step is the slowest rank's; its median
stands beside the rate, and is none. A number that cannot be had is None.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from base.sanitize import number
from workflow.run.record.drift import drift, early
from workflow.run.record.events import RankEvents
from workflow.run.record.losses import FIRST_STEPS
from workflow.run.record.quantiles import median, summarise
from workflow.run.record.rate import Windows, measured_steps, own_window, pace, tokens_by_length, windows_of
from workflow.run.record.replicas import replicas_of
from workflow.run.record.stragglers import own_work, skew, straggler
from workflow.run.record.window_seen import WindowTold

MAX_LOSSES = 200
MAX_NUMBER = 1e15
"""A rate or a ratio beyond it is that of a clock which did not run: no number."""


def performance(
    events: Mapping[int, RankEvents], world_size: int, global_batch: int, mode: str = "train", processes: int | None = None
) -> dict[str, Any] | None:
    """The record's `performance`; None unless every rank has measured steps in common, and most of them took time. `processes`: of the run,
    where not all of them tell of steps."""
    ranks = [events[rank].steps for rank in range(world_size) if rank in events]
    measured = measured_steps(ranks) if len(ranks) == world_size else []
    slowest = [max(steps[step].seconds for steps in ranks) for step in measured]
    if not measured or not median(slowest):
        return None
    stops = [events[rank].stop for rank in range(world_size)]
    windows = windows_of(ranks, measured, mode)
    walls_s = [own_window(events[rank], window) for rank, window in enumerate(windows)]
    work = [own_work(ranks, step, mode) for step in measured]
    found = pace(ranks, measured, walls_s, global_batch, mode)
    rate, tokens_per_s = _possible(found.samples_per_s), _possible(found.tokens_per_s)
    together = [ranks[0][step].together for step in measured]
    means = [seconds for seconds, count in zip(slowest, together, strict=True) if count]  # one of each line
    begun = early(means or slowest) or (None, None)
    inputs = [seconds for steps in ranks for step in measured if (seconds := steps[step].input_s) is not None]
    return {
        "num_measured_steps": len(measured),
        "num_warmup_steps": sum(1 for step in ranks[0] if step < measured[0] and all(step in steps for steps in ranks)),
        "samples": found.samples,
        "samples_reported": found.reported,
        "assumed": _assumed(events, windows),
        "step_s": summarise(means or slowest),
        "steps_together": max(1, *together),
        "input_wait_s_mean": math.fsum(inputs) / (len(ranks) * len(measured)) if inputs else None,
        "first_step_s": max(steps[0].seconds for steps in ranks) if all(0 in steps for steps in ranks) else None,
        "window_s": found.window_s,
        "window_steps_ratio": _possible(_window_steps(stops)),
        "samples_per_s": rate,
        "samples_per_s_per_gpu": None if rate is None else rate / (processes or world_size),
        "tokens": found.tokens,
        "tokens_by_length": tokens_by_length(ranks, windows),
        "tokens_per_s": tokens_per_s,
        "tokens_per_s_per_gpu": None if tokens_per_s is None else tokens_per_s / (processes or world_size),
        "rate_to_median_ratio": _possible(found.ratio),
        "uneven_cause": found.cause,
        "rank_skew_p95_ratio": _possible(skew(work)),
        "straggler_rank": straggler(work),
        "drift_ratio": _possible(_halves(means or slowest)),
        "drift": drift(means or slowest),
        "last_half_ratio": _possible(begun[0]),
        "first_steps_ratio": _possible(begun[1]),
    }


def _assumed(events: Mapping[int, RankEvents], windows: Windows) -> list[str]:
    """Return what of the rate is a number of the study that no program reported: `samples` of a step, where any rank leaves them out, and
    `steps` of a line of output that does not name its step."""
    samples = any(events[rank].steps[step].samples is None for rank, window in enumerate(windows) for step in window)
    lines = any((events[rank].start or {}).get("counts_lines") for rank in range(len(windows)))
    return ["samples"] * samples + ["steps"] * lines


def windows_told(events: Mapping[int, RankEvents], world_size: int, mode: str = "train") -> list[WindowTold]:
    """Of each rank, where all have measured steps in common."""
    ranks = [events[rank].steps for rank in range(world_size) if rank in events]
    measured = measured_steps(ranks) if len(ranks) == world_size else []
    if not measured:
        return []
    windows = enumerate(windows_of(ranks, measured, mode))
    return [WindowTold(rank, window[0], window[-1], own_window(events[rank], window)) for rank, window in windows]


def _possible(value: float | None) -> float | None:
    return None if value is None or value > MAX_NUMBER else value


def _window_steps(stops: Sequence[Mapping[str, Any] | None]) -> float | None:
    """Sum of a rank's own steps / wall time of its window, of the rank where that is furthest from 1; None unless every rank told both.

    Within one rank only: the slowest rank changes from step to step, so the steps of all, each the slowest's, last longer than any window.
    """
    ratios = []
    for stop in stops:
        steps_s, wall_s = (number((stop or {}).get(key)) for key in ("window_steps_s", "window_wall_s"))
        if steps_s is None or not wall_s:
            return None
        ratios.append(steps_s / wall_s)
    return max(ratios, key=lambda ratio: abs(ratio - 1), default=None)


def _halves(seconds: Sequence[float]) -> float | None:
    """Median of the second half of the window / median of the first; None for fewer than two steps."""
    half = len(seconds) // 2
    first = median(seconds[:half]) if half else 0.0
    return median(seconds[half:]) / first if first else None


def training(
    events: Mapping[int, RankEvents], world_size: int, telling: Mapping[int, RankEvents] | None = None, late: Collection[int] = ()
) -> dict[str, Any] | None:
    """The record's `training`; None unless rank 0 has started. Losses are means over the ranks that wrote the step; `telling`: the ranks
    that are to tell of steps, where these are not all; `late`: of replicas.late_ranks."""
    head = events.get(0)
    if head is None or head.start is None:
        return None
    losses = mean_losses(events, world_size) if telling is None else mean_losses(telling, len(telling))
    stops = [rank.stop for rank in events.values() if rank.stop is not None]
    stop = head.stop or {}
    evaluation = head.evals[-1] if head.evals else None
    parameters, replicas = head.start.get("parameters"), replicas_of(events)
    return {
        "final_loss": losses[-1][1] if losses else None,
        "first_loss": losses[0][1] if losses else None,
        "first_losses": [list(entry) for entry in losses if entry[0] < FIRST_STEPS],
        "losses": thinned(losses),
        "eval": evaluation and {**{key: number(evaluation.get(key)) for key in ("loss", "accuracy")}, **_counts(evaluation)},
        "parameters": parameters if isinstance(parameters, int) else None,
        "parameter_norm": number(stop.get("norm")),
        "replicas": replicas and msgspec.to_builtins(replicas),
        "late_ranks": list(late),
        "flop_per_unit": head.start.get("flop_per_unit") or None,
        "precision": head.start.get("precision"),
        "train_s": number(stop.get("train_s")),
        "eval_s": number(stop.get("eval_s")),
        "peak_memory_bytes": max((peak for stop in stops if (peak := stop.get("max_memory_allocated_bytes"))), default=None),
    }


def _counts(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    samples = number(evaluation.get("samples"))
    return {"split": str(evaluation.get("split")), "samples": None if samples is None else int(samples)}


def mean_losses(events: Mapping[int, RankEvents], world_size: int) -> list[tuple[int, float]]:
    """(step, mean over ranks), for the steps that every rank of `world_size` has with a loss."""
    ranks = [events[rank].steps for rank in range(world_size) if rank in events]
    if not ranks or len(ranks) < world_size:
        return []
    found = []
    for step in sorted(set(ranks[0]).intersection(*ranks[1:])):
        values = [loss for steps in ranks if (loss := steps[step].loss) is not None]
        if len(values) == world_size:
            found.append((step, math.fsum(values) / world_size))
    return found


def thinned(losses: Sequence[tuple[int, float]]) -> list[list[float]]:
    """At most MAX_LOSSES of them, evenly spread, the first and the last among them."""
    if len(losses) <= MAX_LOSSES:
        return [list(entry) for entry in losses]
    places = sorted({round(index * (len(losses) - 1) / (MAX_LOSSES - 1)) for index in range(MAX_LOSSES)})
    return [list(losses[place]) for place in places]
