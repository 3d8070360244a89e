"""Make tables of records for `slipway tables`, also while runs are missing or failed, and with plots and page for `slipway report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from base.errors import ConfigError, RecordError
from base.humanize import choices
from workflow.commands.chosen_study import report_outputs, results_as_they_are, results_dirs
from workflow.commands.options import DEFAULT_STUDY, PlacesArgument, SiteOption, StudyOption
from workflow.commands.watching import output
from workflow.report.files import EVIDENCE, PAGE_FILE, TABLE_NAMES, without_garbage_collection

if TYPE_CHECKING:
    from workflow.report.analysis import Analysis
    from workflow.report.table_type import Table

FACTS: Final = "framework-facts"
ACCURACY: Final = "time-to-accuracy"
MAX_SAMPLES: Final = 1e18
SamplesOption = Annotated[float, typer.Option("--samples", help="Samples or tokens of the run whose predicted hours are shown.")]
TargetOption = Annotated[float | None, typer.Option("--target", help="Accuracy of the table time-to-accuracy, such as 0.9.")]
OF_MODELS: Final = ("model-facts", "convolutions")
"""Tables that need no study: without one they have all networks, or those that are named."""


@without_garbage_collection()
def main(  # noqa: PLR0913 - its options
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[TABLE] [STUDY | DIR...]",
            help=f"A table by its name ({', '.join((*TABLE_NAMES, EVIDENCE))}); then the study file, or results directories.",
        ),
    ] = None,
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Where records, tables and page lie; default: the first directory.")] = None,
    show: Annotated[bool, typer.Option("--show", help="Write nothing; print the speed-up table.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same for programs: write nothing, print it as JSON.")] = False,
    samples: SamplesOption = 1e6,
    target: TargetOption = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 19 if a run failed, was prevented, is missing or unreadable.")] = False,
) -> None:
    """Make the tables from whatever records there are, or print one.

    With --show it prints the speed-up and writes nothing. With the name of a table as first word it prints that table alone, as
    JSON with `--json`; with `--out` it writes it. `framework-facts` needs no study; `model-facts` and `convolutions` need none
    either and take names of networks. `scaling-evidence` writes one page for an application to a computing centre, as HTML.

    Without study.json, `--show`, `--json`, a single table and DIR are refused (exit 19); `slipway tables STUDY` writes it anew.
    Exit 11: the libraries of the report are not installed.
    """
    name, rest = _split_table_name(places or [])
    if name == FACTS:
        _show_facts(rest, out, as_json)
        return
    if name in OF_MODELS and study == DEFAULT_STUDY and (networks := _networks(rest)) is not None:
        _show_networks(name, networks, out, as_json)
        return
    refuse_samples(samples)
    if target is not None and not (name == ACCURACY and 0 < target <= 1):
        raise ConfigError(f"--target {target:g}: valid: above 0, to 1, for the table {ACCURACY}")
    if name is None and not (show or as_json):
        analysis = _write(study, site, rest, out)
    else:
        results = results_as_they_are(study, site, rest)
        analysis = analysis_of(results)
        if name == EVIDENCE:
            _output_evidence(analysis, out or results[0], samples, as_json)
        elif name is not None:
            output_table(_table(analysis, name, samples, target), out, as_json)
        else:
            _print(analysis, out or results[0], as_json)
    summary = analysis.summary
    if strict and summary.ok < summary.num_runs:
        raise RecordError(f"{analysis.study}: {summary.closing_line()}; with --strict every run must be ok")


def _split_table_name(places: Sequence[Path]) -> tuple[str | None, Sequence[Path]]:
    """Return the name of a table, or None, and the places. A file or directory of that name comes first.

    Raises ConfigError for a word that is neither, and no path.
    """
    names = (*TABLE_NAMES, EVIDENCE)
    for index, place in enumerate(places):
        word = str(place)
        if place.exists():
            continue
        if word in names:
            return word, [*places[:index], *places[index + 1 :]]
        if word == place.name and not place.suffix:
            raise ConfigError(f"{word!r} is no table, and no file or directory here; {choices(word, names)}")
    return None, places


def _show_facts(places: Sequence[Path], out: Path | None, as_json: bool) -> None:
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
    if out is not None or as_json:
        output_table(table, out, as_json)
        return
    for part in in_parts(table):
        print_table(part)


def _networks(places: Sequence[Path]) -> list[str] | None:
    """Return the networks that are named, all where nothing is; None for a study or directories. Raises ConfigError for a word that is none
    of these."""
    from containers.models.facts import NETWORKS

    words = [str(place) for place in places]
    if not set(words) <= set(NETWORKS) and any(place.exists() or place.suffix or place.name != str(place) for place in places):
        return None
    if unknown := [word for word in words if word not in NETWORKS]:
        raise ConfigError(f"{unknown[0]!r} is no network, and no file or directory here; {choices(unknown[0], NETWORKS)}")
    return words or list(NETWORKS)


def _show_networks(name: str, networks: Sequence[str], out: Path | None, as_json: bool) -> None:
    report_outputs()
    from workflow.report.model_tables import CONVOLUTIONS, convolutions, model_facts

    output_table((convolutions if name == CONVOLUTIONS else model_facts)(networks), out, as_json)


def refuse_samples(samples: float) -> None:
    """Raise ConfigError for what is no number of samples."""
    if not 1 <= samples <= MAX_SAMPLES:
        raise ConfigError(f"--samples {samples:g}: valid: 1 to {MAX_SAMPLES:g}")


def _output_evidence(analysis: Analysis, out: Path, samples: float, as_json: bool) -> None:
    """Write the page for an application as HTML, or print it as JSON."""
    from base.publish import publish
    from workflow.report.formats import to_values
    from workflow.report.scaling_evidence import evidence, to_html

    found = evidence(analysis, samples)
    if as_json:
        output.json_value({**to_values(found.table), "sections": dict(found.sections)})
        return
    folder = out / "tables"
    folder.mkdir(parents=True, exist_ok=True)
    publish(folder / f"{EVIDENCE}.html", to_html(found).encode())
    output.line(f"{EVIDENCE}: {folder / EVIDENCE}.html")


def _table(analysis: Analysis, name: str, samples: float, target: float | None) -> Table:
    """Make one table. `samples`: those whose hours are predicted; `target`: the accuracy to be reached."""
    from workflow.report.prediction_table import prediction
    from workflow.report.study_tables import TABLES
    from workflow.report.time_to_accuracy import time_to_accuracy

    if name == "prediction":
        return prediction(analysis, samples=samples)
    return time_to_accuracy(analysis, target) if name == ACCURACY else TABLES[name](analysis)


def output_table(table: Table, out: Path | None, as_json: bool) -> None:
    """Print a table, as JSON for programs; with `out` write its files there."""
    from workflow.report.formats import to_values
    from workflow.report.terminal import print_table

    if out is not None:
        report_outputs().write_table(table, out)
    if as_json:
        output.json_value(to_values(table))
    elif out is not None:
        output.line(f"{table.name}: {out / 'tables'}")
    else:
        print_table(table)


def _write(study: Path, site: str | None, places: Sequence[Path], out: Path | None) -> Analysis:
    results = results_dirs(study, site, places, out)
    out = out or results[0]
    outputs = report_outputs()
    with output.waiting("tables") as now:
        now("reading the records")
        analysis: Analysis = outputs.write_collected(results, out)
        now("writing")
        outputs.write_tables(analysis, out)
    output.line(f"{analysis.study}: {analysis.summary.closing_line()}")
    output.line(f"tables: {out / 'tables'}")
    return analysis


def analysis_of(results: Sequence[Path]) -> Analysis:
    """Compute the analysis of the records as they are now, in memory: files that snakemake made stay as new as it left them."""
    report_outputs()
    from workflow.report.analysis import analyse
    from workflow.report.collect import collect

    with output.waiting("tables: reading the records"):
        return analyse(collect(results))


def _print(analysis: Analysis, out: Path, as_json: bool) -> None:
    from workflow.report.formats import to_values
    from workflow.report.study_tables import baseline_text, speedup
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


# `slipway report`: tables, plots and one page that opens without network.


@without_garbage_collection()
def report(
    places: PlacesArgument = None,
    study: StudyOption = DEFAULT_STUDY,
    site: SiteOption = None,
    out: Annotated[Path | None, typer.Option("--out", help="Where everything goes; default: the first directory.")] = None,
) -> None:
    """Write tables, plots and the page report.html, which opens without network.

    With `--out DIR` it works for results that you may only read.
    """
    results = results_dirs(study, site, places or [], out)
    target = out or results[0]
    outputs = report_outputs()
    with output.waiting("report: tables, plots and page"):
        analysis = outputs.write_all(results, target)
    output.line(f"{analysis.study}: {analysis.summary.closing_line()}")
    output.line(f"report: {target / outputs.PAGE_FILE}")
