"""Compare imported results by the same numbers as Slipway's own: geometric means, intervals over runs, speed-up, efficiency."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from extras.imported.results import Result
from workflow.report.cells import Estimate, LogSample, geometric_mean, ratio
from workflow.report.table import NONE, Reason, Table, estimate_text, numbers, percent, value_of, words

NOT_KNOWN: Final = Reason("not known")
CAPTION: Final = (
    "Results of other tools, as their files tell them: no window, steps or marks stand behind them, and how they came about is not known. "
    "Several results of the same keys and size are its runs: geometric mean, 95 % confidence interval from three on. Speed-up: against the "
    "fewest processes (nodes, where processes are not known) of the same keys, hardware and metric; weak: with the same batch per process, "
    "strong: with the same global batch; same parameters: no batch is told, and all parameters that are told are the same."
)
Size = tuple[int | None, int | None, int | None, int | None]


@dataclass(frozen=True, kw_only=True)
class Imported:
    """All results of the same keys and size: one row. `base` is the row it is compared with, which may be the same."""

    result: Result
    sources: tuple[str, ...]
    sample: LogSample
    batch_size: int | None
    global_batch_size: int | None
    base: Imported | None = None

    @property
    def count(self) -> int | None:
        return self.result.processes or self.result.nodes

    @property
    def value(self) -> Estimate:
        """Return the mean of the results; of one that number, without the rounding of its logarithm."""
        found = geometric_mean(self.sample)
        return found if self.sample.n > 1 else structs.replace(found, value=self.result.value)

    @property
    def is_base(self) -> bool:
        return self.base is not None and self.base.sources == self.sources and self.base.count == self.count

    def scaling(self) -> str | Reason:
        """Return weak, strong or baseline; a reason where the batches do not tell."""
        if self.base is None:
            return NOT_KNOWN
        if self.is_base:
            return "baseline"
        if self.global_batch_size and self.global_batch_size == self.base.global_batch_size:
            return "strong"
        if self.batch_size or self.global_batch_size:
            return "weak" if self.batch_size and self.batch_size == self.base.batch_size else NOT_KNOWN
        return "same parameters"

    def speedup(self) -> Estimate | None:
        """Return how many times as fast it is as its base; None for a base, and where nothing tells that
        the work is comparable."""
        if self.base is None or self.is_base or self.scaling() is NOT_KNOWN:
            return None
        if not self.result.rises and self.scaling() == "weak":
            return None  # a time of work that may have grown with the processes
        return ratio(self.sample, self.base.sample) if self.result.rises else ratio(self.base.sample, self.sample)

    def efficiency(self) -> Estimate | None:
        found = self.speedup()
        return found.scaled(self.base.count / self.count) if found and self.base and self.base.count and self.count else None


def rows_of(results: Sequence[Result]) -> list[Imported]:
    """Return a row for each point, in the order of the results."""
    points: dict[tuple[object, ...], list[Result]] = defaultdict(list)
    for one in results:
        points[*_series(one), *_size(one)].append(one)
    rows = [_row(found) for found in points.values()]
    series: dict[tuple[object, ...], list[Imported]] = defaultdict(list)
    for row in rows:
        series[_series(row.result)].append(row)
    return [_with_base(row, series[_series(row.result)]) for row in rows]


def _series(result: Result) -> tuple[object, ...]:
    return result.tool, result.keys, result.hardware, result.metric, result.unit, result.processes is None


def _size(result: Result) -> Size:
    return result.nodes, result.processes, result.batch_size, result.global_batch_size


def _row(results: Sequence[Result]) -> Imported:
    logs = [math.log(one.value) for one in results]
    mean = math.fsum(logs) / len(logs)
    variance = math.fsum((log - mean) ** 2 for log in logs) / (len(logs) - 1) if len(logs) > 1 else 0.0
    first = results[0]
    batch, whole, count = first.batch_size, first.global_batch_size, first.processes
    return Imported(
        result=first,
        sources=tuple(dict.fromkeys(one.source for one in results)),
        sample=LogSample(n=len(logs), mean=mean, variance=variance),
        batch_size=batch or (whole // count if whole and count and whole % count == 0 else None),
        global_batch_size=whole or (batch * count if batch and count else None),
    )


def _with_base(row: Imported, series: Sequence[Imported]) -> Imported:
    """Return the row with its base: the fewest processes of those with the same global batch or batch per process, if it is not alone."""
    if row.result.rises is None or row.count is None or len({one.count for one in series}) < 2:
        return row
    told = any(one.batch_size or one.global_batch_size for one in series)
    alike = [
        one for one in series if not told or _same(one.global_batch_size, row.global_batch_size) or _same(one.batch_size, row.batch_size)
    ]
    return replace(row, base=min((row, *alike), key=lambda one: one.count or math.inf)) if len(alike) > 1 else row


def _same(one: int | None, other: int | None) -> bool:
    return one is not None and one == other


def imported_table(rows: Sequence[Imported]) -> Table:
    """Build the table of imported results; programs read its CSV, in the units that the files have."""

    def known(values: Sequence[object]) -> list[object]:
        return [NOT_KNOWN if value is None else value for value in values]

    tools: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for row in rows:
        tools[row.result.tool].update(row.result.keys)
    several = {tool: {name for name, times in Counter(name for name, _ in keys).items() if times > 1} for tool, keys in tools.items()}
    return Table(
        name="imported",
        title="Results of other tools",
        caption=CAPTION,
        columns=(
            words(
                "source", "Source", [row.sources[0] + (f" and {len(row.sources) - 1} more" if len(row.sources) > 1 else "") for row in rows]
            ),
            words("tool", "Tool", [row.result.tool for row in rows]),
            words("keys", "Keys", [_key_words(row.result.keys, several[row.result.tool]) for row in rows]),
            words("hardware", "Hardware", known([row.result.hardware for row in rows])),
            *[
                words(key, title, known([getattr(row, key, None) or getattr(row.result, key) for row in rows]), number=True)
                for key, title in (
                    ("nodes", "Nodes"),
                    ("processes", "Processes"),
                    ("batch_size", "Batch"),
                    ("global_batch_size", "Global batch"),
                )
            ],
            words("metric", "Metric", [row.result.metric for row in rows]),
            words("unit", "Unit", [row.result.unit for row in rows]),
            words("runs", "Runs", [row.sample.n for row in rows], number=True),
            numbers("value", "Value", estimate_text, [row.value for row in rows], raw=value_of),
            words("scaling", "Scaling", [row.scaling() for row in rows]),
            numbers("speedup", "Speed-up", estimate_text, [row.speedup() for row in rows], raw=value_of),
            numbers("efficiency", "Efficiency", _percent, [row.efficiency() for row in rows], raw=value_of),
        ),
    )


def _key_words(keys: Sequence[tuple[str, str]], several: Collection[str]) -> str:
    """Return the first key, and those that tell the results of a tool apart."""
    return ", ".join(f"{name}={one}" for at, (name, one) in enumerate(keys) if at == 0 or name in several)


def _percent(found: Estimate | None) -> str:
    return NONE if found is None else percent(found.value)
