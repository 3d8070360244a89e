"""Compare imported results by the same numbers as Slipway's own: geometric means, intervals over runs, speed-up, efficiency."""

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from msgspec import structs

from base.humanize import some
from extras.imported.results import Result
from workflow.report.cells import Estimate, LogSample, geometric_mean, log_sample, ratio
from workflow.report.table_type import NONE, Column, Reason, Table, estimate_text, numbers, percent, value_of, words

SIZES: Final = ("nodes", "processes", "batch_size", "global_batch_size")
NOT_KNOWN: Final = Reason("not known")
CAPTION: Final = (
    "Results of other tools, as their files tell them: no window, steps or marks stand behind them, and how they came about is not known. "
    "Several results of the same keys and size are its runs: geometric mean, 95 % confidence interval from three on. Speed-up: against the "
    "fewest processes (nodes, where processes are not known) of the same keys, hardware and metric; weak: with the same batch per process, "
    "strong: with the same global batch; same parameters: no batch is told, and all parameters that are told are the same."
)


@dataclass(frozen=True, kw_only=True)
class Imported:
    """All results of the same keys and size: one row. `base` is the row it is compared with, which may be the same."""

    result: Result
    sources: tuple[str, ...]
    sample: LogSample
    base: "Imported | None" = None

    @property
    def count(self) -> int | None:
        return self.result.processes or self.result.nodes

    @property
    def value(self) -> Estimate:
        """Return the mean of the results; of one that number, without the rounding of its logarithm."""
        found = geometric_mean(self.sample)
        return found if self.sample.n > 1 else structs.replace(found, value=self.result.value)

    def scaling(self) -> str | Reason:
        """Return weak, strong or baseline; a reason where the batches do not tell."""
        if self.base is None:
            return NOT_KNOWN
        own, base = self.result, self.base.result
        if own is base:
            return "baseline"
        if own.global_batch_size and own.global_batch_size == base.global_batch_size:
            return "strong"
        if own.batch_size or own.global_batch_size:
            return "weak" if own.batch_size and own.batch_size == base.batch_size else NOT_KNOWN
        return "same parameters"

    def speedup(self) -> Estimate | None:
        """Return how many times as fast it is as its base; None for a base, where nothing tells that the work is comparable, and for a time
        of work that may have grown with the processes."""
        scaling = self.scaling()
        if self.base is None or scaling in ("baseline", NOT_KNOWN) or (scaling == "weak" and not self.result.rises):
            return None
        return ratio(self.sample, self.base.sample) if self.result.rises else ratio(self.base.sample, self.sample)

    def efficiency(self) -> Estimate | None:
        found = self.speedup()
        return found.scaled(self.base.count / self.count) if found and self.base and self.base.count and self.count else None


def rows_of(results: Sequence[Result]) -> list[Imported]:
    """Return a row for each point, in the order of the results."""
    points: dict[tuple[object, ...], list[Result]] = defaultdict(list)
    for one in results:
        points[*_series(one), *(getattr(one, size) for size in SIZES)].append(one)
    series: dict[tuple[object, ...], list[Imported]] = defaultdict(list)
    rows = [_row(found) for found in points.values()]
    for row in rows:
        series[_series(row.result)].append(row)
    return [_with_base(row, series[_series(row.result)]) for row in rows]


def _series(result: Result) -> tuple[object, ...]:
    return result.tool, result.keys, result.hardware, result.metric, result.unit, result.processes is None


def _row(results: Sequence[Result]) -> Imported:
    first = results[0]
    batch, whole, count = first.batch_size, first.global_batch_size, first.processes
    batch_size = batch or (whole // count if whole and count and whole % count == 0 else None)
    global_batch_size = whole or (batch * count if batch and count else None)
    return Imported(
        result=replace(first, batch_size=batch_size, global_batch_size=global_batch_size),
        sources=tuple(dict.fromkeys(one.source for one in results)),
        sample=log_sample([one.value for one in results]),
    )


def _with_base(row: Imported, series: Sequence[Imported]) -> Imported:
    """Return the row with its base: the fewest processes of those with the same global batch or batch per process, if it is not alone."""
    if row.result.rises is None or row.count is None or len({one.count for one in series}) < 2:
        return row
    has_batches = any(one.result.batch_size or one.result.global_batch_size for one in series)
    alike = [one for one in series if one is not row and (not has_batches or _comparable(one.result, row.result))]
    return replace(row, base=min((row, *alike), key=lambda one: one.count or math.inf)) if alike else row


def _comparable(one: Result, other: Result) -> bool:
    """Return True if the batch per process or the global one is told and the same."""
    pairs = ((one.batch_size, other.batch_size), (one.global_batch_size, other.global_batch_size))
    return any(own is not None and own == base for own, base in pairs)


def imported_table(rows: Sequence[Imported]) -> Table:
    """Build the table of imported results; programs read its CSV, in the units that the files have."""

    def column(key: str, title: str, number: bool = True) -> Column:
        values = (getattr(row.result, key) for row in rows)
        return words(key, title, [NOT_KNOWN if value is None else value for value in values], number=number)

    tools: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for row in rows:
        tools[row.result.tool].update(row.result.keys)
    several = {tool: {name for name, times in Counter(name for name, _ in keys).items() if times > 1} for tool, keys in tools.items()}
    return Table(
        name="imported",
        title="Results of other tools",
        caption=CAPTION,
        columns=(
            words("source", "Source", [some(row.sources, 1) for row in rows]),
            column("tool", "Tool", number=False),
            words("keys", "Keys", [_key_words(row.result.keys, several[row.result.tool]) for row in rows]),
            column("hardware", "Hardware", number=False),
            *(column(key, title) for key, title in zip(SIZES, ("Nodes", "Processes", "Batch", "Global batch"), strict=True)),
            column("metric", "Metric", number=False),
            column("unit", "Unit", number=False),
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
