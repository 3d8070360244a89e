"""`slipway import`: what other tools' files tell, compared as our own numbers, and nothing that they do not tell."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from base.errors import ConfigError
from extras.export import mlperf
from extras.export.runs import exported_runs
from extras.imported.results import Result, read_results
from extras.imported.table import rows_of
from extras.lint_table.numbers import spelled_unit
from tests.extras.export.test_tensorboard import results as results_directory
from workflow.commands.main import run

CAPTURED = Path(__file__).parents[2] / "captured" / "imported"


def test_mlperf_log() -> None:
    """Of mlcommons/hpc_results_v2.0: 512 nodes of JUWELS Booster; the time is that between run_start and run_stop."""
    time, rate = read_results(CAPTURED / "mlperf-deepcam.txt")
    assert (time.metric, time.unit, time.value, time.rises) == ("time to train", "s", 138.619, False)
    assert (rate.metric, rate.value) == ("throughput", 23321.8778247947)
    assert (time.nodes, time.processes, time.global_batch_size, time.hardware) == (512, 2048, 2048, "NVIDIA DGX A100")
    assert time.keys == (("submission_benchmark", "deepcam"), ("submission_division", "closed"), ("submission_org", "HelmholtzAI"))


def test_a_run_of_mlperf_that_missed_its_target_has_no_time(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text((CAPTURED / "mlperf-deepcam.txt").read_text().replace('"success"', '"aborted"'))
    assert [one.metric for one in read_results(path)] == ["throughput"]


def test_what_we_export_is_imported(tmp_path: Path) -> None:
    (one,) = exported_runs(results_directory(tmp_path))
    path = tmp_path / "log.txt"
    path.write_text("".join(mlperf.log_lines(one.record, one.events())))
    time, rate = read_results(path)
    assert rate.value == one.record["performance"]["samples_per_s"]
    assert (rate.nodes, rate.processes, rate.global_batch_size) == (2, 2, 64)
    assert time.value > 0


def test_cells_that_we_export_stay_apart(tmp_path: Path) -> None:
    """Those of another precision or without an exchange are no runs of the same row."""
    (one,) = exported_runs(results_directory(tmp_path))
    cells: dict[str, dict[str, str]] = {"plain": {}, "half": {"precision": "bf16"}, "apart": {"comm_hook": "noop"}}
    for name, changes in cells.items():
        record = {**one.record, "cell": {**one.cell, **changes}}
        (tmp_path / name).write_text("".join(mlperf.log_lines(record, one.events())))
    found = [read_results(tmp_path / name)[1] for name in ("plain", "half", "apart")]
    assert len({one.keys for one in found}) == 3
    assert [dict(one.keys)["precision"] for one in found] == ["fp32", "bf16", "fp32"]


def test_reframe_report() -> None:
    """Of feelpp/benchmarking: computing time by tasks and elements; the number of tasks is no parameter of the series."""
    found = read_results(CAPTURED / "reframe-report.json")
    assert len(found) == 60
    first = found[0]
    assert (first.tool, first.metric, first.unit, first.value, first.rises) == ("ReFrame", "computation_time", "s", 5.32933, False)
    assert (first.nodes, first.processes) == (1, 4)
    assert dict(first.keys) == {
        "test": "RegressionTest",
        "system": "local:default",
        "nb_tasks.exclusive_access": "True",
        "elements": "1000000000.0",
    }
    rows = [row for row in rows_of(found) if row.result.metric == "computation_time" and ("elements", "1000000000.0") in row.result.keys]
    by_count = {row.count: row for row in rows}
    assert set(by_count) == {1, 2, 4}
    speedup, efficiency = by_count[4].speedup(), by_count[4].efficiency()
    assert speedup is not None
    assert efficiency is not None
    assert speedup.value == pytest.approx(by_count[1].result.value / 5.32933)
    assert efficiency.value == pytest.approx(speedup.value / 4)
    assert (by_count[1].scaling(), by_count[4].scaling()) == ("baseline", "same parameters")
    assert all(row.speedup() is None for row in rows_of(found) if row.result.metric in ("N", "sum", "num_process"))


def test_newer_reports_have_perfvalues(tmp_path: Path) -> None:
    case = {
        "name": "t %x=1",
        "result": "pass",
        "num_tasks": 8,
        "num_tasks_per_node": 4,
        "perfvalues": {"s:p:rate": [5.5, 0, None, None, "GB/s"]},
    }
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"session_info": {}, "runs": [{"testcases": [case, {**case, "result": "fail"}, 3]}]}))
    (one,) = read_results(path)
    assert (one.metric, one.value, one.unit, one.rises, one.nodes, one.processes) == ("rate", 5.5, "GB/s", True, 2, 8)


def test_nccl_tests() -> None:
    """Made as src/util.cu of NVIDIA/nccl-tests@a0b82b2 writes it: no file of a real run was found."""
    found = read_results(CAPTURED / "nccl-tests.json")
    assert [(one.metric, one.value, one.unit) for one in found] == [
        ("bus bandwidth", 133.09, "GB/s"), ("time", 110.3, "us"), ("bus bandwidth", 163.03, "GB/s"), ("time", 180.1, "us"),
    ]  # fmt: skip
    assert {(one.nodes, one.processes, one.hardware) for one in found} == {(2, 8, "NVIDIA H100 80GB HBM3")}
    assert "SECRET" not in repr(found)


def test_tables_of_caraml() -> None:
    found = [one for one in read_results(CAPTURED / "caraml-resnet50.csv") if one.metric == "Images/second"]
    assert [(one.hardware, one.value, one.processes, one.batch_size, one.global_batch_size) for one in found] == [
        ("MI250", 2107.0, 8, 8, 64), ("GC200", 3556.18, 4, 8, 32), ("H100", 1994.69, 4, 8, 32),
    ]  # fmt: skip
    assert all(row.speedup() is None for row in rows_of(found))


def result(value: float, processes: int, **keys: Any) -> Result:
    return Result(source=f"f:{value}", tool="t", metric="rate", unit="samples/s", value=value, rises=True, processes=processes, **keys)


def test_runs_are_averaged_and_compared_with_the_fewest_processes_of_the_same_batch() -> None:
    weak = [result(100 + n, 1, batch_size=8) for n in range(3)] + [result(390 + n, 4, batch_size=8) for n in range(3)]
    base, four = rows_of(weak)
    speedup = four.speedup()
    assert speedup is not None
    assert (four.scaling(), base.scaling(), four.sample.n) == ("weak", "baseline", 3)
    assert speedup.value == pytest.approx((390 * 391 * 392 / (100 * 101 * 102)) ** (1 / 3))
    assert speedup.low is not None
    one, two = rows_of([result(100, 1, global_batch_size=64), result(180, 2, global_batch_size=64)])
    assert (two.scaling(), two.result.batch_size, one.result.batch_size) == ("strong", 32, 64)
    one, two = rows_of([result(100, 1, batch_size=8), result(180, 2, batch_size=16)])
    assert two.scaling() == "not known"
    assert two.speedup() is None
    one, two = rows_of([result(100, 1, batch_size=8, hardware="A"), result(180, 2, batch_size=8, hardware="B")])
    assert two.speedup() is None


def test_the_command_prints_the_table_and_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.csv"
    path.write_text("GPUs,batch per GPU,images/s\n1,32,100\n4,32,54.71\n")
    assert run(["import", str(path), str(CAPTURED / "mlperf-deepcam.txt"), "--to", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "not known" in printed
    assert "4 results of 2 files in 4 rows" in printed
    rows = list(csv.DictReader((tmp_path / "tables" / "imported.csv").read_text().splitlines()))
    assert [(row["tool"], row["scaling"]) for row in rows[:2]] == [("table", "baseline"), ("table", "weak")]
    assert [row["value"] for row in rows[:2]] == ["100.0", "54.71"], "as they stand there"
    assert [row["speedup"] for row in rows[:1]] == [""]
    assert (float(rows[1]["speedup"]), float(rows[1]["efficiency"])) == pytest.approx((0.5471, 0.136775))
    assert rows[2]["processes"] == "2048"
    assert run(["lint-table", str(tmp_path / "tables" / "imported.csv")]) == 0


def test_what_is_no_result_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    for content in (
        "",
        "{}",
        "[]",
        '{"runs": 3}',
        '{"nccl_version": 1, "results": [1, {"out_of_place": {"bus_bw": -1, "time": "x"}}]}',
        "a,b\n1,2\n",
        "text",
    ):
        path.write_text(content)
        with pytest.raises(ConfigError, match="no result is found there"):
            read_results(path)
    for content in ("{", "[" * 100_000, '{"nccl_version": NaN}', ":::MLLOG {\n", ":::MLLOG [1]\n:::MLLOG {}x\n"):
        path.write_text(content)
        with pytest.raises(ConfigError, match="valid JSON|nested"):
            read_results(path)
    path.write_bytes(b"\0\1")
    with pytest.raises(ConfigError, match="not a text file"):
        read_results(path)


def test_numbers_that_nobody_measures_are_no_results(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("GPUs,images/s\n1,5e-324\n2,1e100\n4,1e-30\n8,1e30\n")
    assert [one.value for one in read_results(path)] == [1e-30, 1e30]
    assert run(["import", str(path)]) == 0
    path.write_text("GPUs,images/s\n" + "1,1e-30\n1,1e30\n1,1e30\n2,1e30\n2,1e-30\n2,1e-30\n")
    assert run(["import", str(path)]) == 0


def test_units_of_bytes_are_written_as_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "t.md"
    path.write_text("| Kind | Size | Duration | Rate |\n|-|-|-|-|\n| HtoD | 120 MiB | 60 ms | 2000 MiB/s |\n")
    assert [one.unit for one in read_results(path)] == ["ms", "MiB/s"]
    assert [spelled_unit(unit) for unit in ("b", "kb/s", "gib", "images/s", "")] == ["B", "kB/s", "GiB", "images/s", ""]


def test_a_batch_per_node_is_no_batch_per_process(tmp_path: Path) -> None:
    path = tmp_path / "t.md"
    path.write_text("| Nodes | Batch per node | Images/s |\n|-|-|-|\n| 1 | 128 | 100 |\n| 2 | 128 | 190 |\n")
    assert [(one.nodes, one.processes, one.batch_size) for one in read_results(path)] == [(1, None, None), (2, None, None)]
