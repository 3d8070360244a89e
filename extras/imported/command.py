"""Take results of other tools into a table, for `slipway import`."""

from pathlib import Path
from typing import Annotated

import typer

from base.humanize import counted
from base.logs import private_umask
from workflow.commands.chosen_study import report_outputs
from workflow.commands.watching import output


def main(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="nccl-tests' JSON (-J), ReFrame's reports, MLPerf's logs, CSV such as CARAML's."),
    ],
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Also write tables/imported.* there, as other tables.")] = None,
) -> None:
    """Put results of other tools into a table, with speed-up and efficiency if their files say enough.

    Slipway reads nccl-tests' JSON, MLPerf's logs, ReFrame's reports, CARAML's CSV and other tables, and compares them by its own
    functions. A value that a file does not have is `not known`.
    """
    report_outputs()
    from extras.imported.results import read_results
    from extras.imported.table import imported_table, rows_of
    from workflow.report.outputs import write_table
    from workflow.report.terminal import print_table

    results = [result for path in files for result in read_results(path)]
    table = imported_table(rows_of(results))
    print_table(table)
    if to is not None:
        private_umask()
        write_table(table, to)
    where = f"; {to / 'tables'}/imported.csv has them" if to is not None else ""
    output.line(f"{counted(len(results), 'result')} of {counted(len(files), 'file')} in {counted(table.num_rows, 'row')}{where}")
