"""Export the runs of a study in the format of another tool, for `slipway export`."""

from pathlib import Path
from typing import Annotated

import typer

from base import errors, humanize, logs
from extras.export import FORMATS
from extras.export.runs import exported_runs
from workflow.commands.chosen_study import report_outputs, results_as_they_are
from workflow.commands.options import DEFAULT_STUDY, PlacesArgument, SiteOption, StudyOption
from workflow.commands.watching import output


def main(
    name: Annotated[str, typer.Argument(metavar="FORMAT", help="tensorboard, mlflow, wandb, mlperf or extrap.")],
    places: PlacesArgument = None,
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Where the files go; made if it is not there.")] = Path("exported"),
) -> None:
    """Write the records and events of a study in the format of another tool, below DIR/<study>/.

    Each run is exported as the attempt that counts in the tables. A second export replaces the files of the first one.

    `tensorboard`: per step loss, rates and times, and evaluations; needs no TensorBoard. `mlflow`: the same as metrics, with keys,
    marks, warnings and provenance as tags; needs `mlflow-skinny>=3`. `wandb`: the same as offline runs, which `wandb sync` uploads;
    needs `wandb>=0.20`. `mlperf`: MLPerf's log lines (`:::MLLOG`), which are no submission. `extrap`: extrap.jsonl for Extra-P,
    with rate and median step over the processes.
    """
    if name not in FORMATS:
        raise errors.ConfigError(f"{name!r} is no format of slipway export; {humanize.choices(name, FORMATS)}")
    report_outputs()
    from workflow.report import cells, collect

    logs.private_umask()
    for results in results_as_they_are(study, site, places or []):
        runs = list(exported_runs(results, cells.marks_of_runs(collect.collect([results]).frame)))
        if not runs:
            raise errors.RecordError(f"{results} has no record of any run yet: `slipway status` shows how its runs stand")
        directory = to / results.name
        directory.mkdir(parents=True, exist_ok=True)
        files = FORMATS[name].export(runs, directory)
        output.line(f"{humanize.counted(len(runs), 'run')} of {results.name}: {humanize.counted(files, 'file')} in {directory}")
    output.line(f"look at it: {FORMATS[name].NEXT.format(to=to)}")
