"""Check the numbers of tables against each other, for `slipway lint-table`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

import typer

from base.errors import ConfigError, RecordError
from base.humanize import choices, counted
from extras.lint_table.columns import NUMERIC, Understood, understand
from extras.lint_table.reading import read_tables
from extras.lint_table.relations import Meaning, meanings
from extras.lint_table.rules import Rule, check_table
from workflow.commands.options import JsonOption
from workflow.commands.watching import output

SCHEMA: Final = "slipway.lint/1"


def main(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV, TSV or Markdown files with tables.")],
    as_json: JsonOption = False,
    ignore: Annotated[list[str] | None, typer.Option("--ignore", metavar="RULE", help="Leave out what this rule finds.")] = None,
) -> None:
    """Find numbers of scaling tables that contradict each other, with file, line and the right value; exit 19 if there are any.

    The tables may be Slipway's own or anybody's CSV or Markdown. A table that it does not understand is not judged.
    """
    for name in ignore or ():
        if name not in set(map(str, Rule)):
            raise ConfigError(f"--ignore {name}: no such rule; {choices(name, [str(rule) for rule in Rule])}")
    checked = [(table, meanings(table)) for path in files for table in map(understand, read_tables(path))]
    if not checked:
        raise ConfigError(f"{', '.join(map(str, files))}: no table in Markdown or separated values is found there")
    findings = [one for table, found in checked for one in check_table(table, found) if one.rule not in (ignore or ())]
    if as_json:
        tables = [_as_json(table, found) for table, found in checked]
        output.json_value({"schema": SCHEMA, "tables": tables, "findings": [asdict(one) for one in findings]})
    else:
        for one in findings:
            output.line(str(one))
    holds = sum(len(one.holds) for _, found in checked for one in found)
    summary = (
        f"{counted(len(findings), 'finding')} in {counted(len({(one.path, one.table) for one in findings}), 'table')} of {len(checked)}; "
        f"{counted(holds, 'speed-up, efficiency or ratio holds', 'speed-ups, efficiencies and ratios hold')}; "
        f"{sum(bool(table.of(*NUMERIC)) for table, _ in checked)} understood"
    )
    if findings:
        raise RecordError(summary)
    if not as_json:
        output.line(summary)


def _as_json(table: Understood, found: list[Meaning]) -> dict[str, object]:
    return {
        "path": table.table.path,
        "line": table.table.line,
        "columns": [{"title": one.title, "kind": one.kind, "unit": one.unit or None} for one in table.columns],
        "meanings": [{"column": one.column.title, "is_of": one.measure.title, "holds": len(one.holds)} for one in found],
    }
