"""From events to numbers. Pure: the rules of the tables, in closed form, so that each can be checked by hand.

The step time is the slowest rank's, since nobody goes on before it; only the measured window counts; the rate is the global batch over
the median step. A number that cannot be had is None.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from base.foreign import number
from workflow.run.events import RankEvents, Step

MAX_LOSSES = 200


def performance(events: Mapping[int, RankEvents], world_size: int, global_batch: int) -> dict[str, Any] | None:
    """The record's `performance`; None unless every rank has measured steps in common."""
    ranks = [events[rank].steps for rank in range(world_size) if rank in events]
    if len(ranks) < world_size:
        return None
    common = sorted(set(ranks[0]).intersection(*ranks[1:]))
    measured = [step for step in common if all(steps[step].measured for steps in ranks)]
    if not measured:
        return None
    slowest = [max(steps[step].seconds for steps in ranks) for step in measured]
    summary = summarise(slowest)
    rate = global_batch / summary["p50"] if summary["p50"] else None
    inputs = [seconds for steps in ranks for step in measured if (seconds := steps[step].input_s) is not None]
    return {
        "num_measured_steps": len(measured),
        "num_warmup_steps": sum(1 for step in common if step < measured[0]),
        "step_s": summary,
        "input_wait_s_mean": math.fsum(inputs) / len(inputs) if inputs else None,
        "first_step_s": max(steps[0].seconds for steps in ranks) if common[0] == 0 else None,
        "window_s": max(_window(steps, measured) for steps in ranks),
        "window_steps_ratio": _window_steps([events[rank].stop for rank in range(world_size)]),
        "samples_per_s": rate,
        "samples_per_s_per_gpu": None if rate is None else rate / world_size,
        "rank_skew_p95_ratio": _skew(ranks, measured),
        "straggler_rank": _straggler(ranks, measured),
        "drift_ratio": _drift(slowest),
    }


def summarise(values: Sequence[float]) -> dict[str, Any]:
    """Order statistics of at least one value. Percentiles interpolate linearly; `stdev` is the sample's, `mad` the median distance."""
    ordered = sorted(values)
    middle = quantile(ordered, 0.5)
    mean = math.fsum(ordered) / len(ordered)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / (len(ordered) - 1)) if len(ordered) > 1 else None
    return {
        "n": len(ordered),
        "p50": middle,
        "p90": quantile(ordered, 0.9),
        "p95": quantile(ordered, 0.95),
        "p99": quantile(ordered, 0.99),
        "mean": mean,
        "stdev": spread,
        "mad": quantile(sorted(abs(value - middle) for value in ordered), 0.5),
        "min": ordered[0],
        "max": ordered[-1],
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """The quantile of sorted values, linear between neighbours."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(values: Sequence[float]) -> float:
    """The middle of at least one value."""
    return quantile(sorted(values), 0.5)


def _window(steps: Mapping[int, Step], measured: Sequence[int]) -> float:
    """Seconds from the beginning of the first to the end of the last measured step, by the rank's clock; their sum if it gave none."""
    first, last = steps[measured[0]], steps[measured[-1]]
    if first.end_ns is None or last.end_ns is None:
        return math.fsum(steps[step].seconds for step in measured)
    return (last.end_ns - first.end_ns) / 1e9 + first.seconds


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


def _skew(ranks: Sequence[Mapping[int, Step]], measured: Sequence[int]) -> float | None:
    """95th percentile over steps of slowest rank / median rank; None for one rank."""
    if len(ranks) < 2:
        return None
    ratios = []
    for step in measured:
        seconds = sorted(steps[step].seconds for steps in ranks)
        middle = quantile(seconds, 0.5)
        if middle > 0:
            ratios.append(seconds[-1] / middle)
    return quantile(sorted(ratios), 0.95) if ratios else None


def _straggler(ranks: Sequence[Mapping[int, Step]], measured: Sequence[int]) -> int | None:
    """The rank that was slowest most often; None for one rank."""
    if len(ranks) < 2:
        return None
    slowest = Counter(max(range(len(ranks)), key=lambda rank: ranks[rank][step].seconds) for step in measured)
    return min(slowest, key=lambda rank: (-slowest[rank], rank))


def _drift(seconds: Sequence[float]) -> float | None:
    """Median of the second half of the window / median of the first; None for fewer than two steps."""
    half = len(seconds) // 2
    first = median(seconds[:half]) if half else 0.0
    return median(seconds[half:]) / first if first else None


def training(events: Mapping[int, RankEvents], world_size: int) -> dict[str, Any] | None:
    """The record's `training`; None unless rank 0 has started. Losses are means over the ranks that wrote the step."""
    head = events.get(0)
    if head is None or head.start is None:
        return None
    losses = mean_losses(events, world_size)
    stops = [rank.stop for rank in events.values() if rank.stop is not None]
    stop = head.stop or {}
    evaluation = head.evals[-1] if head.evals else None
    parameters = head.start.get("parameters")
    return {
        "final_loss": losses[-1][1] if losses else None,
        "first_loss": losses[0][1] if losses else None,
        "losses": thinned(losses),
        "eval": evaluation and {**{key: number(evaluation.get(key)) for key in ("loss", "accuracy")}, **_counts(evaluation)},
        "parameters": parameters if isinstance(parameters, int) else None,
        "parameter_norm": number(stop.get("norm")),
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
    if len(ranks) < world_size:
        return []
    found = []
    for step in sorted(set(ranks[0]).intersection(*ranks[1:])):
        values = [loss for steps in ranks if (loss := steps[step].loss) is not None]
        if len(values) == world_size:
            found.append((step, math.fsum(values) / world_size))
    return found


def thinned(losses: Sequence[tuple[int, float]], most: int = MAX_LOSSES) -> list[list[float]]:
    """At most `most` of them, evenly spread, the first and the last among them."""
    if len(losses) <= most:
        return [list(entry) for entry in losses]
    places = sorted({round(index * (len(losses) - 1) / (most - 1)) for index in range(most)})
    return [list(losses[place]) for place in places]
