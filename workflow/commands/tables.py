"""`slipway tables`: records -> tables, also while runs are missing or failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from base.errors import RecordError
from workflow.commands.results import report_outputs, results_as_they_are, results_dirs
from workflow.commands.watching import show
from workflow.commands.watching.progress import waiting
from workflow.report.files import PAGE_FILE
from workflow.report.keeping import all_kept

if TYPE_CHECKING:
    from workflow.report.analysis import Analysis


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Where tables are (None: the first directory), whether to print instead of writing, or for programs, and whether a run that is no `ok`
    is an error."""

    out: Path | None = None
    show: bool = False
    as_json: bool = False
    strict: bool = False


@all_kept()
def main(study: Path, site: str | None, places: Sequence[Path], wanted: Wanted) -> None:
    """Write records.parquet and the tables, or print the speed-up. Raises RecordError with `strict` unless every run of the study is ok."""
    if wanted.show or wanted.as_json:
        results = results_as_they_are(study, site, places)
        analysis = _analysed(results)
        _print(analysis, wanted.out or results[0], wanted.as_json)
    else:
        analysis = _write(study, site, places, wanted.out)
    summary = analysis.summary
    if wanted.strict and summary.ok < summary.num_runs:
        raise RecordError(f"{analysis.study}: {summary.closing_line()}; with --strict every run must be ok")


def _write(study: Path, site: str | None, places: Sequence[Path], out: Path | None) -> Analysis:
    results = results_dirs(study, site, places, out)
    out = out or results[0]
    outputs = report_outputs()
    with waiting("tables") as now:
        now("reading the records")
        analysis: Analysis = outputs.write_collected(results, out)
        now("writing")
        outputs.write_tables(analysis, out)
    show.line(f"{analysis.study}: {analysis.summary.closing_line()}")
    show.line(f"tables: {out / 'tables'}")
    return analysis


def _analysed(results: Sequence[Path]) -> Analysis:
    """From the records as they are now, in memory: files that snakemake made stay as new as it left them."""
    report_outputs()
    from workflow.report.analysis import analyse
    from workflow.report.collect import collect

    with waiting("tables: reading the records"):
        return analyse(collect(results))


def _print(analysis: Analysis, out: Path, as_json: bool) -> None:
    from workflow.report.terminal import print_speedup
    from workflow.report.values import speedup_values

    page = out / PAGE_FILE if (out / PAGE_FILE).exists() else None
    if as_json:
        show.json_value({**speedup_values(analysis), "report": str(page) if page else None})
    else:
        print_speedup(analysis, page)
