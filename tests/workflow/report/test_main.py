"""The commands of the rules: files, exit codes, messages; and the table on a terminal."""

import io
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from base.process import run
from tests.workflow.report.builder import collected, failed, make_record, scaling_cells, write_records, write_study
from workflow.report.__main__ import main
from workflow.report.analysis import Analysis
from workflow.report.files import PLOT_FILES, PLOT_NAMES, TABLE_FILES, TABLE_NAMES, TABLE_SUFFIXES
from workflow.report.formats import FORMATS
from workflow.report.outputs import read_or_collect, read_plots, write_all
from workflow.report.plots import PLOTS
from workflow.report.study_tables import TABLES
from workflow.report.terminal import BRACKETS, print_speedup


@pytest.fixture
def results(tmp_path: Path) -> Path:
    cells = scaling_cells(nodes=[1, 2, 4])
    directory = write_study(tmp_path / "results" / "digits", cells, repeats=1)
    write_records(directory, [make_record(cells[0]), make_record(cells[1], oversubscribed=True), failed(cells[2])])
    return directory


def files(directory: Path) -> set[str]:
    found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    return {name for name in found if not name.startswith(("runs/", "study."))}


def test_the_names_that_the_snakefile_knows_are_those_that_are_written() -> None:
    assert (tuple(TABLES), tuple(FORMATS), tuple(PLOTS)) == (TABLE_NAMES, TABLE_SUFFIXES, PLOT_NAMES)


@pytest.mark.processes
def test_what_others_import_is_light() -> None:
    """As the supervisor does."""
    modules = "workflow.report.files, workflow.report.__main__, workflow.run.record.reading, workflow.study.publishing, workflow.study.site"
    code = f"import sys, {modules}; print({{'polars', 'altair', 'jinja2', 'pydantic', 'yaml'}} & set(sys.modules))"
    assert run([sys.executable, "-c", code], timeout_s=60).stdout.strip() == "set()"


def test_tables_are_of_what_was_collected_and_out_leaves_the_results_alone(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "elsewhere"
    assert main(["tables", "--results", str(results), "--out", str(out)]) == 0
    assert (files(results), files(out)) == (set(), {"records.parquet", *TABLE_FILES})
    assert main(["collect", "--results", str(results)]) == 0
    assert files(results) == {"records.parquet"}
    assert "2 of 3 runs ok, 1 failed (1 oom)" in capsys.readouterr().err
    (results / "runs").rename(results / "gone")
    assert main(["tables", "--results", str(results)]) == 0
    assert "1 (baseline)" in (results / "tables" / "speedup.md").read_text()
    assert {*TABLE_FILES} < files(results)


def test_errors_end_with_a_message_and_the_code_of_their_class(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "--results", str(tmp_path / "nowhere")]) == 19
    assert "is not a directory" in capsys.readouterr().err
    with pytest.raises(SystemExit) as usage:
        main(["collect"])
    assert usage.value.code == 2


def shown(analysis: Analysis, page: Path | None = None, **terminal: Any) -> str:
    """What the terminal shows; it has lost a row for each that failed."""
    out = io.StringIO()
    console = Console(**{"file": out, "width": 120, "color_system": None, **terminal})
    assert print_speedup(analysis, page, console) == analysis.summary.failed_rows
    return out.getvalue()


def test_the_terminal_shows_table_marks_failures_and_where_the_page_is(tmp_path: Path) -> None:
    cells = scaling_cells(nodes=[1, 2, 4])
    records = [make_record(cells[0]), make_record(cells[1], oversubscribed=True), failed(cells[2])]
    text = shown(collected(tmp_path / "digits", records, cells, repeats=1), Path("/x\u202e/report.html"))
    for words in (
        "1 (baseline)",
        "2.000 (100.0 %) n=1, no CIᵃ",
        "oom",
        "ᵃ oversubscribed: nodes, processes or threads",
        "2 of 3 runs ok, 1 failed (1 oom)",
        "report: /x\\u202e/report.html",
    ):
        assert words in text, words
    assert BRACKETS not in text  # no number has any


def test_a_terminal_without_room_says_how_wide_the_table_is(tmp_path: Path) -> None:
    analysis = collected(tmp_path / "digits", [make_record(scaling_cells(nodes=[1])[0])], repeats=1)
    wide, narrow = (shown(analysis, width=width, force_terminal=True) for width in (200, 24))
    widest = max(map(len, wide.splitlines()[1:3]))
    assert "less -S" not in wide
    assert f"Each row is one line in {widest} columns:" in " ".join(narrow.split())
    assert "| less -S" in narrow


def test_the_terminal_says_once_what_brackets_are(tmp_path: Path) -> None:
    cells = scaling_cells(nodes=[1, 2])
    records = [make_record(cell, repeat) for cell in cells for repeat in (1, 2, 3)]
    assert shown(collected(tmp_path / "digits", records)).count(f"\n {BRACKETS}\n") == 1


def test_the_terminal_tells_rates_where_there_is_one_size(tmp_path: Path) -> None:
    cells = scaling_cells(framework=["pytorch", "jax"], nodes=[1])
    records = [make_record(cell, repeat, step_s=step_s) for cell, step_s in zip(cells, (0.1, 0.2), strict=True) for repeat in (1, 2, 3)]
    text = shown(collected(tmp_path / "digits", records))
    rows = {line.split()[1]: line for line in text.splitlines() if line.startswith("lenet")}
    assert "Samples/s" in text
    assert "320.0" in rows["pytorch"]
    assert "160.0" in rows["jax"]


def test_the_terminal_says_which_baseline_a_number_is_measured_against(tmp_path: Path) -> None:
    cells = scaling_cells(nodes=[1, 2], gpus_per_node=[1, 2])
    text = shown(collected(tmp_path / "digits", map(make_record, cells), repeats=1))
    assert "against 1\N{MULTIPLICATION SIGN}2" in text
    assert "Against: the baseline of a number, as nodes" in text
    assert "Nodes are shares of one machine, not machines: its cores in 2 parts" in text


@pytest.mark.slow
def test_all_writes_every_file(results: Path) -> None:
    assert main(["all", "--results", str(results)]) == 0
    assert files(results) == {"records.parquet", "report.html", *TABLE_FILES, *PLOT_FILES}
    assert (results / "report.html").stat().st_size < 1_000_000
    before = {name: (results / name).read_bytes() for name in files(results)}
    assert main(["all", "--results", str(results)]) == 0
    assert before == {name: (results / name).read_bytes() for name in files(results)}, "the same records give the same bytes"


@pytest.mark.slow
def test_page_takes_fresh_plots_and_makes_stale_ones_anew(results: Path) -> None:
    for what in ("collect", "plots"):
        assert main([what, "--results", str(results)]) == 0
    plot = results / "plots" / "throughput.svg"
    plot.write_text(plot.read_text().replace("Throughput", "Fresh plot"))
    assert main(["page", "--results", str(results)]) == 0
    assert "Fresh plot" in (results / "report.html").read_text()
    assert main(["collect", "--results", str(results)]) == 0
    assert main(["page", "--results", str(results)]) == 0
    assert "Fresh plot" not in (results / "report.html").read_text()


def test_nothing_is_waited_for_where_a_file_should_lie(results: Path) -> None:
    write_all([results], results)
    assert read_plots(results) is not None
    for name in ("plots/loss.svg", "records.parquet"):
        (results / name).unlink()
    os.mkfifo(results / "plots/loss.svg")
    (results / "records.parquet").symlink_to("/dev/zero")
    assert read_plots(results) is None, "they are made again"
    assert read_or_collect([results], results).summary.num_runs == 3, "the records are collected again"
