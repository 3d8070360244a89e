"""Steps that were read from output: what the record makes of lines that tell of several steps, of ranks that tell nothing, of too few."""

from __future__ import annotations

from typing import Any

import pytest

from workflow.run.record.events import RankEvents, StepsAsked, telling, too_few_lines
from workflow.run.record.outcome import Ending
from workflow.run.record.run_record import UNTOLD, measured, window_warnings

CELL = {"nodes": 2, "gpus_per_node": 1, "global_batch_size": 64, "mode": "train", "model": "mine"}


def rank(source: str | None, lines: list[dict[str, Any]]) -> RankEvents:
    events = RankEvents()
    events.add({"event": "run_start", **({} if source is None else {"steps_source": source})})
    for line in lines:
        events.add({"event": "step", **line})
    events.add({"event": "run_stop", "train_s": 100.0})
    return events


def lines(count: int, steps: int, seconds: float = 0.1, jitter_ns: int = 0) -> list[dict[str, Any]]:
    """Lines of so many steps each, the first one of warm-up."""
    found: list[dict[str, Any]] = []
    for number in range(1, count + 1):
        end_ns = int(number * steps * 1e8) - jitter_ns * (number % 2)
        fields = {"step": number * steps - 1, "steps": steps, "seconds": seconds, "measured": number > 1, "monotonic_ns": end_ns}
        found.append({**fields, "loss": 1 / number})
    return found


def found_in(events: dict[int, RankEvents], steps: StepsAsked | None = None) -> dict[str, Any]:
    return measured(events, 2, 64, "train", None, steps)


def test_a_line_of_ten_steps_counts_as_ten_and_its_time_as_one_mean() -> None:
    found = found_in({0: rank("log", lines(4, 10)), 1: rank("none", [])}, StepsAsked(40, 30))
    assert (found["steps_source"], found["contradiction"], found["windows"], found["window"]) == ("log", None, [], [10, 39])
    pace = found["performance"]
    assert (pace["num_measured_steps"], pace["steps_together"], pace["step_s"]["n"]) == (30, 10, 3)
    assert pace["samples_per_s"] == pytest.approx(640.0)
    assert pace["samples_per_s_per_gpu"] == pytest.approx(320.0)
    assert pace["first_step_s"] is None
    assert [step for step, _ in found["training"]["losses"]] == [9, 19, 29, 39]


def test_lines_without_tokens_make_no_rate_in_tokens_and_that_is_said() -> None:
    found = found_in({0: rank("log", lines(4, 10)), 1: rank("none", [])})
    cell = {**CELL, "steps": {"warmup": 10, "measured": 30}}
    assert window_warnings(Ending(status="ok"), cell, found, None) == []
    assert window_warnings(Ending(status="ok"), {**cell, "program": {"unit": "tokens"}}, found, None) == [UNTOLD]


def test_who_says_log_in_a_run_of_epochs_gets_a_record() -> None:
    found = found_in({0: rank("log", lines(4, 10)), 1: rank("log", lines(4, 10))})
    assert window_warnings(Ending(status="ok"), {**CELL, "steps": None}, found, None) == []


def test_lines_that_come_a_little_early_or_late_make_no_clock_go_back() -> None:
    found = found_in({0: rank("log", lines(6, 10, jitter_ns=30_000_000)), 1: rank("none", [])})
    assert found["windows"] == []


def test_no_rank_that_tells_nothing() -> None:
    found = found_in({0: rank("none", []), 1: rank("none", [])}, StepsAsked(40, 30))
    assert (found["steps_source"], found["performance"], found["contradiction"]) == ("none", None, None)
    assert (found["windows"], found["warnings"], found["training"]["train_s"]) == ([], [], 100.0)


def test_a_rank_is_silent_by_itself_only_beside_output_that_was_read() -> None:
    one = [{"step": 0, "seconds": 0.1, "measured": True}]
    assert telling({0: rank(None, one), 1: rank("none", [])}, 2).num_ranks == 2
    assert telling({0: rank("log", one), 1: rank("none", [])}, 2).num_ranks == 1
    assert telling({0: rank("log", one)}, 2).num_ranks == 2
    assert found_in({0: rank(None, one), 1: rank("none", [])}, StepsAsked(1, 1))["contradiction"] is not None


@pytest.mark.parametrize(
    ("count", "steps", "asked", "words"),
    [
        (4, 10, StepsAsked(40, 30), None),
        (4, 10, StepsAsked(45, 45), None),
        (4, 10, StepsAsked(51, 41), "told of 30 of the 41 measured steps that were asked, up to step 40 of 51, 10 to a line"),
        (1, 10, StepsAsked(10, 5), "told of 0 of the 5 measured steps"),
        (0, 10, StepsAsked(10, 5), "no line of its output (`slipway logs RUN` shows it) told of a step"),
        (1, 10, StepsAsked(10, 0), None),
    ],
)
def test_a_window_may_be_shorter_by_what_a_line_holds(count: int, steps: int, asked: StepsAsked, words: str | None) -> None:
    said = too_few_lines({0: rank("log", lines(count, steps))}, asked)
    assert (said is None) == (words is None)
    assert (words or "None") in str(said)


@pytest.mark.parametrize("count", [0, 4])
def test_why_lines_were_left_out_is_the_reason(count: int) -> None:
    warning = "the expression took more than 0.1 s for each of 10 lines, which were left out; after that none was looked at"
    events = rank("log", lines(count, 10))
    events.add({"event": "warning", "message": warning, "time": 1.0})
    reason = too_few_lines({0: events}, StepsAsked(100, 90))
    assert reason is not None
    assert reason.endswith(f": {warning}")


@pytest.mark.parametrize("line", [{"step": 3, "steps": 5}, {"step": 2**53 - 1, "steps": 2**53 - 1}, {"step": 12, "steps": 4}])
def test_a_line_of_more_steps_than_can_be_is_left_out(line: dict[str, int]) -> None:
    events = rank("log", [{"step": 9, "steps": 10, "seconds": 0.1}, {**line, "seconds": 0.1}])
    assert (len(events.steps), events.broken_lines) == (10, 1)
