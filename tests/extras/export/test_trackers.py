"""Exports to MLflow and Weights & Biases: what is told, and what their own libraries read, where they are installed."""

import sys
from pathlib import Path

import pytest

from base.errors import UnsupportedRequest
from base.seal import sealed_text
from extras.export import mlflow, wandb
from extras.export.runs import LONGEST, exported_runs, parameters, results, tags
from tests.extras.export.test_tensorboard import results as results_directory
from tests.workflow.report.builder import make_cell, make_record
from workflow.report.cells import marks_of_runs
from workflow.report.collect import collect


def test_a_cell_is_told_in_words_and_a_result_in_numbers() -> None:
    record = make_record(make_cell(nodes=2))
    told = parameters(record["cell"])
    assert (told["nodes"], told["model"]) == ("2", record["cell"]["model"])
    assert all(isinstance(value, str) and len(value) <= LONGEST for value in (told | tags(record)).values())
    assert tags(record)["slipway.status"] == "ok"
    assert "slipway.marks" not in tags(record)
    told = tags({**record, "warnings": ["a clock is wrong", "n1 is slow"]}, ("short", "shared"))
    assert (told["slipway.marks"], told["slipway.warnings"]) == ("short, shared", "a clock is wrong; n1 is slow")
    assert results(record)["result/run_s"] == record["run_s"]
    assert set(results({"performance": None, "training": None, "run_s": 1.0})) == {"result/run_s"}


def test_a_number_takes_its_marks_along(tmp_path: Path) -> None:
    directory = results_directory(tmp_path)
    (told,) = exported_runs(directory)
    record = {**told.record, "exclusive": False, "warnings": ["the clock of n1 is wrong"]}
    (directory / "runs" / told.run_id / "record.json").write_bytes(sealed_text(record))
    (run,) = exported_runs(directory, marks_of_runs(collect([directory]).frame))
    assert {"shared", "warned"} <= set(run.marks)
    assert not {"shared", "warned"} & set(marks_of_runs(collect([results_directory(tmp_path / "other")]).frame)[told.run_id])


@pytest.mark.parametrize("library", ["mlflow", "wandb"])
def test_a_missing_library_is_told_with_what_to_install(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    for name in (*mlflow.OFFLINE, *wandb.OFFLINE):
        monkeypatch.setenv(name, "true")
    with pytest.raises(UnsupportedRequest, match=rf"-m pip install '{library}"):
        {"mlflow": mlflow, "wandb": wandb}[library].export([], tmp_path)


@pytest.mark.slow
def test_mlflow_reads_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="MLflow is not installed here: pip install mlflow-skinny")
    for name in mlflow.OFFLINE:
        monkeypatch.setenv(name, "true")
    from mlflow.tracking import MlflowClient

    to = tmp_path / "exported" / "digits"
    to.mkdir(parents=True)
    runs = list(exported_runs(results_directory(tmp_path), {make_record(make_cell(nodes=2))["run_id"]: ("short", "shared")}))
    (to / "mlruns" / "of an earlier export").mkdir(parents=True)
    assert mlflow.export(runs, to) > 0
    assert not (to / "mlruns" / "of an earlier export").exists()
    client = MlflowClient(tracking_uri=(to / "mlruns").as_uri())
    experiment = client.get_experiment_by_name("digits")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", runs[0].run_id)
    assert run.data.params["nodes"] == "2"
    assert run.data.tags["slipway.marks"] == "short, shared"
    assert [(one.step, one.value) for one in client.get_metric_history(run.info.run_id, "loss")] == [(0, 2.5), (1, 1.5), (2, 0.5)]


@pytest.mark.slow
@pytest.mark.processes
def test_wandb_reads_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in wandb.OFFLINE:
        monkeypatch.setenv(name, "")
    pytest.importorskip("wandb", reason="Weights & Biases is not installed here: pip install wandb")
    to = tmp_path / "exported" / "digits"
    to.mkdir(parents=True)
    runs = list(exported_runs(results_directory(tmp_path)))
    assert wandb.export(runs, to) == wandb.export(runs, to) == 1
    (file,) = to.glob("wandb/offline-run-*/*.wandb")
    content = file.read_bytes()
    assert b"optimizer.momentum" in content
    assert runs[0].run_id.encode() in content
