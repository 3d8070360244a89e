"""MLPerf's log lines and Extra-P's JSON lines: what is written, and what their own readers read, where they are installed."""

import importlib
import json
from pathlib import Path

import pytest

from extras.export import extrap, mlperf
from extras.export.runs import exported_runs
from tests.extras.export.test_tensorboard import results
from tests.workflow.report.builder import make_cell, make_record, plausible_records, scaling_cells, write_records, write_study
from workflow.commands.main import run
from workflow.run.record.events import parse_events


def test_mlperf_lines_of_a_run(tmp_path: Path) -> None:
    (told,) = exported_runs(results(tmp_path))
    lines = list(mlperf.log_lines(told.record, told.events()))
    assert all(line.startswith(":::MLLOG {") and line.endswith("}\n") for line in lines)
    found = [json.loads(line.removeprefix(":::MLLOG ")) for line in lines]
    assert all({*one} == {"namespace", "time_ms", "event_type", "key", "value", "metadata"} for one in found)
    by_key = {one["key"]: one for one in found}
    assert [one["key"] for one in found if one["event_type"] != "POINT_IN_TIME"] == ["init_start", "init_stop", "run_start", "run_stop"]
    assert [one["time_ms"] for one in found] == sorted(one["time_ms"] for one in found)
    facts = ("submission_benchmark", "number_of_nodes", "global_batch_size", "opt_name", "opt_base_learning_rate", "eval_accuracy")
    assert [by_key[key]["value"] for key in facts] == ["lenet", 2, 64, "sgd", 0.01, 0.75]
    assert by_key["tracked_stats"]["value"] == {"throughput": told.record["performance"]["samples_per_s"]}
    assert by_key["run_stop"]["metadata"]["status"] == "success"
    failed = list(mlperf.log_lines({**told.record, "status": "oom", "performance": None}, {}))
    assert "aborted" in failed[-1]
    assert not any("tracked_stats" in line for line in failed)


def test_mlperf_lines_of_evaluations_have_epochs_and_come_in_their_order() -> None:
    evaluation = b'{"event": "eval", "split": "test", "accuracy": %s, "step": %d, "epoch": %d, "samples": 9, "time": %d}\n'
    lines = [evaluation % (b"0.5", 4, 1, 1777629610), evaluation % (b"0.75", 8, 2, 1777629620)]
    stop = b'{"event": "run_stop", "time": 1777629630}\n'
    told = [
        json.loads(line.removeprefix(":::MLLOG ")) for line in mlperf.log_lines(make_record(make_cell()), {0: parse_events([*lines, stop])})
    ]
    found = [one for one in told if one["key"] == "eval_accuracy"]
    assert [(one["value"], one["metadata"]["epoch_num"], one["metadata"]["step_num"], one["time_ms"]) for one in found] == [
        (0.5, 1, 4, 1777629610000),
        (0.75, 2, 8, 1777629620000),
    ]


def series(tmp_path: Path) -> Path:
    cells = scaling_cells(model=["lenet", "resnet18"], batch_size=[32], nodes=[1, 2, 4, 8, 16])
    directory = write_study(tmp_path / "s", cells, repeats=2)
    write_records(directory, plausible_records(cells, repeats=2))
    return directory


def test_extrap_lines_are_series_over_processes(tmp_path: Path) -> None:
    directory = series(tmp_path)
    found = [json.loads(line) for line in extrap.points(list(exported_runs(directory)))]
    assert {one["callpath"] for one in found} == {f"pytorch->{model}->batch 32 per process" for model in ("lenet", "resnet18")}
    assert {one["metric"] for one in found} == {"samples_per_s", "step_s"}
    assert sorted(one["params"]["processes"] for one in found if one["metric"] == "step_s") == sorted([1, 2, 4, 8, 16] * 4)
    (told,) = exported_runs(results(tmp_path / "one"))
    assert list(extrap.points([told])) == []


def test_the_command_writes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = series(tmp_path)
    for name, path in (("mlperf", "mlperf"), ("extrap", "extrap.jsonl")):
        assert run(["export", name, str(directory), "--to", str(tmp_path / "out")]) == 0, capsys.readouterr().err
        assert (tmp_path / "out" / "s" / path).exists()
    assert len(list((tmp_path / "out" / "s" / "mlperf").iterdir())) == 20


@pytest.mark.slow
def test_the_parser_of_mlcommons_reads_the_lines(tmp_path: Path) -> None:
    parser = pytest.importorskip(
        "mlperf_logging.compliance_checker.mlp_parser", reason="MLPerf's logging is not installed here: pip install mlperf-logging"
    )
    mlperf.export(list(exported_runs(results(tmp_path))), tmp_path)
    (path,) = (tmp_path / "mlperf").iterdir()
    lines, errors = parser.parse_file(str(path), "4.1.0")
    assert not errors
    assert [line.key for line in lines][-1] == "run_stop"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of its own libraries
def test_extrap_models_the_lines(tmp_path: Path) -> None:
    pytest.importorskip("extrap", reason="Extra-P is not installed here: pip install extrap")
    reader = importlib.import_module("extrap.fileio.file_reader.jsonlines_file_reader")
    extrap.export(list(exported_runs(series(tmp_path))), tmp_path)
    experiment = reader.read_jsonlines_file(tmp_path / "extrap.jsonl")
    assert [parameter.name for parameter in experiment.parameters] == ["processes"]
    assert len(experiment.coordinates) == 5
