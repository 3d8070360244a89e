"""Find the series of a table, and what its columns of speed-ups, efficiencies or ratios are relative to: what most rows agree with."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise, permutations, product
from typing import Final

from extras.lint_table.columns import Column, Kind, Understood, rounded
from extras.lint_table.numbers import Interval

DURATIONS: Final = (Kind.TOTAL_TIME, Kind.EPOCH_TIME, Kind.STEP_TIME)
_MEASURES: Final = (Kind.THROUGHPUT, Kind.GPU_THROUGHPUT, *DURATIONS)
LABEL: Final = re.compile(r"\b(weak|strong)(?:ly)?[\s_-]+scal|\bscal\w*[\s(:,-]+(weak|strong)\b", re.IGNORECASE)
SPLITTERS: Final = (Kind.HARDWARE, Kind.MICRO_BATCH, Kind.BATCH, Kind.RANK_BATCH, Kind.ACCUMULATION, Kind.GLOBAL_BATCH)
"""What tells series apart only where a number of GPUs occurs twice otherwise, tried in this order."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Rows of a table. `counts`: the number of GPUs of each, ascending; `base`: the row that the others are relative to."""

    counts: Mapping[int, int]
    base: int

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(self.counts)

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(row for row in self.counts if row != self.base)

    def ratio(self, row: int) -> float:
        """Return how many times the GPUs of the base a row has."""
        return self.counts[row] / self.counts[self.base]


def find_series(found: Understood, speedup: Column | None = None, variant: str | None = None) -> list[Series]:
    """Return the series of a table for numbers of one precision; at least two numbers of GPUs each.

    Where a column names the base row, it counts. Else rows belong together that are equal in all parameters; a batch tells them apart only
    where a number of GPUs occurs twice, and where nothing does, a series ends where the number does not grow. The base is the row of
    `speedup` that prints 1, else the one with the fewest GPUs.
    """
    rows = [row for row in range(len(found.table.rows)) if found.processes(row)]
    if pairs := _named_pairs(found, rows):
        return pairs
    keys = found.of(Kind.PARAMETER)
    groups = _grouped(rows, lambda row: tuple(found.text(row, column).lower() for column in keys))
    several = [series for group in groups for series in _split(found, group)]
    return [_series(found, group, speedup, variant) for group in several if len({found.processes(row) for row in group}) > 1]


def _named_pairs(found: Understood, rows: Sequence[int]) -> list[Series]:
    names, partners = found.first(Kind.IDENTITY), found.first(Kind.PARTNER)
    if not names or not partners:
        return []
    by_name = {found.text(row, names): row for row in reversed(rows)}
    pairs = [(row, by_name.get(found.text(row, partners))) for row in rows]
    counts = {row: found.processes(row) or 0 for row in rows}
    return [
        Series(counts={base: counts[base], row: counts[row]}, base=base)
        for row, base in pairs
        if base is not None and base != row and counts[base] != counts[row]
    ]


def _grouped(rows: Iterable[int], key: Callable[[int], object]) -> list[list[int]]:
    groups: dict[object, list[int]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def _repeats(found: Understood, rows: Sequence[int]) -> bool:
    return len({found.processes(row) for row in rows}) < len(rows)


def _split(found: Understood, rows: list[int]) -> Iterator[list[int]]:
    if not _repeats(found, rows):
        yield rows
        return
    for column in [column for kind in SPLITTERS for column in found.of(kind)[:1]]:
        parts = _grouped(rows, partial(found.text, column=column))
        if len(parts) > 1:
            for part in parts:
                yield from _split(found, part)
            return
    starts = [at for at in range(1, len(rows)) if (found.processes(rows[at]) or 0) <= (found.processes(rows[at - 1]) or 0)]
    for start, end in pairwise([0, *starts, len(rows)]):
        yield rows[start:end]


def _series(found: Understood, rows: Sequence[int], speedup: Column | None, variant: str | None) -> Series:
    counted = sorted((found.processes(row) or 0, row) for row in rows)
    ones = [row for _, row in counted if speedup and (one := speedup.number(row, variant)) and one.value == 1]
    return Series(counts={row: count for count, row in counted}, base=[*ones, counted[0][1]][0])


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """What a column of speed-up, efficiency or ratio is taken to be: `measure` over that of the base row (`other` is None), or over the
    column `other` of the same row. `per_gpu`: divided by the ratio of the GPUs. `scale`: 100 for percent. `from_one`: the base is 1,
    whatever its row prints."""

    column: Column
    measure: Column
    other: Column | None = None
    per_gpu: bool = False
    scale: float = 1.0
    from_one: bool = True
    work: Mapping[int, float] = field(default_factory=dict)
    """Row -> its work over that of its base row, where a time is of work that grows with the GPUs."""
    series: tuple[Series, ...] = ()
    holds: frozenset[int] = frozenset()
    fails: frozenset[int] = frozenset()

    @property
    def variant(self) -> str | None:
        return self.measure.variant

    def expected(self, row: int, series: Series | None = None, base: int | None = None) -> Interval | None:
        """Return between what bounds the value of a row is; None where a number for it is missing."""
        own = rounded(self.measure, row, self.variant)
        if self.other:
            reference = rounded(self.other, row, self.other.variant)
        else:
            reference = rounded(self.measure, base if base is not None else series.base if series else row, self.variant)
        if not own or not reference:
            return None
        ratio = reference.over(own) if self.measure.kind in DURATIONS else own.over(reference)
        if not ratio or not series or self.other:
            return ratio and ratio.scaled(self.scale)
        factor = self.scale * self.work.get(row, 1.0)
        if self.per_gpu != (self.measure.kind == Kind.GPU_THROUGHPUT):
            factor *= 1 / series.ratio(row) if self.per_gpu else series.ratio(row)
        printed = self.column.number(series.base, self.variant)
        if not self.from_one and printed:
            ratio = ratio.times(printed.rounded.scaled(1 / self.scale))
        return ratio.scaled(factor)


def meanings(found: Understood) -> list[Meaning]:
    """Return for each column of speed-up, efficiency or ratio the meaning that most of its rows agree with, if there is one."""
    candidates = {column.index: list(_candidates(found, column)) for column in found.of(Kind.SPEEDUP, Kind.EFFICIENCY)}
    return [best for column in candidates.values() if (best := _best(column))]


def _candidates(found: Understood, column: Column) -> Iterator[Meaning]:
    measures = sorted(found.of(*_MEASURES), key=lambda one: _distance(column, one))
    fitting = [one for one in measures if not column.variant or one.variant in (None, column.variant)] or measures
    percent = column.unit == "%" or any(cell and cell[0].value > 5 for cell in column.cells if column.kind == Kind.EFFICIENCY)
    for measure in fitting if len(set(column.variants)) < 2 else ():
        series = tuple(find_series(found, column, measure.variant))
        for per_gpu in (True,) if column.kind == Kind.EFFICIENCY else (False, True):
            scale = 100.0 if percent and per_gpu else 1.0
            bases = [column.number(one.base, measure.variant) for one in series]
            from_ones = (True,) if all(one and one.value == scale for one in bases) else (True, False)
            for work, from_one in product(_works(found, measure, series), from_ones) if series else ():
                meaning = Meaning(column=column, measure=measure, per_gpu=per_gpu, scale=scale, from_one=from_one, work=work, series=series)
                yield _judged(meaning)
    for one, other in permutations(measures, 2):
        if column.kind == Kind.SPEEDUP and one.kind == other.kind and one.variant != other.variant:
            yield _judged(Meaning(column=column, measure=one, other=other, scale=100.0 if column.unit == "%" else 1.0))


def _works(found: Understood, measure: Column, series: Sequence[Series]) -> list[dict[int, float]]:
    """Return what a time may be of: the same work in all rows (no ratios), work in proportion to the global batch, or to the GPUs."""
    same: dict[int, float] = {}
    if measure.kind not in (Kind.STEP_TIME, Kind.TOTAL_TIME):
        return [same]
    batches = {row: found.global_batch(row, measure.variant) for one in series for row in one.rows}
    grows = {row: one.ratio(row) for one in series for row in one.others}
    if all(batches.values()):
        grows = {row: (batches[row] or 1) / (batches[one.base] or 1) for one in series for row in one.others}
    return [grows, same] if measure.kind == Kind.STEP_TIME else [same, grows]


def _distance(column: Column, measure: Column) -> tuple[int, int, int]:
    """Order measures by how likely a column is about them: the kind that its head names, the same precision, the nearest to its left."""
    title = column.title.lower()
    named = "time" in title if measure.kind in DURATIONS else "time" not in title
    away = column.index - measure.index
    return (not named, column.variant != measure.variant, away if away > 0 else 100 - away)


def _judged(meaning: Meaning) -> Meaning:
    """Return the meaning with the rows that agree with it and those that do not; a base row agrees with anything."""
    holds: set[int] = set()
    fails: set[int] = set()
    checked: list[tuple[int, Series | None]] = [(row, series) for series in meaning.series for row in series.others]
    if meaning.other:
        checked = [(row, None) for row in range(len(meaning.column.cells))]
    for row, series in checked:
        printed = meaning.column.number(row, meaning.variant)
        expected = meaning.expected(row, series)
        if printed and expected:
            (holds if printed.rounded_or_cut.meets(expected) else fails).add(row)
    return replace(meaning, holds=frozenset(holds), fails=frozenset(fails))


def _best(candidates: Sequence[Meaning]) -> Meaning | None:
    """Return the first of the meanings that most rows agree with, if at least as many agree as not; else one by its base rows: they print
    1 or their number of GPUs, or nothing where the head says weak or strong scaling."""
    if not candidates:
        return None
    best = max(candidates, key=lambda one: (len(one.holds), -len(one.fails)))
    if best.holds and len(best.holds) >= len(best.fails):
        return best
    first = candidates[0]
    if not first.series or len(set(first.column.variants)) > 1:
        return None
    alike = [one for one in candidates if one.measure is first.measure and one.per_gpu == first.per_gpu and not one.other]
    nearest = min(alike, key=_distance_of_values)
    bases = [(first.column.number(series.base, first.variant), series.counts[series.rows[0]]) for series in first.series]
    is_scaling = bool(LABEL.search(first.column.title))
    starts = all(one.value in (1, first.scale, count) if one else is_scaling for one, count in bases)
    return nearest if starts and nearest.fails else None


def _distance_of_values(meaning: Meaning) -> float:
    """Return how far the printed values are from those that the meaning gives, as the sum of the logarithms of their ratios."""
    far = 0.0
    for series in meaning.series:
        for row in series.others:
            printed, expected = meaning.column.number(row, meaning.variant), meaning.expected(row, series)
            if printed and expected and printed.value > 0 and expected.middle > 0:
                far += abs(math.log(printed.value / expected.middle))
    return far
