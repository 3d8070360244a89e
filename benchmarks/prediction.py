"""How far predictions of published series are off, and how often their intervals hold.

    python -m benchmarks.prediction [--series FILE ...] [--gpus-per-node 8]

A file is a JSON list of [document, name, [[GPUs, samples per second], ...]]. Each point of whole nodes, but for the first two of a series,
is predicted from those before it, at most four times as far. Printed by factor: predictions, series, documents; median and 90th percentile
of the error; how often an interval held that was made from the other documents of the file, and how often the one that tables show did.
The second says nothing of the series it is made of, which are those of benchmarks/series. Series without a prediction are counted, with the
reason. Exit code 2 for a file that is none.
"""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from base.sanitize import printable
from workflow.report.prediction import (
    ERRORS,
    FARTHEST,
    LEVEL,
    MIN_GROWTH,
    NODES,
    FactorErrors,
    Point,
    exchange_fit,
    growth,
    merged,
    why_no_model,
)

SERIES: Final = Path(__file__).with_name("series")
SHIPPED: Final = {"dlperf.json": 8, "deeplearningexamples-8.json": 8, "deeplearningexamples-16.json": 16}
"""File -> GPUs of a node: DLPerf, and NVIDIA's DeepLearningExamples at 729963dd."""
MAX_BYTES: Final = 256 << 10
MAX_POINTS: Final = 1000


class Trial(NamedTuple):
    """A prediction whose truth is known. `log_error`: logarithm of the predicted rate over the true one."""

    document: str
    series: int
    factor: float
    log_error: float
    growth: float

    @property
    def scaled(self) -> float:
        return abs(self.log_error) / (MIN_GROWTH + self.growth)


def points_of_series(values: Any, gpus_per_node: int) -> tuple[Point, ...] | str:
    """Return the merged points of whole nodes of a published series, [[GPUs, rate], ...], or why it has none."""
    try:
        pairs = msgspec.convert(values, list[tuple[float, float]])
    except msgspec.ValidationError:
        return "not pairs of numbers"
    if len(pairs) > MAX_POINTS:
        return f"more than {MAX_POINTS} points"
    points = []
    for gpus, rate in pairs:
        if not (0 < gpus <= NODES * gpus_per_node and 0 < rate < math.inf and gpus == int(gpus)):
            return "a number of GPUs, or a rate, that is none"
        if gpus % gpus_per_node == 0:
            points.append(Point(int(gpus) // gpus_per_node, rate))
    try:
        return merged(points) if points else f"no whole node of {gpus_per_node} GPUs"
    except ValueError as error:
        return str(error)


def trials_of(document: str, series: int, points: Sequence[Point]) -> list[Trial]:
    """Predict each point of a series, but for the first two, from those before any that FARTHEST allows."""
    trials = []
    for count in range(2, len(points)):
        known = points[:count]
        if why_no_model(known):
            continue
        model, largest = exchange_fit(known), known[-1].nodes
        for target in points[count:]:
            if target.nodes <= FARTHEST * largest:
                predicted = target.nodes / model.at(1 - 1 / target.nodes)
                error = math.log(predicted / target.rate)
                trials.append(Trial(document, series, target.nodes / largest, error, growth(model, largest, target.nodes)))
    return trials


def conformal_quantile(scores: Sequence[float], level: float) -> float:
    """Return what the next score does not exceed with probability `level`: the (n + 1) level-th smallest, at the most the largest."""
    return sorted(scores)[min(len(scores), math.ceil((len(scores) + 1) * level)) - 1]


def covered(trials: Sequence[Trial], level: float) -> tuple[float, int] | None:
    """Return the share of trials whose interval, made from the other documents, holds the truth, and their number; None without another."""
    held, count = 0, 0
    for document in {one.document for one in trials}:
        others = [one.scaled for one in trials if one.document != document]
        if others:
            limit = conformal_quantile(others, level)
            own = [one.scaled <= limit for one in trials if one.document == document]
            held, count = held + sum(own), count + len(own)
    return (held / count, count) if count else None


def by_factor(trials: Sequence[Trial]) -> dict[int, list[Trial]]:
    """Group trials by the least of the factors 2 and FARTHEST that they do not exceed; a factor without any is left out."""
    groups: dict[int, list[Trial]] = {2: [], FARTHEST: []}
    for one in trials:
        groups[2 if one.factor <= 2 else FARTHEST].append(one)
    return {factor: group for factor, group in groups.items() if group}


def relative_errors(trials: Sequence[Trial]) -> tuple[float, float]:
    """Return the median and the 90th percentile of the relative errors of the rate."""
    median, p90 = np.quantile([abs(math.expm1(one.log_error)) for one in trials], [0.5, 0.9])
    return float(median), float(p90)


def errors_of(trials: Sequence[Trial]) -> tuple[FactorErrors, ...]:
    """Return what ERRORS of the report is to be. Raises ValueError where a factor has fewer than two documents."""
    factors = []
    for factor, group in by_factor(trials).items():
        held = covered(group, LEVEL)
        if held is None:
            raise ValueError(f"x{factor}: one document says nothing about another")
        scaled = conformal_quantile([one.scaled for one in group], LEVEL)
        factors.append(FactorErrors(factor, round(scaled, 4), round(held[0], 3)))
    return tuple(factors)


def read_series(path: Path) -> list[Any]:
    """Read a file of series. Raises ValueError for what is none."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError(f"{path}: larger than {MAX_BYTES >> 10} KiB")
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: no JSON: {error}") from None
    if not isinstance(found, list):
        raise ValueError(f"{path}: no list of series, [document, name, [[GPUs, samples per second], ...]]")
    return found


def trials_of_file(series: list[Any], gpus_per_node: int, first: int = 0) -> tuple[list[Trial], Counter[str]]:
    """Return all trials of a file, and the reasons why series have none. `first`: the number of its first series."""
    trials: list[Trial] = []
    refused: Counter[str] = Counter()
    for number, entry in enumerate(series, first):
        if not isinstance(entry, list) or len(entry) != 3 or not isinstance(entry[0], str):
            refused["not [document, name, points]"] += 1
            continue
        points = points_of_series(entry[2], gpus_per_node)
        reason = points if isinstance(points, str) else why_no_model(points)
        found = [] if isinstance(points, str) or reason else trials_of(entry[0], number, points)
        if not found:
            refused[reason or "no third point within four times the nodes of the second, to compare with"] += 1
        trials += found
    return trials, refused


def shipped_trials() -> list[Trial]:
    """Return the trials of benchmarks/series, all documents of which have one name in all files."""
    trials: list[Trial] = []
    for number, (name, gpus_per_node) in enumerate(SHIPPED.items()):
        trials += trials_of_file(read_series(SERIES / name), gpus_per_node, first=number * 1_000_000)[0]
    return trials


def report(trials: list[Trial]) -> list[str]:
    """Return a line for each factor."""
    limits = {one.factor: one.scaled for one in ERRORS}
    lines = []
    for factor, group in by_factor(trials).items():
        median, p90 = relative_errors(group)
        held = covered(group, LEVEL)
        shown = sum(one.scaled <= limits[factor] for one in group) / len(group)
        of = f"{len({one.series for one in group})} series, {len({one.document for one in group})} documents"
        own = "no other document" if held is None else f"{held[0]:.1%} of {held[1]} held by the other documents"
        lines.append(
            f"x{factor}: {len(group)} predictions ({of}): error median {median:.1%}, p90 {p90:.1%}; nominal {LEVEL:.0%}: {own}, "
            f"{shown:.1%} by the interval of the tables"
        )
    return lines


def main() -> int:
    """Print the figures of each file; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=Path, action="append", help="default: those of benchmarks/series")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="of --series")
    options = parser.parse_args()
    if options.gpus_per_node < 1:
        parser.error("--gpus-per-node: at least 1")
    files = {path: options.gpus_per_node for path in options.series or ()} or {SERIES / name: size for name, size in SHIPPED.items()}
    every: list[Trial] = []
    for number, (path, gpus_per_node) in enumerate(files.items()):
        try:
            series = read_series(path)
        except (OSError, ValueError) as error:
            print(f"benchmarks.prediction: {printable(str(error))}", file=sys.stderr)
            return 2
        trials, refused = trials_of_file(series, gpus_per_node, first=number * 1_000_000)
        every += trials
        counts = f"{len({one.series for one in trials})} predicted, {sum(refused.values())} refused"
        print(f"{printable(str(path))}: {len(series)} series, nodes of {gpus_per_node} GPUs: {counts}")
        for reason, count in refused.most_common():
            print(f"  refused {count}: {printable(reason)}")
        for line in report(trials):
            print(f"  {line}")
    if len(files) > 1:
        print("together:")
        for line in report(every):
            print(f"  {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
