"""What ranks tell, against Slipway's own clock and the dataset."""

from __future__ import annotations

from typing import Any

import pytest

from workflow.run.record.window_seen import clock_warnings, evaluation_warnings

SPLITS = {"train": 90, "test": 10}


def found(window_s: float | None = 10.0, **training: Any) -> dict[str, Any]:
    return {"performance": {"window_s": window_s}, "training": {"train_s": 12.0, "eval_s": 1.0, "eval": None, **training}}


@pytest.mark.parametrize(
    ("told", "mode", "words"),
    [
        (found(), "train", []),
        (found(10.6, train_s=10.5), "train", []),
        (found(0.5, train_s=0.4), "train", []),  # of a window as short as that clocks tell a tenth more or less
        (found(1200.0, train_s=1200.0), "train", ["1200 s for the measured window, and ran for 20 s", "1200 s for all steps"]),
        (found(train_s=9e6), "train", ["9e+06 s for all steps, and ran for 20 s"]),
        (found(eval_s=30.0), "train", ["30 s for the evaluation"]),
        (found(train_s=0.001), "train", ["rank 0 tells of 0.001 s for all its steps, and the measured ones alone took 10 s"]),
        (found(train_s=5.0), "infer", []),  # the window is that of the slowest rank
        (found(None), "train", []),
        ({"performance": None, "training": None}, "train", []),
        ({}, "train", []),
    ],
)
def test_a_clock_that_cannot_be_right(told: dict[str, Any], mode: str, words: list[str]) -> None:
    warnings = clock_warnings(told, 20.0, mode)
    assert len(warnings) == len(words)
    assert all(part in warning for part, warning in zip(words, warnings, strict=True))


def test_an_unknown_time_warns_of_nothing() -> None:
    assert clock_warnings(found(1200.0, train_s=1200.0), None, "train") == []


@pytest.mark.parametrize(
    ("split", "samples", "words"),
    [
        ("test", 10, []),
        ("train", 90, []),
        ("test", 1, ["rank 0 tells of an evaluation on 1 samples of test, which has 10"]),
        ("test", None, ["rank 0 tells of an evaluation on an unknown number of samples of test, which has 10"]),
        ("best", 10, ["rank 0 tells of an evaluation on 'best', and the dataset has test, train"]),
    ],
)
def test_an_accuracy_of_something_else_than_a_whole_split(split: str, samples: int | None, words: list[str]) -> None:
    evaluation = {"split": split, "loss": 0.5, "accuracy": 1.0, "samples": samples}
    assert evaluation_warnings(found(eval=evaluation), SPLITS) == words
    assert evaluation_warnings(found(eval=evaluation), None) == []
    assert evaluation_warnings(found(), SPLITS) == []
