"""Write tables, plots and report.html, one page that opens without network, for `slipway report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from workflow.commands.results import report_outputs, results_dirs
from workflow.commands.watching import output
from workflow.commands.watching.output import waiting
from workflow.report.keeping import all_kept


@all_kept()
def main(study: Path, site: str | None, directories: Sequence[Path], out: Path | None) -> None:
    """Write everything anew from the records."""
    results = results_dirs(study, site, directories, out)
    target = out or results[0]
    outputs = report_outputs()
    with waiting("report: tables, plots and page"):
        analysis = outputs.write_all(results, target)
    output.line(f"{analysis.study}: {analysis.summary.closing_line()}")
    output.line(f"report: {target / outputs.PAGE_FILE}")
