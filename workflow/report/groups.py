"""What the page says once of many runs: the same failure, the same warning. Each row leads to its runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import polars as pl

from base.units import some
from workflow.report.analysis import Analysis
from workflow.report.cells import END, MEASURED
from workflow.report.long_tables import RUN_AGAIN, last_lines, reason_of, short
from workflow.report.table import Column, Table, Value, text
from workflow.run.record.columns import MISSING

MOST_NAMES: Final = 6
MOST_WARNINGS: Final = 100
RunKey = tuple[str, str]
"""Label of the source, run."""
_BUSY: Final = re.compile(r"(?P<node>[^:\s]+): (?P<words>[^()]*?)(?: \((?P<programs>[^()]*)\))?", re.DOTALL)
_NUMBER: Final = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w.-]*\w)")
"""A number that is a word of its own: not one in the name of a node or a file."""
_VARYING: Final = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True, kw_only=True)
class Groups:
    """A table with a row per group, and for each run the names of the places that lead to it."""

    table: Table
    places: Mapping[RunKey, tuple[str, ...]]


def failures(analysis: Analysis) -> Groups:
    """The runs without a measurement, those that failed alike in one row. Alike: but for numbers, and the names of run and host."""
    rows = analysis.frame.filter(~MEASURED).with_columns(END.alias("end_word")).sort(pl.col("status") == MISSING, maintain_order=True)
    alike: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for row in rows.iter_rows(named=True):
        end = row["failed_signal"] or row["failed_exit_code"]
        texts = (_without_names(row, reason_of(row) or ""), _without_names(row, last_lines(row)))
        alike.setdefault((row["end_word"], end, *texts), []).append(row)
    heads = {
        "end": "End",
        "reason": "Reason",
        "last_lines": "Last lines",
        "ranks": "Rank",
        "hosts": "Host",
        "exit": "Exit",
        "which": "Which",
    }
    sentences = ("reason", "last_lines", "hosts", "which")
    columns = [Column(key=key, title=title, number=False, wrap=key in sentences) for key, title in heads.items()]
    values = []
    for (end_word, end, *_), group in alike.items():
        ranks, hosts = (_some(row[name] for row in group) for name in ("failed_rank", "failed_host"))
        words = (end_word, short(reason_of(group[0])), short(last_lines(group[0])), ranks, short(hosts), end)
        values.append((text(len(group)), *map(text, words), _which(group)))
    return _groups(
        "failure",
        list(alike.values()),
        Table(
            name="failures",
            title="Runs without a measurement",
            caption="Runs that failed alike, but for numbers and the names of runs and hosts, stand in one row, with the words of the "
            f"first. {RUN_AGAIN}",
            columns=(Column(key="runs", title="Runs"), *columns),
            rows=tuple(values),
            empty="Every run of the study was measured.",
        ),
    )


def warnings(analysis: Analysis) -> Groups:
    """What the runs themselves found odd, each kind of thing once: but for numbers, and the names of nodes and of others' programs."""
    said: dict[str, tuple[list[_Said], list[Mapping[str, Any]]]] = {}
    noted = analysis.frame.select("source", "run_id", "warnings", "busy", "hosts").filter(pl.col("warnings").is_not_null())
    for row in noted.iter_rows(named=True):
        for words in row["warnings"]:
            one = _Said.of(words, set((row["hosts"] or "").split(",")), in_busy=words in (row["busy"] or ()))
            sayings, rows = said.setdefault(_VARYING.sub("0", _NUMBER.sub("#", one.words)), ([], []))
            sayings.append(one)
            if not rows or rows[-1] is not row:
                rows.append(row)
    columns = (
        Column(key="runs", title="Runs"),
        Column(key="which", title="Which", number=False, wrap=True),
        Column(key="warning", title="What they noted", number=False, wrap=True),
    )
    shown = list(said.values())[:MOST_WARNINGS]
    more = f"; the first {MOST_WARNINGS} of {len(said)}" if len(said) > MOST_WARNINGS else ""
    return _groups(
        "warning",
        [rows for _, rows in shown],
        Table(
            name="warnings",
            title="What the runs themselves noted",
            caption=f"Each kind of thing once, with the runs that said so; a number is the range over these runs{more}.",
            columns=columns,
            rows=tuple((text(len(rows)), _which(rows), text(_together(sayings))) for sayings, rows in shown),
            empty="No run noted anything.",
        ),
    )


class _Said(NamedTuple):
    """A warning without the nodes that it begins with, and without the programs that it ends with, where it is one of a busy machine."""

    words: str
    nodes: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: str, hosts: Collection[str], *, in_busy: bool) -> _Said:
        """`hosts`: of the run."""
        found = _BUSY.fullmatch(words) if in_busy else None
        if found is not None:
            return cls(found["words"], (found["node"],), tuple(filter(None, (found["programs"] or "").split(", "))))
        names, _, rest = words.partition(": ")
        nodes = tuple(names.split(", "))
        return cls(rest, nodes) if rest and set(nodes) <= set(hosts) else cls(words)


def _together(sayings: Sequence[_Said]) -> str:
    """`local-0, local-1: others used 0.47 to 0.9 of 1 core while it measured (python of root, sh of root, and 5 more)`."""
    nodes = some(list(dict.fromkeys(node for one in sayings for node in one.nodes)), MOST_NAMES)
    counts = Counter(program for one in sayings for program in one.programs)
    programs = some([name for name, _ in counts.most_common()], MOST_NAMES)
    found = [_NUMBER.findall(one.words) for one in sayings]
    words = sayings[0].words
    if len({len(numbers) for numbers in found}) == 1:
        ranges = iter([_range(column) for column in zip(*found, strict=True)])
        words = _NUMBER.sub(lambda _: next(ranges), words)
    return f"{f'{nodes}: ' if nodes else ''}{words}{f' ({programs})' if programs else ''}"


def _range(numbers: Sequence[str]) -> str:
    low, high = min(numbers, key=float), max(numbers, key=float)
    return low if float(low) == float(high) else f"{low} to {high}"


def _groups(kind: str, groups: Sequence[Sequence[Mapping[str, Any]]], table: Table) -> Groups:
    places: dict[RunKey, list[str]] = {}
    for index, rows in enumerate(groups, 1):
        for row in rows:
            places.setdefault((row["source"], row["run_id"]), []).append(f"{kind}-{index}")
    nowhere = ("",) * (len(table.columns) - 1)
    leads = tuple((f"{kind}-{index}", *nowhere) for index in range(1, len(groups) + 1))
    return Groups(table=replace(table, leads=leads), places={run: tuple(names) for run, names in places.items()})


def _which(rows: Sequence[Mapping[str, Any]]) -> Value:
    return text(some([row["run_id"] for row in rows], MOST_NAMES, "\n"))


def _some(values: Iterable[Any]) -> str:
    """Each value once, a few of many."""
    return some(list(dict.fromkeys(str(value) for value in values if value is not None)), MOST_NAMES)


def _without_names(row: Mapping[str, Any], words: str) -> str:
    for name in (row["run_id"], row["cell_id"], row["failed_host"]):
        words = words.replace(name, "") if name else words
    return _VARYING.sub("0", words)
