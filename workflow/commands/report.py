"""Write tables, plots and report.html, one page that opens without network, for `slipway report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from workflow.commands.options import DEFAULT_STUDY, PlacesArgument, SiteOption, StudyOption
from workflow.commands.results import report_outputs, results_dirs
from workflow.commands.watching import output
from workflow.commands.watching.output import waiting
from workflow.report.garbage_collection import without_garbage_collection


@without_garbage_collection()
def main(
    places: PlacesArgument = None,
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Where everything goes; default: the first directory.")] = None,
) -> None:
    """Write tables, plots and the page report.html, which opens without network."""
    results = results_dirs(study, site, places or [], out)
    target = out or results[0]
    outputs = report_outputs()
    with waiting("report: tables, plots and page"):
        analysis = outputs.write_all(results, target)
    output.line(f"{analysis.study}: {analysis.summary.closing_line()}")
    output.line(f"report: {target / outputs.PAGE_FILE}")
