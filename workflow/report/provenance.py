"""Where the numbers come from: hardware and software per source, warnings of the runs, the commands that make them again."""

from __future__ import annotations

import shlex
from collections import Counter
from dataclasses import dataclass
from typing import Final

import polars as pl

from base.logs import printable
from workflow.report.analysis import Analysis
from workflow.report.columns import PROVENANCE
from workflow.report.sources import Source

MOST_VALUES: Final = 6
MOST_WARNINGS: Final = 20
SHOWN: Final = ("hardware", "scheduler", "scheduler_version", "engine", "device", "threads_per_rank", "dataset_digest", *PROVENANCE)


@dataclass(frozen=True, kw_only=True)
class Block:
    """A titled list of names and values, or some lines of code. All of it is text."""

    title: str
    items: tuple[tuple[str, str], ...] = ()
    code: str = ""


def provenance(analysis: Analysis) -> tuple[Block, ...]:
    """One block per source. Several values of one thing are all shown, with the number of runs that had each."""
    return tuple(_of_source(analysis, source) for source in analysis.sources)


def _of_source(analysis: Analysis, source: Source) -> Block:
    rows = analysis.frame.filter((pl.col("source") == source.label) & pl.col("attempt").is_not_null())
    items = [("directory", source.path), ("study", source.study), ("hosts", _hosts(rows))]
    items += [(name.replace("_", " "), _values(rows[name])) for name in SHOWN]
    if source.left_out:
        items.append(("left out", f"{source.left_out} runs that the study no longer asks for"))
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
    return "; ".join(shown[:MOST_VALUES]) + (f"; {len(shown) - MOST_VALUES} more" if len(shown) > MOST_VALUES else "")


def _hosts(rows: pl.DataFrame) -> str:
    hosts = sorted({host for text in rows["hosts"].drop_nulls().unique().to_list() for host in text.split(",") if host})
    return ", ".join(hosts[:12]) + (f" and {len(hosts) - 12} more" if len(hosts) > 12 else "")


def warnings(analysis: Analysis) -> tuple[Block, ...]:
    """What the runs themselves found odd, each thing once, with the first run that said so."""
    said: dict[str, list[str]] = {}
    for run_id, texts in analysis.frame.select("run_id", "warnings").drop_nulls().iter_rows():
        for text in texts:
            said.setdefault(text or "", []).append(run_id)
    items = [(f"{len(runs)} runs, such as {runs[0]}" if len(runs) > 1 else runs[0], printable(text)) for text, runs in said.items()]
    more = f" (the first {MOST_WARNINGS} of {len(items)})" if len(items) > MOST_WARNINGS else ""
    return (Block(title=f"What the runs themselves noted{more}", items=tuple(items[:MOST_WARNINGS])),) if items else ()


def reproduction(analysis: Analysis) -> tuple[Block, ...]:
    """The commands that made the runs, and those that make the tables from the records again."""
    first = analysis.sources[0]
    commits = [sha for sha in analysis.frame["git_sha"].drop_nulls().unique(maintain_order=True).to_list() if sha]
    checkout = f"git checkout {shlex.quote(commits[0])}\n" if len(commits) == 1 else ""
    directories = " ".join(f"--results {shlex.quote(source.path)}" for source in analysis.sources)
    dirty = "true" in analysis.frame["git_dirty"].drop_nulls().unique().to_list()
    note = ("# some runs came from a checkout with changes that are in no commit\n" if dirty else "") + (
        "# the runs came from several commits: see Provenance\n" if len(commits) > 1 else ""
    )
    site = f" --config site={shlex.quote(first.site)}" if first.site and first.site != "local" else ""
    runs = f"{note}{checkout}snakemake --profile profiles/local --configfile STUDY.yaml{site}"
    return (
        Block(title="The runs", code=printable(runs)),
        Block(title="Tables, plots and this page, from the records", code=printable(f"python -m workflow.report all {directories}")),
        Block(
            title="How the numbers are made",
            items=(
                (
                    "samples/s",
                    "samples of the measured window over its wall time, that of the slowest process; mode infer: the sum of the own",
                ),
                ("step time", "median over the measured steps of the slowest process's time; warm-up steps are left out"),
                (
                    "cell",
                    "geometric mean over its runs; interval: Student's t on the logarithms, the run being the unit; none below three",
                ),
                ("speed-up S", "samples/s over the baseline's; interval by Welch on the logarithms"),
                ("efficiency E", "S / (N / N0), N and N0 the processes of cell and baseline"),
                ("weak, strong", "the baseline has the same batch per process, or the same global batch"),
            ),
        ),
    )
