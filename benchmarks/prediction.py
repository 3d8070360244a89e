"""How far predictions of published series are off, and how often their intervals hold.

    python -m benchmarks.prediction [--series FILE ...] [--gpus-per-node 8] [--write]

A file is a JSON list of [document, name, [[GPUs, samples per second], ...]]. Each point of whole nodes, but for the first two of a series,
is predicted from those before it, at most four times as far. Printed by factor: predictions, series, documents; median and 90th percentile
of the error; how often an interval held that was made from the other documents of the file, and how often the one that tables show did.
The second says nothing of the series it is made of, which are those of benchmarks/series. Series without a prediction are counted, with the
reason. `--write` makes workflow/report/prediction_errors.json anew, of benchmarks/series. Exit code 2 for a file that is none.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

from base.publish import publish
from base.sanitize import printable
from workflow.report.prediction import (
    ERRORS_FILE,
    LEVEL,
    Errors,
    Trial,
    by_factor,
    covered,
    errors_of,
    errors_text,
    points_of_series,
    published_errors,
    relative_errors,
    trials_of,
    why_no_model,
)

SERIES: Final = Path(__file__).with_name("series")
SHIPPED: Final = {"dlperf.json": 8, "deeplearningexamples-8.json": 8, "deeplearningexamples-16.json": 16}
"""File -> GPUs of a node."""
MADE_BY: Final = "python -m benchmarks.prediction --write: of DLPerf, and of NVIDIA's DeepLearningExamples at 729963dd (benchmarks/series)"
MOST_BYTES: Final = 64 << 20


def read_series(path: Path) -> list[Any]:
    """Read a file of series. Raises ValueError for what is none."""
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"{path}: larger than {MOST_BYTES >> 20} MiB")
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


def report(trials: list[Trial], errors: Errors) -> list[str]:
    """Return a line for each factor."""
    lines = []
    for factor, group in by_factor(trials).items():
        median, p90 = relative_errors(group)
        held = covered(group, LEVEL)
        known = errors.of(factor)
        shown = sum(one.scaled <= known.scaled for one in group) / len(group) if known else None
        of = f"{len({one.series for one in group})} series, {len({one.document for one in group})} documents"
        own = "no other document" if held is None else f"{held[0]:.1%} of {held[1]} held by the other documents"
        lines.append(
            f"x{factor}: {len(group)} predictions ({of}): error median {median:.1%}, p90 {p90:.1%}; nominal {LEVEL:.0%}: {own}"
            + ("" if shown is None else f", {shown:.1%} by the interval of the tables")
        )
    return lines


def main() -> int:
    """Print the figures of each file; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=Path, action="append", help="default: those of benchmarks/series")
    parser.add_argument("--gpus-per-node", type=int, default=8, help="of --series")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    if options.gpus_per_node < 1:
        parser.error("--gpus-per-node: at least 1")
    if options.write:
        publish(ERRORS_FILE, errors_text(errors_of(shipped_trials(), MADE_BY)).encode())
        published_errors.cache_clear()
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
        for line in report(trials, published_errors()):
            print(f"  {line}")
    if len(files) > 1:
        print("together:")
        for line in report(every, published_errors()):
            print(f"  {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
