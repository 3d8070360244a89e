"""How far training is, in words."""

from __future__ import annotations

from workflow.run.record.continuation import ProgressLine


def test_step_rate_and_time_left() -> None:
    progress = ProgressLine(64, 200, 0.0)
    assert progress.due(0, 1.0) == "train: step 1 of 200"
    assert progress.due(50, 2.0) is None
    assert progress.due(100, 6.0) == "train: step 101 of 200, 1,280 samples/s, 5.0 s left"
    assert progress.due(199, 10.0) == "train: step 200 of 200, 1,584 samples/s"


def test_without_a_number_of_steps_there_is_no_time_left() -> None:
    progress = ProgressLine(1, None, 0.0)
    progress.due(0, 0.0)
    assert progress.due(2000, 2.0) == "train: step 2,001, 1,000 samples/s"


def test_lines_come_often_at_the_beginning_and_seldom_later() -> None:
    progress = ProgressLine(1, 10_000, 0.0)
    times = [second for second in range(600) if progress.due(second, float(second)) is not None]
    assert [later - earlier for earlier, later in zip(times, times[1:], strict=False)] == [2] * 30 + [10] * 53


def test_a_step_that_lasts_is_told_once() -> None:
    progress = ProgressLine(1, 110, 0.0)
    assert progress.due(93, 1.0) == "train: step 94 of 110"
    assert progress.due(93, 4.0) is None
    assert progress.due(94, 5.0) == "train: step 95 of 110, 0 samples/s, 1m00s left"


def test_tokens_of_a_step_are_what_the_ranks_tell() -> None:
    progress = ProgressLine(None, 200, 0.0)
    assert progress.due(0, 1.0) == "train: step 1 of 200"
    assert progress.due(100, 6.0, 4096) == "train: step 101 of 200, 81,920 tokens/s, 5.0 s left"
    assert progress.due(149, 10.0) == "train: step 150 of 200, 3.0 s left"
