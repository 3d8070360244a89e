"""`slipway tables`: records -> tables, also while runs are missing or failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from base.errors import RecordError
from workflow.commands import show
from workflow.commands.results import report_outputs, results_dirs


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Where tables go (None: the first directory), whether to print the speed-up, whether a run that is no `ok` is an error."""

    out: Path | None = None
    show: bool = False
    strict: bool = False


def main(study: Path, site: str | None, directories: Sequence[Path], wanted: Wanted) -> None:
    """Write records.parquet and the tables. Raises RecordError with `strict` unless every run of the study is ok."""
    results = results_dirs(study, site, directories)
    out = wanted.out or results[0]
    outputs = report_outputs()
    analysis = outputs.write_collected(results, out)
    outputs.write_tables(analysis, out)
    page = out / outputs.PAGE_FILE
    if wanted.show:
        from workflow.report.terminal import print_speedup

        print_speedup(analysis, page if page.exists() else None)
    else:
        show.line(f"{analysis.study}: {analysis.summary.closing_line()}")
    show.line(f"tables: {out / 'tables'}")
    summary = analysis.summary
    if wanted.strict and summary.ok < summary.num_runs:
        raise RecordError(f"{analysis.study}: {summary.closing_line()}; with --strict every run must be ok")
