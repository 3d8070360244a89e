"""Make the table of the survey: what each framework does with each network on each machine, by its device and threads."""

from functools import partial

from workflow.report.analysis import Analysis
from workflow.report.bounds import is_anchor
from workflow.report.cell_columns import cell_table
from workflow.report.cells import CellResult
from workflow.report.table import MILLI, NONE, Table, scaled, significant, with_interval, words


def survey(analysis: Analysis) -> Table:
    """Build the table: one row per measured cell, those of one network and framework together."""
    measured = [cell for cell in analysis.cells if cell.num_measured and not is_anchor(cell)]
    cells = sorted(measured, key=lambda cell: (cell.cell.model, cell.cell.framework))
    columns = [
        words("ran_on", "Ran on", [_each(cell, "device") for cell in cells]),
        words("threads_per_process", "Threads used", [_each(cell, "threads_per_rank") for cell in cells], number=True),
        *with_interval("step_p50_s", "Step p50 [ms]", partial(scaled, MILLI), [cell.step_s for cell in cells]),
        *with_interval(
            "rate_per_s",
            analysis.rate_words.capitalize(),
            partial(significant, digits=4),
            [cell.rate_per_s for cell in cells],
            [cell.measuring for cell in cells],
        ),
    ]
    return cell_table(
        analysis,
        cells,
        columns,
        name="survey",
        title="Survey of frameworks, networks and machines",
        caption=[
            "Step: median, and rate of all processes together: geometric means over runs, with the 95 % interval from 3 runs on. Ran on, "
            "threads used: of each process"
        ],
    )


def _each(cell: CellResult, name: str) -> str:
    return ", ".join(sorted(map(str, cell.distinct[name]))) or NONE
