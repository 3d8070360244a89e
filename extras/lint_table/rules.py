"""Check the numbers of a table against each other, a function for each rule. All bounds are those of printed digits."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from math import ceil, log10, prod
from typing import Final

from extras.lint_table.columns import Column, Kind, Understood, head_words
from extras.lint_table.numbers import Interval
from extras.lint_table.relations import DURATIONS, LABEL, Meaning, Series, find_series

MAX_EFFICIENCY: Final = 1.03
MAX_RISE: Final = 0.03
SAME_BATCH: Final = 0.01
"""Global batches that differ less are rounded to whole accumulation steps."""
_BATCHES: Final = (Kind.MICRO_BATCH, Kind.ACCUMULATION, Kind.RANK_BATCH, Kind.GLOBAL_BATCH)
_BATCH_WORDS: Final = re.compile(r"batch|\b[mg]?bsz?\b|bsz|\bbs ?=|\bb\d{2,}\b", re.IGNORECASE)
_PROCESSES: Final = re.compile(r"process|proc|rank|worker|^n?p$")
_BATCH_NUMBER: Final = re.compile(r"batch\D{0,30}\d", re.IGNORECASE)


class Rule(StrEnum):
    """The rules, by the names that `--ignore` takes."""

    SPEEDUP = "speed-up"
    EFFICIENCY = "efficiency"
    RATIO = "ratio"
    BASE_ROW = "base-row"
    LABEL = "label"
    BATCH = "batch"
    MISSING_BATCH = "missing-batch"
    INTEGERS = "integers"
    SUPERLINEAR = "superlinear"
    RISING = "rising"
    MIXED = "mixed"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something in a table that does not hold. `table`: the line of its head; `right`: the value that would hold, in the unit of the
    column, or empty."""

    rule: Rule
    path: str
    table: int
    line: int
    column: str
    printed: str
    right: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.reason}"


def check_table(found: Understood, understood: Sequence[Meaning]) -> list[Finding]:
    """Return all that does not hold in a table, by lines; `understood`: the meanings of its columns."""
    findings = [
        *(one for meaning in understood for one in _ratios(found, meaning)),
        *_bases(found, understood),
        *_labels(found, understood),
        *_missing_batch(found, understood),
        *_integers(found),
        *_curves(found, understood),
        *_mixed(found, understood),
    ]
    return sorted(dict.fromkeys(findings), key=lambda one: (one.line, one.rule, one.column))


def _finding(found: Understood, rule: Rule, row: int | None, column: Column, right: str, reason: str) -> Finding:
    """Return a finding in a row; None: in the head."""
    return Finding(
        rule=rule,
        path=found.table.path,
        table=found.table.line,
        line=found.table.line if row is None else found.line(row),
        column=column.title,
        printed=column.title if row is None else found.text(row, column),
        right=right,
        reason=reason,
    )


def shown(value: float, step: float = 0.0) -> str:
    """Return a number with the digits of the one beside it (`step`: one unit of its last digit), or four significant ones."""
    return f"{value:.{max(0, ceil(-log10(step)))}f}" if step else f"{value:.4g}"


def _ratios(found: Understood, meaning: Meaning) -> Iterator[Finding]:
    """Yield the rows whose speed-up, efficiency or ratio does not follow from their columns."""
    column, variant = meaning.column, meaning.variant
    rule = Rule.RATIO if meaning.other else Rule.EFFICIENCY if column.kind == Kind.EFFICIENCY else Rule.SPEEDUP
    where = {row: series for series in meaning.series for row in series.rows}
    for row in sorted(meaning.fails):
        series = where.get(row)
        printed, expected = column.number(row, variant), meaning.expected(row, series)
        if not printed or not expected:
            continue
        right = shown(expected.middle, printed.step)
        reason = f"{column.title!r} prints {found.text(row, column)}, "
        other = _other_base(found, meaning, row, series) if series else None
        if series and other is not None:
            used, own = (f"line {found.line(one)} (batch {found.batch_words(one, variant)})" for one in (other, series.base))
            reason += f"which is relative to {used}, not to {own}: {right}"
        else:
            gpus = f", over {series.ratio(row):g} times the GPUs," if series and meaning.per_gpu else ""
            reason += f"and {_quotient(found, meaning, row, series.base if series else row)}{gpus} is {right}"
        yield _finding(found, rule if other is None else Rule.BASE_ROW, row, column, right, reason)
    for series in meaning.series:
        printed = column.number(series.base, variant)
        one = Interval(meaning.scale, meaning.scale)
        if printed and meaning.from_one and set(series.others) & meaning.holds and not printed.rounded_or_cut.meets(one):
            right = shown(meaning.scale, printed.step)
            reason = f"{column.title!r} prints {found.text(series.base, column)} in the base row, and the other rows follow from {right}"
            yield _finding(found, rule, series.base, column, right, reason)


def _quotient(found: Understood, meaning: Meaning, row: int, base: int) -> str:
    own = found.text(row, meaning.measure)
    reference = found.text(base, meaning.other or meaning.measure)
    return f"{reference} / {own}" if meaning.measure.kind in DURATIONS else f"{own} / {reference}"


def _other_base(found: Understood, meaning: Meaning, row: int, series: Series) -> int | None:
    """Return the row of another batch, on as many GPUs as the base row, that the printed value is relative to."""
    printed = meaning.column.number(row, meaning.variant)
    for other in _rows(found):
        if other in series.rows or found.processes(other) != series.counts[series.rows[0]]:
            continue
        expected = meaning.expected(row, series, base=other)
        if expected and printed and printed.rounded_or_cut.meets(expected):
            return other
    return None


def _claimed(understood: Sequence[Meaning]) -> list[tuple[Series, Meaning]]:
    """Return the series that the table states a speed-up or an efficiency of."""
    return [(series, meaning) for meaning in understood if not meaning.other for series in meaning.series]


def design_of(found: Understood, variant: str | None, rows: Sequence[int]) -> str | None:
    """Return `strong` where the global batch of the rows is constant, `weak` where that of a GPU is, `neither`; None: not known."""
    counts = [found.processes(row) or 0 for row in rows]
    batches = [found.global_batch(row, variant) or 0 for row in rows]
    if len(set(counts)) < 2 or not all(counts) or not all(batches):
        return None
    if _constant(batches):
        return "strong"
    return "weak" if _constant([batch / count for batch, count in zip(batches, counts, strict=True)]) else "neither"


def _constant(values: Sequence[float]) -> bool:
    return max(values) <= min(values) * (1 + SAME_BATCH)


def _bases(found: Understood, understood: Sequence[Meaning]) -> Iterator[Finding]:
    """Yield base rows of another batch than the rows that are compared with them, and series in which the batch goes its own ways."""
    batch = found.first(Kind.GLOBAL_BATCH, Kind.RANK_BATCH, Kind.MICRO_BATCH)
    for series, meaning in _claimed(understood):
        variant = meaning.variant
        if not batch or design_of(found, variant, series.rows) != "neither":
            continue
        base, other = (found.global_batch(row, variant) or 0 for row in (series.base, series.others[0]))
        without = design_of(found, variant, series.others)
        if without in ("weak", "strong"):
            right = f"{other if without == 'strong' else other / series.ratio(series.others[0]):g}"
            reason = f"the global batch of the base row is {base}, and that of the other rows is of {without} scaling from {right}"
            yield _finding(found, Rule.BASE_ROW, series.base, batch, right, reason)
        else:
            batches = ", ".join(str(found.global_batch(row, variant)) for row in series.rows)
            reason = f"the global batch ({batches}) is neither constant nor in proportion to the GPUs: the speed-up compares different work"
            yield _finding(found, Rule.BATCH, series.base, batch, "", reason)


def label_of(found: Understood, column: Column) -> str | None:
    """Return `weak` or `strong` where the head of a column, the caption or a heading says one of them, the nearest that says any."""
    for text in (column.title, found.table.near, *reversed(found.table.headings)):
        words = {(one or other).lower() for one, other in LABEL.findall(text)}
        if words:
            return words.pop() if len(words) == 1 else None
    return None


def _labels(found: Understood, understood: Sequence[Meaning]) -> Iterator[Finding]:
    """Yield labels, weak or strong, that contradict the batches: one of each row, or one of a table."""
    per_row = found.first(Kind.LABEL)
    reported: set[object] = set()
    for series, meaning in _claimed(understood):
        row = series.others[0]
        design = design_of(found, meaning.variant, series.rows)
        label = found.text(row, per_row).lower() if per_row else label_of(found, meaning.column)
        key = row if per_row else design
        if label not in ("weak", "strong") or design not in ("weak", "strong") or label == design or key in reported:
            continue
        reported.add(key)
        batch = found.batch_words(series.base, meaning.variant)
        grows = f"grows with the GPUs ({batch} in line {found.line(series.base)})"
        batches = {found.global_batch(one, meaning.variant) for one in series.rows}
        stays = "stays" if len(batches) > 1 or None in batches else f"is {batches.pop()} in every row"
        reason = f"labelled {label} scaling, and the global batch {grows if design == 'weak' else stays}: that is {design} scaling"
        yield _finding(found, Rule.LABEL, row if per_row else None, per_row or meaning.column, design, reason)


def _missing_batch(found: Understood, understood: Sequence[Meaning]) -> Iterator[Finding]:
    """Yield tables that state a speed-up over GPUs and do not say the batch anywhere. What counts threads or cores, or has the time of a
    program over processes, need not be a training: it is of the same work, whatever that is."""
    table, counted = found.table, found.first(Kind.GPUS)
    words = head_words(counted.title) if counted else ""
    timed = any(one.measure.kind == Kind.TOTAL_TIME for one in understood)
    if re.search("thread|core|cpu", words) or (timed and _PROCESSES.search(words)):
        return
    cells = (cell for row in table.rows for cell in row.cells)
    if any(map(_BATCH_WORDS.search, (*table.header, *table.headings, table.near, *cells))) or _BATCH_NUMBER.search(table.around):
        return
    for _, meaning in _claimed(understood)[:1]:
        reason = "a speed-up over GPUs, and neither columns nor heading nor text say the batch: nobody can tell weak from strong scaling"
        yield _finding(found, Rule.MISSING_BATCH, None, meaning.column, "", reason)


def _integers(found: Understood) -> Iterator[Finding]:
    """Yield counts that are none, and products that do not hold: batch x accumulation x GPUs, nodes x GPUs per node."""
    for column in found.of(Kind.GPUS, Kind.NODES, Kind.GPUS_PER_NODE, *_BATCHES):
        for row, cell in enumerate(column.cells):
            if bad := [one for one in cell if one.value < 0 or (one.value % 1 and one.unit != "k")]:
                yield _finding(found, Rule.INTEGERS, row, column, "", f"{column.title!r} is {bad[0].value:g}: not a whole number")
    nodes, each, gpus = (found.first(kind) for kind in (Kind.NODES, Kind.GPUS_PER_NODE, Kind.GPUS))
    if nodes and each and gpus:
        yield from _products(found, (nodes, each), gpus, None)
    batch, steps, rank, whole = map(found.first, _BATCHES)
    if not batch:
        return
    factors = (batch, steps) if steps else (batch,)
    for variant in dict.fromkeys(batch.variants) or [None]:
        if steps and rank:
            yield from _products(found, factors, rank, variant)
        elif whole:
            yield from _products(found, factors, whole, variant, replicas=True)


def _rows(found: Understood) -> range:
    return range(len(found.table.rows))


def _products(
    found: Understood, factors: Sequence[Column], result: Column, variant: str | None, *, replicas: bool = False
) -> Iterator[Finding]:
    """Yield the rows whose product is not the result. With `replicas`, all rows may lack the same factor: steps of accumulation, or the
    GPUs of a node."""
    known: list[tuple[int, list[int], float]] = []
    for row in _rows(found):
        numbers = [found.whole(row, factor.kind, variant) for factor in factors] + [found.replicas(row)] * replicas
        parts = [one for one in numbers if one]
        whole = found.whole(row, result.kind, variant)
        if whole and len(parts) == len(numbers):
            known.append((row, parts, whole / prod(parts)))
    lacking = _lacking([quotient for _, _, quotient in known]) if replicas else 1
    for row, parts, quotient in known:
        if lacking and quotient != lacking:
            value = prod(parts) * lacking
            product = " x ".join(map(str, [*parts, *([lacking] if lacking > 1 else [])]))
            reason = f"{product} = {value}, and {result.title!r} prints {found.text(row, result)}"
            yield _finding(found, Rule.INTEGERS, row, result, str(value), reason)


def _lacking(quotients: Sequence[float]) -> int | None:
    """Return the whole factor that most rows lack, 1 where some lack none; None where each lacks another one, as accumulation may be."""
    often = max(sorted(set(quotients)), key=quotients.count, default=1.0)
    if often % 1 == 0 and quotients.count(often) > 1 and 2 * quotients.count(often) >= len(quotients):
        return int(often)
    return None if 1.0 not in quotients and all(one % 1 == 0 for one in quotients) else 1


def _curves(found: Understood, understood: Sequence[Meaning]) -> Iterator[Finding]:
    """Yield series whose efficiency is above 103 % of the base row's, or rises by more than 3 points with more GPUs."""
    rates = [Meaning(column=measure, measure=measure, per_gpu=True) for measure in found.of(Kind.THROUGHPUT, Kind.GPU_THROUGHPUT)]
    claimed = {one.measure.index: one for one in understood if not one.other}
    times = [replace(one, per_gpu=True, scale=1.0, from_one=True) for one in claimed.values() if one.measure.kind in DURATIONS]
    for meaning in (*rates, *times):
        measure = meaning.measure
        speedup = claimed[measure.index].column if measure.index in claimed else None
        for series in find_series(found, speedup, measure.variant):
            if design_of(found, measure.variant, series.rows) != "neither":
                yield from _curve(found, meaning, series)


def _curve(found: Understood, meaning: Meaning, series: Series) -> Iterator[Finding]:
    measure = meaning.measure
    points = [(row, count, one) for row, count in series.counts.items() if (one := meaning.expected(row, series))]
    above = [(row, count, one) for row, count, one in points if one.low > MAX_EFFICIENCY and count > series.counts[series.base]]
    if above:
        row, count, one = max(above, key=lambda point: point[2].middle)
        base = f"what the base row (line {found.line(series.base)}) gives for as many"
        reason = f"{measure.title!r} on {count} GPUs is {100 * one.middle:.1f} % of {base}: more than 103 %"
        yield _finding(found, Rule.SUPERLINEAR, row, measure, "", reason)
        return
    rises = [(after[2].low - before[2].high, before, after) for before, after in pairwise(points)]
    if rises and max(rises)[0] > MAX_RISE:
        _, before, after = max(rises)
        low, high = (f"{100 * one.middle:.1f} % on {count}" for _, count, one in (before, after))
        reason = f"the efficiency of {measure.title!r} rises from {low} to {high} GPUs"
        yield _finding(found, Rule.RISING, after[0], measure, "", reason)


def _mixed(found: Understood, understood: Sequence[Meaning]) -> Iterator[Finding]:
    """Yield the rows of a series that ran on other hardware, or with another image or driver, than its base row."""
    for series, _ in _claimed(understood):
        for column in found.of(Kind.HARDWARE):
            base = found.text(series.base, column)
            for row in series.others:
                own = found.text(row, column)
                names = {re.sub(r"^\d+\s*[x×]?\s*", "", text).lower() for text in (own, base)}
                if len(names) > 1 and "" not in names:
                    first = f"{base!r} of the base row (line {found.line(series.base)})"
                    reason = f"{column.title!r} is {own!r}, and {first} is another: the speed-up is not that of GPUs alone"
                    yield _finding(found, Rule.MIXED, row, column, base, reason)
