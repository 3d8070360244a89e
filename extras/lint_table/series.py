"""Find the series of a table: rows that differ in the number of GPUs, and the row that their speed-up is relative to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from extras.lint_table.columns import Column, Kind, Understood

SPLITTERS: Final = (Kind.HARDWARE, Kind.MICRO_BATCH, Kind.BATCH, Kind.RANK_BATCH, Kind.ACCUMULATION, Kind.GLOBAL_BATCH)
"""What tells series apart only where a number of GPUs occurs twice otherwise, tried in this order."""


@dataclass(frozen=True, kw_only=True)
class Series:
    """Rows of a table by ascending number of GPUs, which is `counts`; `base`: the row that the others are relative to."""

    rows: tuple[int, ...]
    counts: tuple[int, ...]
    base: int

    @property
    def others(self) -> tuple[int, ...]:
        return tuple(row for row in self.rows if row != self.base)

    def ratio(self, row: int) -> float:
        """Return how many times the GPUs of the base a row has."""
        return self._count_of[row] / self._count_of[self.base]

    @cached_property
    def _count_of(self) -> dict[int, int]:
        return dict(zip(self.rows, self.counts, strict=True))


def find_series(found: Understood, speedup: Column | None = None, variant: str | None = None) -> list[Series]:
    """Return the series of a table for numbers of one precision; at least two numbers of GPUs each.

    Where a column names the base row, it counts. Else rows belong together that are equal in all parameters; a batch tells them apart only
    where a number of GPUs occurs twice, and where nothing does, a series ends where the number does not grow. The base is the row of
    `speedup` that prints 1, else the one with the fewest GPUs.
    """
    rows = [row for row in range(len(found.table.rows)) if found.processes(row)]
    if pairs := _named_pairs(found, rows):
        return pairs
    keys = [column for column in found.of(Kind.PARAMETER)]
    groups = _grouped(rows, lambda row: tuple(found.text(row, column).lower() for column in keys))
    several = [series for group in groups for series in _split(found, group, variant)]
    return [_series(found, group, speedup, variant) for group in several if len({found.processes(row) for row in group}) > 1]


def _named_pairs(found: Understood, rows: Sequence[int]) -> list[Series]:
    names, partners = found.first(Kind.IDENTITY), found.first(Kind.PARTNER)
    if not names or not partners:
        return []
    by_name = {found.text(row, names): row for row in reversed(rows)}
    pairs = [(row, by_name.get(found.text(row, partners))) for row in rows]
    counts = {row: found.processes(row) or 0 for row in rows}
    return [
        Series(rows=(base, row), counts=(counts[base], counts[row]), base=base)
        for row, base in pairs
        if base is not None and found.text(row, names) != found.text(base, names) and counts[base] != counts[row]
    ]


def _grouped(rows: Iterable[int], key: Callable[[int], object]) -> list[list[int]]:
    groups: dict[object, list[int]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.values())


def _repeats(found: Understood, rows: Sequence[int]) -> bool:
    return len({found.processes(row) for row in rows}) < len(rows)


def _split(found: Understood, rows: list[int], variant: str | None) -> Iterator[list[int]]:
    groups = [rows]
    for kind in SPLITTERS:
        column = found.first(kind)
        if column and any(_repeats(found, group) for group in groups):
            text = kind == Kind.HARDWARE or variant is None
            key = (lambda row, at=column: found.text(row, at)) if text else (lambda row, at=kind: found.whole(row, at, variant))
            groups = [part for group in groups for part in (_grouped(group, key) if _repeats(found, group) else [group])]
    for group in groups:
        yield from _rising(found, group) if _repeats(found, group) else [group]


def _rising(found: Understood, rows: Sequence[int]) -> Iterator[list[int]]:
    part: list[int] = []
    for row in rows:
        if part and (found.processes(row) or 0) <= (found.processes(part[-1]) or 0):
            yield part
            part = []
        part.append(row)
    yield part


def _series(found: Understood, rows: Sequence[int], speedup: Column | None, variant: str | None) -> Series:
    counted = sorted((found.processes(row) or 0, row) for row in rows)
    ones = [row for _, row in counted if speedup and (one := speedup.number(row, variant)) and one.value == 1]
    return Series(rows=tuple(row for _, row in counted), counts=tuple(count for count, _ in counted), base=[*ones, counted[0][1]][0])
