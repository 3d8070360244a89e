"""Compare two studies, or two sets of cells: rates, what differs in their runs, and whether the second is slower than a margin allows."""

import re
from typing import Annotated, Final

import typer

from base.errors import ConfigError, Slower, Undecided
from workflow.commands.chosen_study import report_outputs
from workflow.commands.options import JsonOption, SiteOption
from workflow.commands.watching import output
from workflow.report.files import without_garbage_collection

PERCENT: Final = re.compile(r"(\d{1,2}(?:\.\d{1,6})?) ?%")


@without_garbage_collection()
def main(
    a: Annotated[str, typer.Argument(metavar="A", help="Results or a study file; `:KEY=VALUE,...` chooses cells.")],
    b: Annotated[str, typer.Argument(metavar="B", help="What is compared with it, of the same form.")],
    site: SiteOption = None,
    margin: Annotated[
        str | None,
        typer.Option("--not-slower-than", metavar="PERCENT", help="Such as 2%. Exit 0: B is not slower than that; 29: it is; 30: unknown."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the cells of B with those of A that have the same keys: difference, interval, verdict, and every field of the records
    that differs.

    A and B are results directories or study files, each with words that choose cells, such as `results/digits:framework=pytorch`.
    With --not-slower-than the exit code says whether B keeps to the margin: 0 yes, 29 no, 30 if the runs are too few to decide.
    """
    allowed = None if margin is None else _margin(margin)
    report_outputs()
    from extras.compare.report import answer_text, cells_table, compared, fields_table, values
    from extras.compare.sides import match, read_side
    from workflow.report.formats import to_values
    from workflow.report.terminal import print_table

    with output.waiting("compare: reading the records"):
        first, second = read_side(a, site), read_side(b, site)
        found = compared(first, second, match(first, second), allowed)
    table = cells_table(found)
    if as_json:
        output.json_value(values(found, to_values(table)))
    else:
        print_table(table)
        output.line()
        print_table(fields_table(found))
    if found.gate is None:
        return
    text = answer_text(found.gate, len(found.found))
    if found.gate.answer == "not held":
        raise Slower(text)
    if found.gate.answer != "held":
        raise Undecided(text)
    if not as_json:
        output.prose(text)


def _margin(text: str) -> float:
    """Return a share, such as 0.02 of `2%`. Raises ConfigError."""
    found = PERCENT.fullmatch(text.strip())
    if found is None or float(found[1]) == 0:
        raise ConfigError(f"--not-slower-than {text}: expected a percentage above 0 and below 100, such as 2%")
    return float(found[1]) / 100
