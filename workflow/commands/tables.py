"""Make tables of records for `slipway tables`, also while runs are missing or failed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from base.errors import ConfigError, RecordError
from base.names import choices
from workflow.commands.results import report_outputs, results_as_they_are, results_dirs
from workflow.commands.watching import output
from workflow.commands.watching.output import waiting
from workflow.report.files import PAGE_FILE, TABLE_NAMES
from workflow.report.keeping import all_kept

if TYPE_CHECKING:
    from workflow.report.analysis import Analysis
    from workflow.report.table import Table

FACTS: Final = "framework-facts"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The options of tables.

    They are where tables are (None: the first directory), whether to print instead of writing, or for programs, and whether a run that
    is no `ok` is an error.
    """

    out: Path | None = None
    show: bool = False
    as_json: bool = False
    strict: bool = False


@all_kept()
def main(study: Path, site: str | None, places: Sequence[Path], wanted: Wanted) -> None:
    """Write records.parquet and the tables, or print the speed-up, or the table whose name stands before `places`. Raises RecordError with
    `strict` unless every run of the study is ok."""
    name, places = _named(places)
    if name == FACTS:
        _show_facts(places, wanted)
        return
    if name is not None:
        results = results_as_they_are(study, site, places)
        analysis = _analysed(results)
        _show_table(analysis, name, wanted)
    elif wanted.show or wanted.as_json:
        results = results_as_they_are(study, site, places)
        analysis = _analysed(results)
        _print(analysis, wanted.out or results[0], wanted.as_json)
    else:
        analysis = _write(study, site, places, wanted.out)
    summary = analysis.summary
    if wanted.strict and summary.ok < summary.num_runs:
        raise RecordError(f"{analysis.study}: {summary.closing_line()}; with --strict every run must be ok")


def _named(places: Sequence[Path]) -> tuple[str | None, Sequence[Path]]:
    """Return the name of a table and the places behind it, or None and all places. A file or directory of that name comes first. Raises
    ConfigError for a word that is neither, and no path."""
    if not places or places[0].exists():
        return None, places
    word = str(places[0])
    if word in TABLE_NAMES:
        return word, places[1:]
    if word == places[0].name and not places[0].suffix:
        raise ConfigError(f"{word!r} is no table, and no file or directory here; {choices(word, TABLE_NAMES)}")
    return None, places


def _show_facts(places: Sequence[Path], wanted: Wanted) -> None:
    """Show the facts of all frameworks, which are of no study. Raises ConfigError where one is named."""
    if places:
        raise ConfigError(
            f"{FACTS} tells of all frameworks, and of no study; found {' '.join(map(str, places))}; valid: nothing behind it "
            "(those of a study are among its tables)"
        )
    report_outputs()
    from workflow.report.framework_tables import facts_table, in_parts
    from workflow.report.terminal import print_table

    table = facts_table()
    if wanted.out is not None or wanted.as_json:
        _put(table, wanted)
        return
    for part in in_parts(table):
        print_table(part)


def _show_table(analysis: Analysis, name: str, wanted: Wanted) -> None:
    from workflow.report.tables import TABLES

    _put(TABLES[name](analysis), wanted)


def _put(table: Table, wanted: Wanted) -> None:
    """Print it, or write its files below `out`."""
    from workflow.report.formats import to_values
    from workflow.report.terminal import print_table

    if wanted.out is not None:
        report_outputs().write_table(table, wanted.out)
    if wanted.as_json:
        output.json_value(to_values(table))
    elif wanted.out is not None:
        output.line(f"{table.name}: {wanted.out / 'tables'}")
    else:
        print_table(table)


def _write(study: Path, site: str | None, places: Sequence[Path], out: Path | None) -> Analysis:
    results = results_dirs(study, site, places, out)
    out = out or results[0]
    outputs = report_outputs()
    with waiting("tables") as now:
        now("reading the records")
        analysis: Analysis = outputs.write_collected(results, out)
        now("writing")
        outputs.write_tables(analysis, out)
    output.line(f"{analysis.study}: {analysis.summary.closing_line()}")
    output.line(f"tables: {out / 'tables'}")
    return analysis


def _analysed(results: Sequence[Path]) -> Analysis:
    """Compute the analysis of the records as they are now, in memory: files that snakemake made stay as new as it left them."""
    report_outputs()
    from workflow.report.analysis import analyse
    from workflow.report.collect import collect

    with waiting("tables: reading the records"):
        return analyse(collect(results))


def _print(analysis: Analysis, out: Path, as_json: bool) -> None:
    from workflow.report.formats import to_values
    from workflow.report.tables import baseline_text, speedup
    from workflow.report.terminal import print_speedup

    page = out / PAGE_FILE if (out / PAGE_FILE).exists() else None
    if not as_json:
        print_speedup(analysis, page)
        return
    values = to_values(speedup(analysis))
    output.json_value(
        {
            "study": analysis.study,
            "baseline": baseline_text(analysis),
            "runs": analysis.summary.num_runs,
            "ends": dict(analysis.summary.ends),
            "speedup": values["rows"],
            "marks": values["marks"],
            "report": str(page) if page else None,
        }
    )
