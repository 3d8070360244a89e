"""`slipway tables`: records -> tables, also while runs are missing or failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from base.errors import RecordError
from workflow.commands import show
from workflow.commands.results import report_outputs, results_as_they_are, results_dirs
from workflow.report.files import PAGE_FILE
from workflow.report.keeping import all_kept

if TYPE_CHECKING:
    from workflow.report.analysis import Analysis


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Where tables are (None: the first directory), whether to print instead of writing, whether a run that is no `ok` is an error."""

    out: Path | None = None
    show: bool = False
    strict: bool = False


@all_kept()
def main(study: Path, site: str | None, directories: Sequence[Path], wanted: Wanted) -> None:
    """Write records.parquet and the tables, or print the speed-up. Raises RecordError with `strict` unless every run of the study is ok."""
    analysis = (_print if wanted.show else _write)(study, site, directories, wanted.out)
    summary = analysis.summary
    if wanted.strict and summary.ok < summary.num_runs:
        raise RecordError(f"{analysis.study}: {summary.closing_line()}; with --strict every run must be ok")


def _write(study: Path, site: str | None, directories: Sequence[Path], out: Path | None) -> Analysis:
    results = results_dirs(study, site, directories)
    out = out or results[0]
    outputs = report_outputs()
    analysis: Analysis = outputs.write_collected(results, out)
    outputs.write_tables(analysis, out)
    show.line(f"{analysis.study}: {analysis.summary.closing_line()}")
    show.line(f"tables: {out / 'tables'}")
    return analysis


def _print(study: Path, site: str | None, directories: Sequence[Path], out: Path | None) -> Analysis:
    """From the records as they are now, in memory: files that snakemake made stay as new as it left them."""
    results = results_as_they_are(study, site, directories)
    report_outputs()
    from workflow.report.analysis import analyse
    from workflow.report.collect import collect
    from workflow.report.terminal import print_speedup

    analysis = analyse(collect(results))
    page = (out or results[0]) / PAGE_FILE
    print_speedup(analysis, page if page.exists() else None)
    return analysis
