"""Check the numbers of tables against each other, for `slipway lint-table`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from base.errors import ConfigError, RecordError
from base.humanize import and_more, choices, counted
from extras.lint_table.columns import NUMERIC, Kind, Understood, understand
from extras.lint_table.findings import Finding, Rule
from extras.lint_table.numbers import spelled_unit
from extras.lint_table.ratios import Meaning, meanings
from extras.lint_table.reading import read_tables
from extras.lint_table.rules import check_table, design_of
from workflow.commands.options import JsonOption
from workflow.commands.watching import output

SCHEMA: Final = "slipway.lint/1"
MOST_SHOWN: Final = 1000


def main(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="CSV, TSV, Markdown or HTML files with tables.")],
    as_json: JsonOption = False,
    explain: Annotated[bool, typer.Option("--explain", help="Also what is understood of each table.")] = False,
    ignore: Annotated[list[str] | None, typer.Option("--ignore", metavar="RULE", help="Leave out what this rule finds.")] = None,
) -> None:
    """Find numbers of scaling tables that contradict each other; exit 19 if there are any. What is not understood is not judged."""
    for name in ignore or ():
        if name not in set(map(str, Rule)):
            raise ConfigError(f"--ignore {name}: no such rule; {choices(name, [str(rule) for rule in Rule])}")
    tables = [understand(table) for path in files for table in read_tables(path)]
    if not tables:
        raise ConfigError(f"{', '.join(map(str, files))}: no table in Markdown, HTML or separated values is found there")
    checked = [(table, meanings(table)) for table in tables]
    findings = [one for table, found in checked for one in check_table(table, found) if one.rule not in (ignore or ())]
    if as_json:
        output.json_value(_as_json(checked, findings))
    else:
        for table, found in checked if explain else ():
            _explain(table, found)
        for one in findings[:MOST_SHOWN]:
            output.line(str(one))
        if more := and_more(len(findings), MOST_SHOWN):
            output.line(more)
    judged = {(table.table.path, table.table.line) for table, _ in checked if table.of(*NUMERIC)}
    summary = (
        f"{counted(len(findings), 'finding')} in {counted(len({(one.path, one.table) for one in findings}), 'table')} of {len(tables)}"
    )
    holds = sum(len(one.holds) for _, found in checked for one in found)
    summary += (
        f"; {counted(holds, 'speed-up, efficiency or ratio holds', 'speed-ups, efficiencies and ratios hold')}; {len(judged)} understood"
    )
    if findings:
        raise RecordError(summary)
    if not as_json:
        output.line(summary)


def _explain(table: Understood, found: Sequence[Meaning]) -> None:
    below = f" below {table.table.headings[-1]!r}" if table.table.headings else ""
    output.line(f"{table.table.path}:{table.table.line}: {counted(len(table.table.rows), 'row')}{below}")
    known = {column.index: column for column in table.columns}
    for index, title in enumerate(table.table.header):
        column = known.get(index)
        words = [*([spelled_unit(column.unit)] if column and column.unit else []), *(dict.fromkeys(column.variants) if column else [])]
        more = f" ({', '.join(words)})" if words else ""
        output.line(f"  {title!r}: {column.kind if column else 'not understood'}{more}")
    for meaning in found:
        output.line(f"  {meaning.column.title!r} is {meaning}: {len(meaning.holds)} hold, {len(meaning.fails)} do not")
        for series in meaning.series:
            counts = ", ".join(map(str, series.counts))
            design = design_of(table, meaning.variant, series.rows)
            output.line(f"    {counts} GPUs from line {table.line(series.base)}: {design or 'weak or strong is not known'}")
    for column in table.of(Kind.SPEEDUP, Kind.EFFICIENCY):
        if not any(meaning.column.index == column.index for meaning in found):
            output.line(f"  {column.title!r}: what it is relative to is not understood")


def _as_json(checked: Sequence[tuple[Understood, Sequence[Meaning]]], findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "tables": [
            {
                "path": table.table.path,
                "line": table.table.line,
                "rows": len(table.table.rows),
                "columns": [
                    {
                        "title": one.title,
                        "kind": one.kind.name.lower(),
                        "unit": one.unit or None,
                        "precisions": list(dict.fromkeys(one.variants)),
                    }
                    for one in table.columns
                ],
                "meanings": [
                    {"column": one.column.title, "is": str(one), "holds": len(one.holds), "fails": len(one.fails)} for one in found
                ],
            }
            for table, found in checked
        ],
        "findings": [
            {
                "rule": str(one.rule),
                "path": one.path,
                "line": one.line,
                "column": one.column,
                "printed": one.printed,
                "right": one.right or None,
                "reason": one.reason,
            }
            for one in findings
        ],
    }
