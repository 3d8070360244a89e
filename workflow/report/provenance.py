"""Where the numbers come from: hardware and software per source."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

import polars as pl

from base.logs import printable
from base.units import counted, some
from workflow.report.analysis import Analysis
from workflow.report.sources import Source
from workflow.run.record.columns import PROVENANCE

MOST_HOSTS: Final = 12
MOST_VALUES: Final = 6
SHOWN: Final = ("scheduler", "scheduler_version", "engine", "device", "threads_per_rank", "dataset_digest", *PROVENANCE)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A titled list of names and values, or some lines of code, with words before it. All of it is text."""

    title: str
    text: str = ""
    items: tuple[tuple[str, str], ...] = ()
    code: str = ""


def provenance(analysis: Analysis) -> tuple[Block, ...]:
    """One block per source. Several values of one thing are all shown, with the number of runs that had each."""
    return tuple(_of_source(analysis, source) for source in analysis.sources)


def _of_source(analysis: Analysis, source: Source) -> Block:
    rows = analysis.frame.filter((pl.col("source") == source.label) & pl.col("attempt").is_not_null())
    items = [("directory", source.path), ("study", source.study), ("hosts", _hosts(rows)), ("each host", _values(rows["machine"]))]
    items += [("GPU memory", _values(rows["gpu_memory_bytes"].map_elements(_gib, return_dtype=pl.String)))]
    items += [(name.replace("_", " "), _values(rows[name])) for name in SHOWN]
    if source.left_out:
        items.append(("left out", f"{source.left_out} runs that the study no longer asks for"))
    if source.copies:
        items.append(("copies", f"{counted(source.copies, 'record')} that a directory named before has too, by their seals: counted there"))
    if not source.has_study:
        items.append(
            ("study.json", "none: the cells are those that the records tell of; missing runs cannot be known, and there is no baseline")
        )
    return Block(title=printable(source.label), items=tuple((name, printable(value)) for name, value in items if value))


def _values(column: pl.Series) -> str:
    counts = Counter(str(value) for value in column.drop_nulls().to_list())
    if len(counts) <= 1:
        return next(iter(counts), "")
    shown = [f"{value} ({count} runs)" for value, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]
    return some(shown, MOST_VALUES, "; ")


def _hosts(rows: pl.DataFrame) -> str:
    hosts = sorted({host for text in rows["hosts"].drop_nulls().unique().to_list() for host in text.split(",") if host})
    return f"{len(hosts)}: {some(hosts, MOST_HOSTS)}" if hosts else ""


def _gib(size: int) -> str:
    return f"{size / 2**30:.0f} GiB each"
