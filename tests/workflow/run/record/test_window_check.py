"""What ranks tell of their windows, beside what was seen: the record has the one that is confirmed least."""

import pytest

from workflow.run.record.model import Evaluation, Performance, Training, WindowSeen
from workflow.run.record.outcome import ObservedWindow
from workflow.run.record.rate import summarise
from workflow.run.record.window_check import (
    ReportedWindow,
    clock_warnings,
    evaluation_warnings,
    in_supervisor_s,
    seen_warnings,
    window_seen,
)

TOLD = [ReportedWindow(rank, 10, 59, 1.0) for rank in range(3)]


def test_the_window_that_leaves_most_open_is_kept() -> None:
    seen = [ObservedWindow(0, 10, 59, 0.99, 1.01), ObservedWindow(1, 10, 59, 0.8, 1.01), ObservedWindow(2, 10, 59, 0.99, 1.05)]
    assert window_seen(TOLD, seen) == WindowSeen(rank=1, window_s=1.0, least_s=0.8, most_s=1.01)


@pytest.mark.parametrize(
    "second",
    [[], [ObservedWindow(1, 10, 58, 0.99, 1.01)], [ObservedWindow(1, 9, 59, 0.99, 1.01)]],
    ids=["not seen", "another end", "another begin"],
)
def test_a_rank_of_which_this_window_was_not_seen_leaves_all_open(second: list[ObservedWindow]) -> None:
    seen = [ObservedWindow(0, 10, 59, 0.99, 1.01), *second, ObservedWindow(2, 10, 59, 0.1, 9.0)]
    assert window_seen(TOLD, seen) == WindowSeen(rank=1, window_s=1.0)


def test_windows_lie_between_the_first_begin_and_the_last_end() -> None:
    """Each node tells how long ago they were, whatever its clock says."""
    told = [in_supervisor_s(ObservedWindow(rank, 10, 59, 0.99, 1.01, -3.0 + rank, -2.0 + rank), 100.0 + rank) for rank in range(3)]
    assert [(one.begin_s, one.end_s) for one in told] == [(97.0, 98.0), (99.0, 100.0), (101.0, 102.0)]
    found = window_seen(TOLD, told)
    assert found.together_s == 5.0
    unknown = window_seen(TOLD, [*told[:2], in_supervisor_s(ObservedWindow(2, 10, 59, 0.99, 1.01), 100.0)])
    assert unknown.together_s is None


def test_evaluations_that_a_rank_tells_are_no_part_of_what_was_seen() -> None:
    """Steps of 2 s in all, and 4 s between them in which the rank evaluated."""
    found = window_seen([ReportedWindow(0, 10, 11, 2.0, 4.0)], [ObservedWindow(0, 10, 11, 5.75, 6.25, 90.0, 96.5)])
    assert found == WindowSeen(rank=0, window_s=2.0, least_s=1.75, most_s=2.25, together_s=2.5)
    shorter = window_seen([ReportedWindow(0, 10, 11, 2.0, 7.0)], [ObservedWindow(0, 10, 11, 5.75, 6.25)])
    assert (shorter.least_s, shorter.most_s) == (0.0, 0.0)


def test_without_a_window_there_is_nothing_to_see() -> None:
    assert window_seen([], [ObservedWindow(0, 10, 59, 0.99, 1.01)]) is None
    assert seen_warnings(None) == []


@pytest.mark.parametrize(
    ("told", "words"),
    [(1.0, None), (0.7, None), (1.3, None), (0.5, "at least 0.95 s"), (2.0, "at most 1.05 s"), (0.3, "its rate looks too high")],
)
def test_a_window_outside_of_what_was_seen_is_a_warning(told: float, words: str | None) -> None:
    seen = WindowSeen(rank=4, window_s=told, least_s=0.95, most_s=1.05)
    found = seen_warnings(seen)
    assert len(found) == (words is not None)
    assert words is None or words in found[0]
    assert all(one.startswith(f"rank 4 tells of {told:.3g} s for its measured window") for one in found)
    assert seen_warnings(WindowSeen(rank=4, window_s=told)) == []


# What ranks tell, against Slipway's own clock and the dataset.


SPLITS = {"train": 90, "test": 10}


def found(window_s: float | None = 10.0, train_s: float = 12.0, eval_s: float = 1.0) -> tuple[Performance | None, Training | None]:
    performance = Performance(num_measured_steps=1, step_s=summarise([1.0]), window_s=window_s)
    return performance, Training(train_s=train_s, eval_s=eval_s)


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
        ((None, None), "train", []),
    ],
)
def test_a_clock_that_cannot_be_right(told: tuple[Performance | None, Training | None], mode: str, words: list[str]) -> None:
    warnings = clock_warnings(*told, 20.0, mode)
    assert len(warnings) == len(words)
    assert all(part in warning for part, warning in zip(words, warnings, strict=True))


def test_an_unknown_time_warns_of_nothing() -> None:
    assert clock_warnings(*found(1200.0, train_s=1200.0), None, "train") == []


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
    training = Training(eval=Evaluation(split=split, loss=0.5, accuracy=1.0, samples=samples))
    assert evaluation_warnings(training, SPLITS) == words
    assert evaluation_warnings(training, None) == []
    assert evaluation_warnings(Training(), SPLITS) == []
