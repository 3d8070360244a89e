"""Time to accuracy: the first evaluation that reaches the target, and no mean where a run has not."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.report.builder import analysed, collected, failed, make_cell, make_record
from workflow.commands.main import run as slipway
from workflow.report.analysis import Analysis, analyse
from workflow.report.collect import collect, read_records
from workflow.report.collect import write_records as write_collected
from workflow.report.formats import to_values
from workflow.report.page import page
from workflow.report.plots import PLOTS
from workflow.report.time_to_accuracy import time_to_accuracy


def evaluations(*accuracies: float, step_s: float, told: bool = True) -> list[dict[str, Any]]:
    """An evaluation after each epoch of 50 steps."""
    return [
        {
            **{"split": "test", "step": 50 * epoch, "epoch": epoch if told else None, "loss": 0.5},
            **{"accuracy": accuracy, "seconds": 1.0, "training_s": 50 * epoch * step_s},
        }
        for epoch, accuracy in enumerate(accuracies, 1)
    ]


def made(place: Path, *curves: list[dict[str, Any]] | None, **changes: Any) -> Analysis:
    """A study of one cell of so many runs; None: a run that ended without memory."""
    cell = make_cell(epochs=4, steps=None)
    records = [
        failed(cell, repeat) if curve is None else make_record(cell, repeat, **{"training.evaluations": curve, **changes})
        for repeat, curve in enumerate(curves, 1)
    ]
    return collected(place, records, repeats=len(curves))


def row(analysis: Analysis, target: float | None = None) -> dict[str, Any]:
    (found,) = to_values(time_to_accuracy(analysis, target))["rows"]
    assert isinstance(found, dict)
    return found


CURVES = [
    evaluations(*values, step_s=step_s) for step_s, values in ((0.1, (0.5, 0.8, 0.9)), (0.2, (0.6, 0.91, 0.9)), (0.1, (0.7, 0.92, 0.95)))
]


def test_a_target_that_all_runs_reached(tmp_path: Path) -> None:
    analysis = made(tmp_path / "s", *CURVES)
    found = row(analysis, 0.9)
    assert (found["reached"], found["note"]) == ("3/3", "")
    assert found["epochs"] == pytest.approx((3 + 2 + 2) / 3)
    assert found["training_s"] == pytest.approx((15 * 20 * 10) ** (1 / 3))
    assert row(analysis)["target"] == 0.9, "the least of 0.9, 0.91 and 0.95"
    assert found["best_accuracy"] == pytest.approx((0.9 + 0.91 + 0.95) / 3)
    rows = next(iter(PLOTS["accuracy"](analysis)["datasets"].values()))
    assert [(one["time"], one["accuracy"]) for one in rows] == [(5.0, 0.5), (10.0, 0.8), (15.0, 0.9)]
    assert "'format': '~%'" in str(PLOTS["accuracy"](analysis)), "0.965 and 0.97 have labels of their own"
    assert 'id="accuracy"' in page(analysis, {"accuracy": "<svg></svg>"})


@pytest.mark.parametrize(
    ("last", "note"),
    [(CURVES[0], "not reached: repeat 3: at most 90.0 %"), (None, "not reached: repeat 3: oom")],
    ids=["too low", "no memory"],
)
def test_a_cell_of_which_a_run_did_not_reach_it_has_no_mean(tmp_path: Path, last: Any, note: str) -> None:
    found = row(made(tmp_path / "s", CURVES[1], CURVES[2], last), 0.91)
    assert (found["reached"], found["epochs"], found["training_s"], found["note"]) == ("2/3", None, None, note)


def test_the_target_of_the_study_is_that_of_its_page(tmp_path: Path) -> None:
    made(tmp_path, *CURVES)
    content = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**content, "target_accuracy": 0.91}))
    analysis = analysed(tmp_path)
    assert (row(analysis)["target"], row(analysis)["reached"]) == (0.91, "2/3")
    assert row(analysis, 0.9)["target"] == 0.9
    assert "Until the first evaluation with 91.0 % or more: epochs" in page(analysis, {})
    write_collected(collect([tmp_path]), tmp_path)
    assert row(analyse(read_records(tmp_path / "records.parquet")))["target"] == 0.91
    (tmp_path / "study.json").write_text(json.dumps({**content, "target_accuracy": "high"}))
    assert row(analysed(tmp_path))["target"] == 0.9


def test_a_run_that_broke_off_is_not_what_all_reached(tmp_path: Path) -> None:
    cell = make_cell(epochs=4, steps=None)
    broken = failed(cell, 3, status="error", training=make_record(cell, **{"training.evaluations": CURVES[2][:1]})["training"])
    analysis = collected(tmp_path, [*[make_record(cell, repeat, **{"training.evaluations": CURVES[1]}) for repeat in (1, 2)], broken])
    assert (row(analysis)["target"], row(analysis)["reached"]) == (0.91, "2/3")
    assert row(analysis)["note"] == "not reached: repeat 3: error, at most 70.0 %"


def test_epochs_that_no_program_tells_are_those_of_the_samples(tmp_path: Path) -> None:
    curve = evaluations(0.5, 0.9, step_s=0.1, told=False)
    assert row(made(tmp_path / "s", curve, **{"dataset.train_samples": 800}), 0.9)["epochs"] == pytest.approx(4.0)
    assert row(made(tmp_path / "t", curve), 0.9)["epochs"] is None


def test_the_split_counts_that_was_evaluated_most_often_with_an_accuracy(tmp_path: Path) -> None:
    curve = evaluations(0.5, 0.9, step_s=0.1)
    others = [{**curve[0], "split": "train", "accuracy": 0.99}, *({**curve[0], "split": "validation", "accuracy": None} for _ in range(3))]
    assert row(made(tmp_path / "s", [*others, *curve]))["best_accuracy"] == 0.9


def test_prevented_and_missing_runs_count_on_no_side(tmp_path: Path) -> None:
    cell = make_cell(epochs=4, steps=None)
    records = [make_record(cell, 1, **{"training.evaluations": CURVES[0]}), failed(cell, 2, status="preempted")]
    assert row(collected(tmp_path, records))["reached"] == "1/1"


def test_one_evaluation_at_the_end_is_a_row_and_no_chapter(tmp_path: Path) -> None:
    analysis = made(tmp_path / "s", evaluations(0.9, step_s=0.1))
    assert math.isclose(row(analysis)["training_s"], 5.0)
    assert "no run was evaluated" in str(PLOTS["accuracy"](analysis))
    assert 'id="accuracy"' not in page(analysis, {})
    assert to_values(time_to_accuracy(made(tmp_path / "t", None)))["rows"] == []


@pytest.mark.parametrize(
    ("argv", "code"),
    [(["time-to-accuracy", "--target", "0.9"], 0), (["time-to-accuracy", "--target", "1.5"], 10), (["speedup", "--target", "0.9"], 10)],
)
def test_the_command_takes_a_target(tmp_path: Path, capsys: pytest.CaptureFixture[str], argv: list[str], code: int) -> None:
    made(tmp_path / "s", *CURVES)
    assert slipway(["tables", argv[0], str(tmp_path / "s"), *argv[1:]]) == code
    told = capsys.readouterr()
    assert ("3/3" in told.out) == (code == 0)
    assert ("valid: above 0, to 1, for the table time-to-accuracy" in told.err) == (code != 0)
