"""The tables: what stands in which cell, in every format, and that hostile text stays text."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Final

import pytest
from rich.console import Console

from base.errors import RecordError
from containers.frameworks import framework_folders, load_framework
from containers.frameworks.spec import load_other_facts
from tests.workflow.report.builder import (
    CPU,
    GPU,
    analysed,
    collected,
    csv_rows,
    drift_of,
    failed,
    log_sample,
    make_cell,
    make_record,
    plausible_records,
    scaling_cells,
    write_records,
    write_study,
)
from tests.workflow.report.poison import FORMULAS
from tests.workflow.run.valid import validate_record
from workflow.report.analysis import Analysis
from workflow.report.cells import MARKS, Estimate, ratio
from workflow.report.collect import collect, read_records
from workflow.report.collect import write_records as write_parquet
from workflow.report.formats import FORMATS, to_csv, to_html, to_latex, to_markdown, to_values
from workflow.report.framework_tables import facts_table
from workflow.report.outputs import read_or_collect
from workflow.report.page import page
from workflow.report.study_tables import TABLES, all_tables
from workflow.report.table_type import MAX_ROWS, Column, Table, estimate_text, numbers, raised, significant, words
from workflow.report.terminal import print_speedup
from workflow.run.record.rate import NOT_COMPARED

HOSTILE: Final = "=1+1</td><script>alert(1)</script>|\\&$_%`\x1b[2J\n<img src=http://x>"


def cells_of(table: Table, column: str) -> list[str]:
    index = [one.key for one in table.columns].index(column)
    return [row[index].text for row in table.rows]


def marks_of(table: Table, column: str) -> list[set[str]]:
    index = [one.key for one in table.columns].index(column)
    return [set(row[index].marks) for row in table.rows]


@pytest.fixture
def analysis(tmp_path: Path) -> Analysis:
    """lenet at batch 2 on 1, 2 and 4 processes; the last one out of memory."""
    cells = scaling_cells(batch_size=[2], nodes=[1, 2, 4])
    records = [make_record(cells[0], repeat, step_s=0.1 * noise) for repeat, noise in enumerate((0.99, 1.0, 1.01), 1)]
    records += [make_record(cells[1], repeat, step_s=0.125 * noise) for repeat, noise in enumerate((1.0, 1.01, 0.99), 1)]
    records += [failed(cells[2], repeat) for repeat in (1, 2)]
    return collected(tmp_path / "digits", records, cells)


def test_speedup_table(analysis: Analysis) -> None:
    table = TABLES["speedup"](analysis)
    assert [column.title for column in table.columns] == ["Model", "Scaling", "Batch", "1 process", "2 processes", "4 processes"]
    assert [value.text for value in table.rows[0]] == ["lenet", "weak", "2 each", "1 (baseline)", "1.600 (80.0 %) ±0.070", "missing, oom"]
    assert "nodes: 1" in table.caption
    assert "All rows: pytorch, digits, train, fp32, nchw, cpu on Intel" in table.caption


def test_the_caption_names_no_program_where_there_are_several(tmp_path: Path) -> None:
    cells = [make_cell(framework=name, model=name) for name in ("a", "b")]
    study = collected(tmp_path / "s", [make_record(cell, 1) for cell in cells], cells)
    assert "All rows: digits, train, fp32, nchw" in TABLES["speedup"](study).caption


@pytest.mark.parametrize(
    ("lost", "caption", "methods"),
    [
        ({}, "(Student's t on logarithms of the runs' numbers; ratios paired by repeat)", ["", "paired", "paired"]),
        ({2: 1}, "; 1 of 2 ratios paired by repeat; 1 of 2 ratios by Welch, which can be much too wide, since", ["", "paired", "welch"]),
        ({0: 4}, "in the same repeats (slipway run --retry failed completes them))", ["", "welch", "welch"]),
        ({1: 2, 2: 2, 0: 2}, "; ratios paired by repeat)", ["", "paired", "paired"]),
    ],
)
def test_intervals_of_ratios_are_paired_where_the_blocks_are_complete(
    tmp_path: Path, lost: Mapping[int, int], caption: str, methods: Sequence[str]
) -> None:
    """Four repeats of each cell; `lost` names a repeat of a cell that was not measured."""
    cells = scaling_cells(batch_size=[2], nodes=[1, 2, 4])
    records = [
        failed(cell, repeat) if lost.get(place) == repeat else make_record(cell, repeat, step_s=0.1 * (1 + 0.02 * repeat + 0.01 * place))
        for place, cell in enumerate(cells)
        for repeat in (1, 2, 3, 4)
    ]
    study = collected(tmp_path / "digits", records, cells, repeats=4)
    assert all(caption in TABLES[name](study).caption for name in ("speedup", "times"))
    assert cells_of(TABLES["scaling"](study), "interval") == methods


def test_time_table(analysis: Analysis) -> None:
    table = TABLES["times"](analysis)
    assert cells_of(table, "runs") == ["3/3", "3/3", "0/3"]
    assert cells_of(table, "step_p50_s") == ["100", "125", "–"]
    assert cells_of(table, "samples_per_s") == ["20.00 ±0.50", "32.00 ±0.80", "–"]
    assert cells_of(table, "speedup") == ["1", "1.600 ±0.070", "–"]
    assert cells_of(table, "efficiency") == ["100.0 %", "80.0 %", "–"]
    assert cells_of(table, "note") == ["", "", "missing, oom"]
    assert cells_of(table, "run_s") == ["27.4", "32.8", "–"]  # 215 steps, and 5.9 s of staging, starting and pushing
    assert cells_of(table, "training_s") == ["21.5", "26.9", "–"]
    assert [column.title for column in table.columns if column.key == "run_s"] == ["Run [s]"]


@pytest.mark.parametrize(("step_s", "title", "shown"), [(2.0, "Run [s]", "436"), (4.0, "Run [min]", "14.4"), (200.0, "Run [h]", "11.9")])
def test_the_unit_of_a_column_of_times_follows_the_longest(tmp_path: Path, step_s: float, title: str, shown: str) -> None:
    table = TABLES["times"](collected(tmp_path / "digits", [make_record(make_cell(), step_s=step_s)], repeats=1))
    assert title in [column.title for column in table.columns]
    assert cells_of(table, "run_s") == [shown]
    assert csv_rows(table)[0]["run_s"].startswith(str(int(215 * step_s + 5)))


def test_dlbench_view(analysis: Analysis) -> None:
    table = TABLES["dlbench"](analysis)
    assert cells_of(table, "batch_2") == ["0.100(24.5)", "0.125(29.9)", "missing, oom"]


def test_failures_table(analysis: Analysis) -> None:
    table = TABLES["failures"](analysis)
    assert cells_of(table, "end") == ["oom", "oom", "missing"]
    assert cells_of(table, "reason") == ["rank 1 on node01: oom", "rank 1 on node01: oom", "not run yet"]
    assert cells_of(table, "last_lines")[0] == "allocating 2 GiB\nout of memory"
    assert cells_of(table, "exit")[0] == "41"
    assert cells_of(table, "files")[0].endswith("-r1/attempts/1/")
    assert analysis.summary.closing_line() == "6 of 9 runs ok, 2 failed (2 oom), 1 missing"
    assert analysis.summary.failed_rows == 2


def test_budget_table_adds_up(analysis: Analysis) -> None:
    table = TABLES["budget"](analysis)
    for row in table.rows:
        raw = {column.key: value.raw for column, value in zip(table.columns, row, strict=True)}
        five = [raw[f"{step}_s"] for step in ("stage", "train", "result", "push", "release")]
        assert sum(value for value in five if isinstance(value, float)) == pytest.approx(raw["run_s"])
    assert marks_of(table, "run_s") == [set(), set()]


def test_arguments_of_a_program_are_columns_for_people_and_for_programs(tmp_path: Path) -> None:
    program = {"name": "gpt", "command": ["x"], "version": 1}
    cells = [
        make_cell(nodes=nodes, program=program, framework="gpt", model="gpt", args={"width": width, "fast": True, "nodes": width})
        for nodes in (1, 2)
        for width in (8, 16)
    ]
    analysis = collected(tmp_path / "digits", plausible_records(cells))
    rows = csv_rows(TABLES["scaling"](analysis))
    assert {(row["args.width"], row["args.fast"]) for row in rows} == {("8", "true"), ("16", "true")}
    assert [column.title for column in TABLES["speedup"](analysis).columns][:4] == ["Model", "Args.nodes", "Width", "Scaling"]


def test_scaling_table_has_every_comparison_with_its_numbers(analysis: Analysis) -> None:
    rows = csv_rows(TABLES["scaling"](analysis))
    assert [(row["scaling"], row["reason"]) for row in rows] == [("baseline", ""), ("weak", ""), ("weak", "missing, oom")]
    assert float(rows[1]["speedup"]) == pytest.approx(1.6)
    assert float(rows[1]["speedup_low"]) < 1.6 < float(rows[1]["speedup_high"])
    assert float(rows[1]["step_s"]) == pytest.approx(0.125, rel=1e-4)
    assert rows[2]["speedup"] == "", "a missing number is empty, never 0"


NETWORK = {
    "seconds": 0.2, "pairs": 2, "connect_ms_max": 1.0, "rate_mbit_median": 900.0, "rate_mbit_min": 90.0,
    "slowest": {"from": "n2", "to": "n1"}, "findings": ["n2 is slow on the network"],
}  # fmt: skip


def node_of(load: dict[str, Any]) -> dict[str, Any]:
    return {"name": "local-0", "hostname": "node00", "cpu_model": CPU, "gpus": [], "load": load}


def load_of(others_cores: float | None) -> dict[str, Any]:
    """Of two cores, as far as tables read it."""
    return {"cores": 2, "before": None, "during": {"seconds": 40.0, "others_cores": others_cores}}


LOUD: Final = "local-0: others used 1.3 of 2 cores while it measured"


WINDOWS: list[tuple[dict[str, Any] | None, str | None]] = [
    ({"rank": 0, "window_s": 40.0, "least_s": least_s, "most_s": most_s}, mark)
    for least_s, most_s, mark in [
        (39.0, 41.0, None),
        (36.0, 44.0, None),
        (39.0, 44.1, "unchecked"),
        (35.9, 41.0, "unchecked"),
        (120.0, 121.0, "unchecked"),
        (13.0, 13.5, "unchecked"),
        (None, None, "unchecked"),
    ]
]
WINDOWS += [
    ({"rank": 0, "window_s": 40.0, "least_s": 39.0, "most_s": 41.0, "together_s": together_s}, mark)
    for together_s, mark in [(39.9, None), (44.4, None), (44.6, "staggered"), (None, None)]
]
WINDOWS += [(None, None)]
"""The last one is of a version that did not look."""


@pytest.mark.parametrize(
    ("changes", "mark"),
    [
        ({"performance.num_measured_steps": 99, "performance.samples": 99 * make_cell()["global_batch_size"]}, "short"),
        ({"performance.samples": 201 * make_cell()["global_batch_size"]}, "samples"),
        ({"performance.samples": 200 * make_cell()["global_batch_size"] - 1}, "samples"),
        ({"performance.samples": None}, None),  # of a version that did not tell
        ({"performance.assumed": ["samples"]}, "assumed"),
        ({"performance.assumed": ["steps"]}, "assumed"),
        ({"performance.assumed": []}, None),
        ({"performance.window_s": 29.9}, "short"),
        ({"oversubscribed": True}, "oversubscribed"),
        ({"exclusive": False}, "shared"),
        ({"busy": ["local-0: others used 1.3 of 2 cores while it measured"]}, "busy"),
        ({"busy": [LOUD], "warnings": [LOUD]}, "busy"),  # one cause, one mark
        ({"nodes": [node_of(load_of(0.05))]}, None),
        ({"nodes": [node_of(load_of(None))]}, "unwatched"),
        ({"nodes": [node_of({"cores": 2, "before": None, "during": None})]}, "unwatched"),
        ({"nodes": [{**node_of({}), "load": None}]}, "unwatched"),
        ({"nodes": [{key: value for key, value in node_of({}).items() if key != "load"}]}, None),  # of a version that did not watch
        *[({"window_seen": seen}, mark) for seen, mark in WINDOWS],
        ({"performance.drift": drift_of(0.09, 0.01)}, "drift"),
        ({"performance.drift": drift_of(-0.09, 0.01)}, "drift"),
        ({"performance.drift": drift_of(0.09, 0.1)}, None),  # chance does that
        ({"performance.drift": drift_of(0.009, 0.0001)}, None),  # certain, and small
        ({"performance.drift_ratio": 1.5, "performance.drift": None}, None),  # of an older record, alone
        *[({"performance.uneven_cause": cause}, cause) for cause in ("stalls", "input", "stragglers", "gaps")],
        ({"performance.rate_to_median_ratio": 1.051}, "uneven"),
        ({"performance.rate_to_median_ratio": 0.949}, "uneven"),
        ({"performance.rate_to_median_ratio": 0.951}, None),
        ({"performance.rate_to_median_ratio": 0.5, "performance.uneven_cause": "input"}, "input"),
        ({"performance.window_steps_ratio": 1.021}, "window"),
        ({"performance.window_steps_ratio": 0.979}, "window"),
        ({"preflight": NETWORK}, "network"),
        ({"preflight": {**NETWORK, "findings": []}}, None),
        ({"resumed_from": {"attempt": 1, "step": 40, "used_s": 60.0}}, "resumed"),
        ({"warnings": ["ranks disagree on torch_version"]}, "warned"),
        ({"training.replicas": {"checksum": "ab", "ranks": 2, "apart": [1]}}, "replicas"),
        ({"training.late_ranks": [1]}, "replicas"),
        ({"training.late_ranks": []}, None),
        ({"training.replicas": None, "training.late_ranks": [1], "warnings": [NOT_COMPARED]}, "replicas"),
        ({"training.replicas": None, "warnings": [NOT_COMPARED]}, None),  # it is a sentence of the caption
        ({"training.replicas": None, "warnings": [NOT_COMPARED, "a clock is wrong"]}, "warned"),
        ({"training.replicas": None}, None),  # of an older record, or of a program that tells no checksum
        ({"nodes": [{"hostname": "x", "cpu_model": "another", "gpus": []}]}, "hardware"),
        ({"threads_per_rank": 1}, "threads"),
        ({"dataset.digest": "cd" * 32}, "dataset"),
        ({"provenance.cudnn_benchmark": True}, None),  # the others are of a version that did not tell
        ({"provenance.git_sha": "1234567"}, "commit"),
        ({"provenance.git_dirty": True}, "changed"),
        ({"provenance.torch_version": "1.0"}, "software"),
        ({}, None),
        ({"performance.drift_ratio": 1.019}, None),  # one of three runs
        ({"performance.window_steps_ratio": 1.019}, None),
        ({"performance.window_steps_ratio": None}, None),
        ({"performance.window_s": 30.0, "performance.step_s.mean": 0.125}, None),  # the slowest rank of each step: longer than any window
        ({"performance.window_s": 0.5, "performance.window_steps_ratio": 0.97}, "short"),  # 15 ms: one turn of the scheduler
        ({"performance.drift_ratio": None, "exclusive": None}, None),
    ],
)
def test_marks_stand_beside_the_number(tmp_path: Path, changes: dict[str, Any], mark: str | None) -> None:
    cell = make_cell()
    analysis = collected(tmp_path / "digits", [make_record(cell, 1, **changes), make_record(cell, 2), make_record(cell, 3)])
    table = TABLES["times"](analysis)
    assert marks_of(table, "samples_per_s") == [{mark} - {None}]
    assert [set(value.marks) for value in TABLES["dlbench"](analysis).rows[0]][-1] == {mark} - {None}, "one rule for all tables"
    assert [letter for letter, _, _ in table.footnotes()] == (["a"] if mark else [])
    for to_text, sign in (
        (to_markdown, "ᵃ"),
        (to_html, "<sup>a</sup>"),
        (to_latex, r"\textsuperscript{a}"),
        (to_csv, f"samples_per_s: {mark}"),
    ):
        assert (sign in to_text(table)) == bool(mark)


def test_the_caption_counts_the_runs_whose_ranks_nobody_compared(tmp_path: Path) -> None:
    cell = make_cell(nodes=2)
    records = [make_record(cell, 1, warnings=[NOT_COMPARED]), make_record(cell, 2), make_record(cell, 3)]
    words = "1 of 3 runs have no checksum of their parameters, so nobody knows whether their ranks trained one network together."
    for name in ("times", "speedup"):
        assert words in TABLES[name](collected(tmp_path / name, records, repeats=3)).caption
        assert "nobody knows" not in TABLES[name](collected(tmp_path / f"{name}-all", records[1:])).caption
    with (console := Console(width=200)).capture() as capture:
        print_speedup(collected(tmp_path / "terminal", records, repeats=3), console=console)
    assert words in capture.get()


def test_what_all_runs_have_in_common_is_not_more_certain_for_it(tmp_path: Path) -> None:
    """Bunched input in the same phase in each of ten runs tilts all lines alike, and moves other slow changes as much."""
    alike = [make_record(make_cell(), repeat, **{"performance.drift": drift_of(0.09, 0.1)}) for repeat in range(1, 11)]
    assert "drift" not in collected(tmp_path / "alike", alike, repeats=10).cells[0].marks
    chance = [drift_of(0.09, 0.1 if repeat % 2 else -0.1) for repeat in range(10)]
    noisy = [make_record(make_cell(), repeat, **{"performance.drift": found}) for repeat, found in enumerate(chance, 1)]
    assert "drift" in collected(tmp_path / "noisy", noisy, repeats=10).cells[0].marks


def test_a_cell_says_how_many_allocations_and_sets_of_nodes_stand_behind_it(tmp_path: Path) -> None:
    cell = make_cell(nodes=2)
    hosts = (("n1", "n2"), ("n2", "n1"), ("n3", "n4"), ("n5", "n6"))
    records = [
        make_record(cell, repeat, job_id=job, nodes=[{"hostname": name, "cpu_model": "x", "gpus": []} for name in names])
        for repeat, (job, names) in enumerate(zip(("7", "7", "8", "9"), hosts, strict=True), 1)
    ]
    unmeasured = failed(cell, 4, job_id="9")
    table = TABLES["times"](collected(tmp_path / "digits", [*records[:3], unmeasured]))
    assert (cells_of(table, "allocations"), cells_of(table, "node_sets")) == (["2"], ["2"])


def test_a_budget_that_does_not_close_is_marked(tmp_path: Path) -> None:
    analysis = collected(tmp_path / "digits", [make_record(make_cell(), 1, run_s=100.0)])
    assert marks_of(TABLES["budget"](analysis), "run_s") == [{"budget"}]


def test_a_cell_of_which_a_run_failed_says_so(tmp_path: Path) -> None:
    cell = make_cell()
    analysis = collected(tmp_path / "digits", [make_record(cell, 1), make_record(cell, 2), failed(cell, 3, status="killed")])
    table = TABLES["times"](analysis)
    assert cells_of(table, "runs") == ["2/3"]
    assert marks_of(table, "runs") == [{"partial"}]
    assert cells_of(table, "samples_per_s") == ["320.0 n=2, no CI"]
    assert analysis.summary.closing_line() == "2 of 3 runs ok, 1 prevented (1 killed)"


def test_only_keys_that_differ_are_columns(tmp_path: Path) -> None:
    cells = scaling_cells(comm_hook=["none", "fp16"], nodes=[1, 2])
    cells += [
        make_cell(nodes=nodes, optimizer={"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0}) for nodes in (1, 2)
    ]
    table = TABLES["speedup"](collected(tmp_path / "digits", [make_record(cell) for cell in cells]))
    assert [column.key for column in table.columns][:3] == ["model", "comm_hook", "optimizer.learning_rate"]
    assert [value.text for value in table.rows[2]][:3] == ["lenet", "none", "0.1"]


def test_shapes_of_one_number_of_processes_are_told_apart(tmp_path: Path) -> None:
    cells = scaling_cells(nodes=[1, 2], gpus_per_node=[1, 2], device=["cuda"])
    table = TABLES["speedup"](collected(tmp_path / "digits", [make_record(cell) for cell in cells]))
    assert [column.title for column in table.columns][3:] == ["1 GPU", "2 GPUs (1×2)", "2 GPUs (2×1)", "4 GPUs"]
    keys = [column.key for column in table.columns][3:]
    assert keys == ["processes_1", "processes_2_on_1_nodes", "processes_2_on_2_nodes", "processes_4"]


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_table_exists_without_a_single_run(tmp_path: Path, suffix: str) -> None:
    for table in all_tables(collected(tmp_path / "digits", [], [make_cell()])):
        assert FORMATS[suffix](table)


class Structure(HTMLParser):
    """Counts elements, and refuses what a table must not have."""

    def __init__(self) -> None:
        super().__init__()
        self.count: dict[str, int] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        assert not {name for name, _ in attrs} & {"src", "href", "style", "onclick"}


def hostile(tmp_path: Path) -> Analysis:
    cell = make_cell(model=HOSTILE, comm_hook=HOSTILE)
    reason = {"status_reason": HOSTILE, "failed_rank": {"rank": 0, "host": "\r=1", "exit_code": 1, "signal": None, "last_lines": HOSTILE}}
    record = {**failed(cell, 1, status="error", **reason), "run_id": "x-r1"}
    good = {**make_record({**cell, "nodes": 2}, 1), "run_id": "y-r1"}
    directory = tmp_path / "digits"
    cells = [{**cell, "cell_id": "x"}, {**cell, "nodes": 2, "global_batch_size": 64, "cell_id": "y"}]
    records = [{**record, "cell": cells[0]}, {**good, "cell": cells[1]}]
    return collected(directory, records, cells, repeats=1)


def test_hostile_text_is_text_in_every_format(tmp_path: Path) -> None:
    for table in all_tables(hostile(tmp_path)):
        page = to_html(table)
        structure = Structure()
        structure.feed(page)
        assert structure.count.get("script", 0) == 0
        assert structure.count.get("img", 0) == 0
        assert structure.count.get("tr", 0) in (0, len(table.rows) + 1)
        for row in csv.reader(io.StringIO(to_csv(table))):
            assert len(row) == len(table.columns) + 1
            assert not [value for value in row if value.startswith(("=", "+", "-", "@", "\t", "\r"))]
        assert "\x1b" not in "".join(to_text(table) for to_text in FORMATS.values())
        markdown = to_markdown(table)
        assert "<script" not in markdown
        bars = {len(re.findall(r"(?<!\\)\|", line)) for line in markdown.splitlines() if line.startswith("|")}
        assert len(bars) <= 1, "every row of the Markdown table has the same number of cells"


@pytest.mark.parametrize(
    ("raw", "shown"), [*((text, f"'{text}") for text in FORMULAS if text[0] != "\r"), (-1.5, "-1.5"), (None, ""), ("a=b", "a=b")]
)
def test_formulas_are_quoted_in_csv_and_numbers_are_not(raw: str | float | None, shown: str) -> None:
    table = Table(name="t", title="T", caption="", columns=(Column(key="a", title="A", values=[raw]),))
    assert csv_rows(table)[0]["a"] == shown


def test_latex_escapes_everything_that_means_something() -> None:
    table = Table(name="t", title="50 % of $x_1$", caption="", columns=(words("a", "A", ["a&b_c#{~^\\<1.5 ±0.1"]),))
    found = to_latex(table)
    assert r"50 \% of \$x\_1\$" in found
    assert r"a\&b\_c\#\{\textasciitilde{}\textasciicircum{}\textbackslash{}\textless{}1.5 $\pm$0.1 \\" in found


def test_a_table_that_carries_every_mark_has_a_letter_for_each() -> None:
    table = Table(name="t", title="T", caption="", columns=(numbers("a", "A", str, [1], [frozenset(MARKS)]),))
    assert len(set(table.letters.values())) == len(MARKS)
    assert to_html(table).count("<sup>") == 1 + len(MARKS)
    said = to_markdown(table)
    assert all(raised([letter]) in said for letter in table.letters.values())
    assert FORMATS["tex"](table).count(r"\textsuperscript") == 1 + len(MARKS)


def test_a_table_with_columns_of_different_length_is_refused() -> None:
    with pytest.raises(ValueError, match="do not have 1 values"):
        Table(name="t", title="T", caption="", columns=(words("a", "A", ["x"]), words("b", "B", [])))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.034736, "0.0347"),
        (3.31234, "3.31"),
        (9.996, "10.0"),
        (99.96, "100"),
        (921.23, "921"),
        (12345.6, "12346"),
        (0.0, "0"),
        (None, "–"),
        (1.0, "1.00"),
    ],
)
def test_significant_digits(value: float | None, shown: str) -> None:
    assert significant(value) == shown


@pytest.mark.parametrize(
    ("estimate", "shown"),
    [
        (Estimate(value=1.70712, low=1.68, high=1.741, n=3), "1.707 ±0.034"),
        (Estimate(value=1566.3, low=1510.0, high=1624.4, n=3), "1566 ±58"),
        (Estimate(value=2.0, low=2.0, high=2.0, n=3), "2.000 ±<0.001"),
        (Estimate(value=2.0, low=1.99999, high=2.00001, n=3), "2.000 ±<0.001"),
        (Estimate(value=3.06, low=2.9, high=3.16, n=3), "3.06 ±0.16"),
        (Estimate(value=1.02, low=0.4, high=2.85, n=3), "1.02 [0.400, 2.85]"),
        (Estimate(value=1.234, n=2), "1.234 n=2, no CI"),
        (None, "–"),
    ],
)
def test_the_interval_decides_the_digits(estimate: Estimate | None, shown: str) -> None:
    assert estimate_text(estimate) == shown


def test_a_baseline_that_failed_has_no_speed_up(tmp_path: Path) -> None:
    cells = scaling_cells(batch_size=[2], nodes=[1, 2])
    records = [failed(cells[0], 1, status="nan"), *(make_record(cells[1], repeat) for repeat in (1, 2, 3))]
    table = TABLES["times"](collected(tmp_path / "digits", records, cells))
    assert cells_of(table, "speedup") == ["–", "–"]


def test_no_two_columns_of_a_table_have_one_title(tmp_path: Path) -> None:
    cells = [make_cell(nodes=nodes, steps={"warmup": 10, "measured": count}) for nodes in (1, 2) for count in (100, 200)]
    analysis = collected(tmp_path / "digits", plausible_records(cells))
    for build in TABLES.values():
        titles = [column.title for column in build(analysis).columns]
        assert len(titles) == len(set(titles)), titles


# Tables `frameworks` and `framework-facts`.


def shown(table: Table) -> list[list[str]]:
    return [[value.text for value in row] for row in table.rows]


def test_frameworks_by_networks_by_processes(tmp_path: Path) -> None:
    """TensorFlow lays out memory in another way, and is in the same table; what nobody asked for has no row."""
    ours = {"pytorch": "nchw", "tensorflow": "nhwc", "keras": "nhwc", "jax": "nchw"}
    cells = [
        make_cell(framework=name, layout=layout, model=model, nodes=nodes, batch_size=32)
        for model in ("lenet", "resnet18")
        for name, layout in ours.items()
        for nodes in (1, 2)
        if not (model == "resnet18" and name in ("keras", "jax"))
    ]
    ended = [make_record(cell, step_s=0.1) for cell in cells[:-1]]
    table = TABLES["frameworks"](collected(tmp_path / "digits", [*ended, failed(cells[-1])], cells, repeats=1))
    assert [column.title for column in table.columns] == ["Model", "Framework", "Layout", "Batch", "1 process", "2 processes"]
    assert shown(table) == [
        ["lenet", "pytorch", "nchw", "32", "0.100 (320)", "0.100 (640)"],
        ["lenet", "tensorflow", "nhwc", "32", "0.100 (320)", "0.100 (640)"],
        ["lenet", "keras", "nhwc", "32", "0.100 (320)", "0.100 (640)"],
        ["lenet", "jax", "nchw", "32", "0.100 (320)", "0.100 (640)"],
        ["resnet18", "pytorch", "nchw", "32", "0.100 (320)", "0.100 (640)"],
        ["resnet18", "tensorflow", "nhwc", "32", "0.100 (320)", "oom"],
    ]
    assert "median step, and behind it samples/s" in table.caption


def test_other_keys_make_rows_of_their_own_and_programs_are_not_crossed(tmp_path: Path) -> None:
    program = {"name": "gpt", "command": ["x"], "version": 1}
    cells = [make_cell(framework=name, batch_size=batch) for batch in (64, 32) for name in ("pytorch", "jax")]
    cells += [make_cell(framework="gpt", model="mine", program=program, batch_size=32)]
    table = TABLES["frameworks"](collected(tmp_path / "digits", [make_record(cell) for cell in cells], cells, repeats=1))
    assert [row[:3] for row in shown(table)] == [
        *(["lenet", name, batch] for batch in ("32", "64") for name in ("pytorch", "jax")),
        ["mine", "gpt", "32"],
    ]


def test_a_batch_that_a_row_of_dlbench_has_not(tmp_path: Path) -> None:
    cells = [make_cell(nodes=1, batch_size=32), make_cell(nodes=2, batch_size=64)]
    table = TABLES["dlbench"](collected(tmp_path / "digits", [make_record(cell, step_s=0.1) for cell in cells], cells, repeats=1))
    told = [row[-2:] for row in shown(table)]
    assert [[text.partition("(")[0] for text in row] for row in told] == [["0.100", "not in the study"], ["not in the study", "0.100"]]


def test_facts_of_all_frameworks_and_of_a_study(tmp_path: Path) -> None:
    rows = {row["framework"]: row for row in csv_rows(facts_table())}
    others = list(load_other_facts())
    assert list(rows) == [*framework_folders(), *others]
    for row in (rows.pop(name) for name in others):
        assert (row["note"], row["version"], row["verified_by"]) == ("Slipway does not run it", "", "")
        assert row["licence"]
        assert row["sources"], "who says so"
        assert row["claimed_devices"]
    torch = rows["pytorch"]
    assert (torch["version"], torch["licence"], torch["verified_devices"]) == ("2.13.0", "BSD-3-Clause", "cpu, cuda")
    assert "cuda" in torch["claimed_devices"], "claimed, and in a column of its own"
    assert torch["verified_by"].startswith("tests/")
    for name, row in rows.items():
        verified = (facts := load_framework(name).facts) is not None and facts.verified is not None
        assert bool(row["verified_by"]) == verified
        assert all(words.why in row["missing"] for words in load_framework(name).missing)
        assert row["note"].startswith("never run by a test of ours") == (facts is not None and not verified)
    program = {"name": "gpt", "command": ["x"], "version": 1}
    cells = [make_cell(framework="jax"), make_cell(framework="jax", program=program), make_cell(framework="of-another-version")]
    of_study = TABLES["framework-facts"](collected(tmp_path / "digits", [make_record(cell) for cell in cells], cells, repeats=1))
    assert [row[0] for row in shown(of_study)] == ["jax"]


# What the runs took: every attempt once, by how it ended.


def rows(analysis: Analysis) -> list[dict[str, str]]:
    return csv_rows(TABLES["hours"](analysis))


def test_every_attempt_counts_once_by_how_it_ended(tmp_path: Path) -> None:
    cell = make_cell(nodes=2, gpus_per_node=2, device="cuda")
    record = make_record(cell, run_s=3600.0, attempt=3)
    records = [failed(cell, status="killed", attempt=1, run_s=1800.0), failed(cell, status="oom", attempt=2, run_s=360.0), record]
    records += [failed(cell, 2, status="storage", run_s=720.0), failed(cell, 3, status="nan", run_s=72.0)]
    analysis = collected(tmp_path / "s", records)
    (row,) = rows(analysis)
    assert [float(row[f"{part}_process_h"]) for part in ("measured", "failed", "prevented", "repeated")] == pytest.approx(
        [4, 0.08, 2.8, 0.4]
    )
    assert float(row["process_h"]) == pytest.approx(7.28)
    assert float(row["gpu_h"]) == pytest.approx(7.28)
    assert GPU in str(analysis.frame["hardware"][0])
    assert "In all 7.28 process hours, 2.80 of them prevented; 7.28 GPU hours" in TABLES["hours"](analysis).caption


def test_attempts_of_a_run_whose_newest_record_is_torn_keep_their_hours(tmp_path: Path) -> None:
    cell = make_cell(nodes=2, gpus_per_node=2, device="cuda")
    directory = write_study(tmp_path / "s", [cell], repeats=1)
    ends = ["killed", "oom", "nan"]
    write_records(directory, [failed(cell, status=end, attempt=number, run_s=3600.0) for number, end in enumerate(ends, 1)])
    run = directory / "runs" / f"{cell['cell_id']}-r1"
    (run / "attempts" / "3" / "record.json").write_text("{")
    (run / "record.json").write_text("{")
    analysis = analysed(directory)
    assert analysis.frame["status"].to_list() == ["unreadable"]
    (row,) = rows(analysis)
    parts = {part: float(row[f"{part}_process_h"]) for part in ("measured", "failed", "prevented", "repeated", "aside")}
    assert parts == {"measured": 0, "failed": 4, "prevented": 4, "repeated": 0, "aside": 0}
    assert float(row["gpu_h"]) == 8


@pytest.mark.parametrize("others", [True, False])
def test_attempts_that_lie_beside_another_have_a_column_of_their_own(tmp_path: Path, others: bool) -> None:
    cell = make_cell(nodes=2)
    directory = write_study(tmp_path / "s", [cell], repeats=1)
    write_records(directory, [failed(cell, status="killed", run_s=1800.0)])
    attempts = directory / "runs" / f"{cell['cell_id']}-r1" / "attempts"
    (attempts / "1").rename(attempts / "1.lost-0badcafe")
    (attempts / "1.node-1").mkdir()
    (attempts / "2.lost-0badcafe").mkdir()
    (attempts / "2.lost-0badcafe" / "record.json").write_bytes((attempts / "1.lost-0badcafe" / "record.json").read_bytes())
    if others:
        write_records(directory, [make_record(cell, run_s=3600.0)])
    (row,) = rows(analysed(directory))
    assert (float(row["aside_process_h"]), float(row["measured_process_h"])) == (1, 2 * others), "that of attempt 1, in its own place"


def test_on_cpus_gpu_hours_are_none_and_not_missing(tmp_path: Path) -> None:
    cells = [make_cell(), make_cell(nodes=2)]
    (row,) = rows(collected(tmp_path / "s", [make_record(cells[0], run_s=3600.0)], cells, repeats=1))
    assert (float(row["process_h"]), float(row["gpu_h"])) == (1, 0)


def test_a_collection_of_another_version_is_made_anew(tmp_path: Path) -> None:
    cell = make_cell()
    directory = write_study(tmp_path / "s", [cell], repeats=1)
    write_records(directory, [make_record(cell)])
    collection = collect([directory])
    path = write_parquet(collection, directory)
    collection.frame.drop("prevented_s").write_parquet(path, metadata={"slipway": "[]"})
    with pytest.raises(RecordError, match="other columns than this version"):
        read_records(path)
    assert "prevented_s" in read_or_collect([directory], directory).frame.columns


def test_a_run_that_ended_ok_without_a_rate_is_a_failed_row_everywhere(tmp_path: Path) -> None:
    cell = make_cell()
    records = [make_record(cell, repeat, run_s=3600.0) for repeat in (1, 2)] + [make_record(cell, 3, run_s=1800.0, performance=None)]
    analysis = collected(tmp_path / "s", records)
    assert analysis.summary.closing_line() == "2 of 3 runs ok, 1 failed (1 not measured)"
    assert (analysis.summary.ok, analysis.summary.failed_rows) == (2, 1)
    (failure,) = csv_rows(TABLES["failures"](analysis))
    assert (failure["run"], failure["end"]) == (records[2]["run_id"], "ok")
    assert failure["reason"] == "ended ok, but no rate could be measured"
    (row,) = rows(analysis)
    assert [float(row[f"{part}_process_h"]) for part in ("measured", "failed")] == [2.0, 0.5]
    (times,) = csv_rows(TABLES["times"](analysis))
    assert times["runs"] == "2/3"


# Model FLOP utilisation: in numbers that can be checked by hand, and never a guess.


TOLD = {"training.flop_per_unit": 6e9, "training.precision": "bf16"}


def gpt(**keys: Any) -> dict[str, Any]:
    program = {"name": "gpt", "command": ["train"], "unit": "tokens"}
    return make_cell(**{"framework": "gpt", "model": "gpt", "program": program, "device": "cuda", "gpus_per_node": 2, **keys})


def table(path: Path, cell: dict[str, Any], **changes: Any) -> tuple[Table, Analysis]:
    """Of one run at 40,000 tokens/s."""
    record = make_record(cell, **{"performance.tokens": 1_600_000, "performance.tokens_per_s": 40e3, "nodes": nodes(cell), **changes})
    validate_record(record)
    analysis = collected(path / "m", [record], repeats=1)
    return TABLES["utilisation"](analysis), analysis


def nodes(cell: dict[str, Any], *models: str) -> list[dict[str, Any]]:
    """The nodes of a cell, their GPUs of these models, one after the other."""
    found = make_record(cell)["nodes"]
    for node in found:
        node["gpus"] = [{**gpu, "model": models[index % len(models)] if models else GPU} for index, gpu in enumerate(node["gpus"])]
    return list(found)


def test_the_flop_of_a_token_times_the_rate_over_the_peak(tmp_path: Path) -> None:
    """6 GFLOP x 40,000 tokens/s on two H100: 120 TFLOP/s each, of 989.4 in bf16."""
    found, analysis = table(tmp_path, gpt(), **TOLD)
    assert analysis.frame["mfu"].to_list() == [pytest.approx(120 / 989.4)]
    assert cells_of(found, "mfu") == ["12.1 %"]
    assert (cells_of(found, "flop_per_s"), cells_of(found, "peak_flop_per_s")) == (["120"], ["989.4"])
    assert (cells_of(found, "flop_source"), cells_of(found, "arithmetic"), cells_of(found, "note")) == (["program"], ["bf16"], [""])
    assert f"{GPU}: NVIDIA H100 architecture white paper" in found.caption
    assert "No MFU" not in found.caption
    assert cells_of(found, "peak_memory_bytes") == ["0.293"]
    assert [column.title for column in found.columns][5] == "GFLOP per token"


@pytest.mark.parametrize(
    ("mode", "first_macs", "flop"),
    [("train", None, 2 * 3 * 4e9), ("train", 500_000_000, 2 * (3 * 4e9 - 0.5e9)), ("infer", 500_000_000, 2 * 4e9)],
    ids=["of an earlier version", "training", "inference"],
)
def test_a_network_of_ours_has_two_flop_for_each_multiply_add_and_pass(
    tmp_path: Path, mode: str, first_macs: int | None, flop: float
) -> None:
    """The gradient of what the first layer reads is not counted, except in records of versions that counted it."""
    cell = make_cell(device="cuda", precision="tf32", mode=mode)
    told = {"training.flop_per_unit": 1.0, "model_first_macs": first_macs}
    found, analysis = table(tmp_path, cell, model_macs=4_000_000_000, **told)
    (rate,) = analysis.frame["rate_per_s"]
    assert (analysis.frame["flop_per_unit"].to_list(), cells_of(found, "flop_source")) == ([flop], ["model"])
    assert analysis.frame["mfu"].to_list() == [pytest.approx(flop * rate / 494.7e12)]
    earlier = "without the gradient of what the first layer reads (of records of earlier versions with it), times"
    assert (earlier in found.caption) == (first_macs is None)


@pytest.mark.parametrize(
    ("cell", "changes", "why"),
    [
        (gpt(device="cpu"), TOLD, "it ran on CPUs, which have no peak here"),
        (gpt(), {}, "the FLOP of a token are not known: a program reports them by start(flop_per_unit=...)"),
        (gpt(), {**TOLD, "training.precision": None}, "the precision of its matrices is not known: a program reports it by"),
        (gpt(), {**TOLD, "nodes": nodes(gpt(), "NVIDIA X1")}, "the peak of NVIDIA X1 in bf16 is not known here"),
        (gpt(), {**TOLD, "nodes": nodes(gpt(), GPU, "NVIDIA H200")}, f"the peak of {GPU} + NVIDIA H200 in bf16 is not known here"),
        (gpt(), {"model_macs": 10**9}, "the FLOP of a token are not known"),
    ],
)
def test_what_is_not_known_is_said(tmp_path: Path, cell: dict[str, Any], changes: dict[str, Any], why: str) -> None:
    found, analysis = table(tmp_path, cell, **changes)
    assert analysis.frame["mfu"].to_list() == [None]
    assert cells_of(found, "note")[0].startswith(why)
    assert f"No MFU where {why}" in found.caption


def test_more_than_the_peak_is_marked_as_impossible(tmp_path: Path) -> None:
    found, analysis = table(tmp_path, gpt(), **{**TOLD, "training.precision": "fp32"})
    assert cells_of(found, "mfu") == ["179.4 %"]
    assert marks_of(found, "mfu") == [{"impossible"}]
    assert "impossible" in analysis.cells[0].marks
    assert "which no GPU reaches" in found.footnotes()[0][2]


def test_runs_that_tell_different_flop_have_no_number(tmp_path: Path) -> None:
    records = [
        make_record(gpt(), repeat, **{"performance.tokens": 10**6, "performance.tokens_per_s": 1e4, **TOLD, "training.flop_per_unit": flop})
        for repeat, flop in ((1, 6e9), (2, 7e9))
    ]
    found = TABLES["utilisation"](collected(tmp_path / "m", records, repeats=2))
    assert cells_of(found, "flop_per_unit") == ["–"]
    assert cells_of(found, "mfu") == ["–"]
    assert cells_of(found, "note") == ["the runs of a cell differ in their GPUs, or in what their program reports"]


def test_a_network_of_ours_that_reads_tokens_has_its_flop_per_token(tmp_path: Path) -> None:
    """6 FLOP for each of 142.4 million multiply-adds at 40,000 tokens/s on one H100: 34.2 TFLOP/s, of 989.4 in bf16."""
    text = {"source": "text", "path": "/text", "sequence_length": 1024}
    cell = make_cell(device="cuda", precision="bf16", model="gpt2-small", dataset_spec=text, gpus_per_node=1)
    found, analysis = table(tmp_path, cell, model_macs=142_406_400)
    assert analysis.frame["unit"].to_list() == ["tokens"]
    assert analysis.frame["mfu"].to_list() == [pytest.approx(6 * 142_406_400 * 40e3 / 989.4e12)]
    assert cells_of(found, "flop_source") == ["model"]
    assert [column.title for column in found.columns][5] == "GFLOP per token"


@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_multiply_adds_of_a_token_are_none_of_a_sample(tmp_path: Path, unit: str) -> None:
    """A program that trains a network of ours on tokens, and counts sequences, has no MFU: a sequence has many tokens."""
    text = {"source": "text", "path": "/text", "sequence_length": 1024}
    program = {"name": "gpt", "command": ["train"], "unit": unit}
    _, analysis = table(tmp_path, gpt(model="gpt2-small", dataset_spec=text, program=program), model_macs=142_406_400)
    expected = 6 * 142_406_400 if unit == "tokens" else None
    assert analysis.frame["flop_per_unit"].to_list() == [expected]


def test_tables_for_people_show_the_first_rows_and_say_so(tmp_path: Path) -> None:
    table = TABLES["times"](collected(tmp_path / "digits", [make_record(make_cell(nodes=nodes)) for nodes in (1, 2, 4)]))
    columns = (replace(column, values=[*column.values] * 334, marks=[*column.marks] * 334) for column in table.columns)
    many = replace(table, columns=tuple(columns))
    assert len(many.rows) == MAX_ROWS + 2
    assert len(list(csv.reader(io.StringIO(FORMATS["csv"](many))))) == 1 + len(many.rows)
    for suffix in ("md", "tex", "html"):
        assert "The first" not in FORMATS[suffix](table)
        assert "The first 1000 of 1002 rows; all are in tables/times.csv." in FORMATS[suffix](many)


# Table `precision`.


NOISE = (0.99, 1.0, 1.01)


def records(cell: dict[str, Any], step_s: float, **changes: Any) -> list[dict[str, Any]]:
    return [make_record(cell, repeat, step_s=step_s * factor, **changes) for repeat, factor in enumerate(NOISE, 1)]


def test_each_precision_and_layout_against_fp32_nchw(tmp_path: Path) -> None:
    """Two models, of which one has no base: then its first kind is the base. Repeats have the same noise, so paired intervals are thin."""
    cells = [make_cell(layout="nhwc"), make_cell(), make_cell(precision="bf16", layout="nhwc"), make_cell(precision="bf16", nodes=2)]
    cells += [make_cell(model="alexnet", precision="bf16"), make_cell(model="alexnet", precision="bf16", layout="nhwc")]
    steps = (0.1, 0.08, 0.04, 0.05, 1.0, 0.5)
    found = [record for cell, step_s in zip(cells, steps, strict=True) for record in records(cell, step_s)]
    for record in found[6:9]:
        record["training"]["final_loss"] = 0.7
    analysis = collected(tmp_path / "kinds", found, cells, repeats=3)
    table = TABLES["precision"](analysis)
    lenet, alexnet = to_values(table)["rows"]
    assert (lenet["model"], lenet["base"], lenet["fp32_nchw_ratio"]) == ("lenet", "fp32 nchw", "1 (base)")
    assert lenet["fp32_nchw_final_loss"] == pytest.approx(0.2)
    assert lenet["fp32_nhwc_ratio"].split()[0] == "0.8000"
    assert lenet["bf16_nhwc_ratio"].split()[0] == "2.000"
    assert lenet["bf16_nhwc_final_loss"] == pytest.approx(0.7)
    assert lenet["bf16_nchw_ratio"] == "not in the study"  # that one is on two nodes
    assert (alexnet["base"], alexnet["bf16_nchw_ratio"], alexnet["bf16_nhwc_ratio"].split()[0]) == ("bf16 nchw", "1 (base)", "2.000")
    assert alexnet["fp32_nchw_final_loss"] is None
    assert "precision" not in [column.key for column in table.columns]
    assert 'id="table-precision"' in page(analysis, {})


def test_the_interval_is_that_of_a_ratio_of_runs(tmp_path: Path) -> None:
    cells = [make_cell(), make_cell(precision="bf16")]
    steps = ((0.1, 0.11, 0.105), (0.05, 0.052, 0.06))
    found = [
        make_record(cell, repeat, step_s=step_s) for cell, times in zip(cells, steps, strict=True) for repeat, step_s in enumerate(times, 1)
    ]
    (row,) = to_values(TABLES["precision"](collected(tmp_path / "interval", found, cells, repeats=3)))["rows"]
    base, other = (log_sample([1 / step_s for step_s in times]) for times in steps)
    assert row["bf16_nchw_ratio"] == estimate_text(ratio(other, base))


def test_what_has_no_number_says_why_and_what_is_doubtful_is_marked(tmp_path: Path) -> None:
    cells = [make_cell(), make_cell(precision="bf16"), make_cell(layout="nhwc")]
    found = records(cells[0], 0.1, oversubscribed=True) + [failed(cells[1], repeat) for repeat in (1, 2, 3)] + records(cells[2], 0.1)
    table = TABLES["precision"](collected(tmp_path / "doubts", found, cells, repeats=3))
    (row,) = to_values(table)["rows"]
    assert row["bf16_nchw_ratio"] == "oom"
    assert row["marks"] == {"fp32_nchw_ratio": ["oversubscribed"], "fp32_nhwc_ratio": ["baseline"]}
    found = [failed(cells[0], repeat) for repeat in (1, 2, 3)] + records(cells[2], 0.1)
    (row,) = to_values(TABLES["precision"](collected(tmp_path / "no-base", found, cells, repeats=3)))["rows"]
    assert (row["fp32_nchw_ratio"], row["fp32_nhwc_ratio"]) == ("oom", "base oom")


def test_a_study_of_one_precision_and_layout_shows_none(tmp_path: Path) -> None:
    cells = [make_cell(batch_size=size) for size in (2, 4)]
    analysis = collected(tmp_path / "one", [record for cell in cells for record in records(cell, 0.1)], cells, repeats=3)
    assert "no cells that differ in precision or layout alone" in to_markdown(TABLES["precision"](analysis))
    assert "table-precision" not in page(analysis, {})
