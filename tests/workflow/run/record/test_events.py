"""A program that trains another network than the cell asks for makes no row of it."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.run.cells import document
from workflow.run.record.events import (
    MAX_STEPS,
    RankEvents,
    RequestedSteps,
    RunStart,
    Step,
    last_error,
    most_steps,
    parse_events,
    reporting_ranks,
    requested_steps,
    too_few_lines,
    too_few_steps,
    unchecked_model,
    wrong_model,
)
from workflow.run.record.outcome import Ending
from workflow.run.record.run_record import NO_TOKENS, Measurements, measured, window_warnings
from workflow.study.cell import Cell


def told(*counts: int | None) -> dict[int, RankEvents]:
    step = Step(step=0, seconds=0.1, measured=True, samples=2, steps=1)
    return {
        rank: RankEvents(start=None if count is None else RunStart(parameters=count), steps={0: step}) for rank, count in enumerate(counts)
    }


def test_another_count_is_another_network() -> None:
    assert wrong_model(told(656_080, 656_080), "lenet", 656_080) is None
    wrong = "the program trained another network: lenet has 656080 parameters here, and rank {} tells of 33472"
    assert wrong_model(told(33_472, 33_472), "lenet", 656_080) == wrong.format(0)
    assert wrong_model(told(656_080, 33_472), "lenet", 656_080) == wrong.format(1)
    assert wrong_model(told(None, 33_472), "lenet", 656_080) == wrong.format(1)
    assert wrong_model(told(0), "lenet", 656_080) is not None


def test_no_count_is_told_apart() -> None:
    assert wrong_model(told(None, None), "lenet", 656_080) is None
    assert unchecked_model(told(1, 1), "lenet") == []
    (silent,) = unchecked_model(told(None, None), "lenet")
    assert silent == "the program does not tell how many parameters its network has: whether it is lenet was not checked"
    (one,) = unchecked_model(told(1, None), "lenet")
    assert one.startswith("rank 1 does not tell")
    assert unchecked_model({0: RankEvents()}, "lenet") == [], "it ended before it could"
    assert measured(told(None), 1, 2, "train", ("lenet", 656_080)).warnings == (silent,)


# How many steps a cell asks for, and which ranks told of fewer.


CELLS = [
    {"steps": {"warmup": 10, "measured": 50}, "epochs": None},
    {"steps": {"warmup": 0, "measured": 1}, "epochs": None},
    {"steps": {"warmup": 10, "measured": 50, "total": 100}, "epochs": None},
    {"steps": None, "epochs": 3},
    {"steps": None, "epochs": 1},
]
SAMPLES = 100
"""With a global batch of 8 an epoch is 12 steps."""


def whole(cell: dict[str, Any]) -> Cell:
    return document(**cell)


@pytest.mark.parametrize(
    ("cell", "first", "asked"),
    [
        (CELLS[0], 0, (60, 50)),
        (CELLS[0], 9, (51, 41)),
        (CELLS[0], 50, (10, 0)),
        (CELLS[0], 60, (0, 0)),
        (CELLS[1], 0, (1, 1)),
        (CELLS[2], 0, (100, 50)),
        (CELLS[2], 30, (70, 50)),
        (CELLS[2], 60, (40, 30)),
        (CELLS[3], 0, (36, 29)),
        (CELLS[3], 20, (16, 9)),
        (CELLS[4], 0, (12, 10)),
        ({"steps": {"warmup": 1, "measured": 2 * MAX_STEPS}, "epochs": None}, 0, (MAX_STEPS, MAX_STEPS - 1)),
    ],
)
def test_what_is_asked_of_a_rank(cell: dict[str, Any], first: int, asked: tuple[int, int]) -> None:
    assert requested_steps(whole(cell), SAMPLES, first) == asked


@pytest.mark.parametrize("cell", CELLS)
def test_no_more_steps_are_kept_than_the_cell_asks_for(cell: dict[str, Any]) -> None:
    asked = requested_steps(whole(cell), SAMPLES)
    assert most_steps(whole(cell), asked) == asked.total
    assert most_steps(whole(cell), None) == (MAX_STEPS if cell["steps"] is None else asked.total)


def step_line(step: int, **fields: Any) -> bytes:
    values = {
        "event": "step",
        "step": step,
        "seconds": 0.5,
        "measured": True,
        "samples": 8,
        "monotonic_ns": (step + 1) * 500_000_000,
        **fields,
    }
    return json.dumps(values).encode() + b"\n"


def test_a_million_steps_in_one_line_are_no_more_than_what_is_asked() -> None:
    events = parse_events([step_line(MAX_STEPS - 1, steps=MAX_STEPS, seconds=1e-6)], 60)
    assert (sorted(events.steps), events.beyond, events.broken_lines) == (list(range(60)), MAX_STEPS - 60, 0)


def test_more_steps_than_asked_are_left_out_and_warned_of() -> None:
    """The wall time that the program tells of its window is that of more steps than are kept."""
    lines = [step_line(step) for step in range(20)]
    lines.append(b'{"event": "run_stop", "window_wall_s": 10.0}\n')
    found = measured({0: parse_events(lines, 10)}, 1, 8, "train", None, RequestedSteps(10, 10))
    assert found.performance.samples_per_s == pytest.approx(16)
    assert found.window_findings == ("rank 0 wrote 20 steps, and the cell asks for 10: the last ones were left out",)
    lines[5] = lines[4]
    events = parse_events(lines, 30)
    assert (len(events.steps), events.beyond, events.broken_lines) == (19, 0, 1)
    assert "tell a step again" in measured({0: events}, 1, 8).warnings[0]


def reported(warmup: int, measured: int) -> RankEvents:
    step = Step(step=0, seconds=1.0, steps=1)
    return RankEvents(steps={number: step._replace(measured=number >= warmup) for number in range(warmup + measured)})


def test_the_first_rank_that_tells_of_fewer_is_named() -> None:
    asked = RequestedSteps(60, 50)
    assert too_few_steps({0: reported(10, 50), 1: reported(10, 50)}, asked) is None
    assert too_few_steps({0: reported(5, 60)}, asked) is None, "more than asked are a warning"
    assert too_few_steps({}, asked) is None, "that a rank is missing is said elsewhere"
    nothing = too_few_steps({0: reported(10, 50), 1: reported(0, 0)}, asked)
    assert nothing == "rank 1 ended well, and wrote 0 of the 50 measured steps that were asked"
    assert str(too_few_steps({0: reported(60, 0)}, asked)).startswith("rank 0 ended well, and wrote 0 of the 50 measured")
    assert too_few_steps({0: reported(9, 50)}, asked) == "rank 0 ended well, and wrote 59 of the 60 steps that were asked"
    assert too_few_steps({0: reported(0, 0)}, RequestedSteps(0, 0)) is None, "nothing was left after a resume"


# Steps that were read from output: what the record makes of lines that tell of several steps, of ranks that tell nothing, of too few.


CELL = document(nodes=2, global_batch_size=64, model="mine")


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


def found_in(events: dict[int, RankEvents], steps: RequestedSteps | None = None) -> Measurements:
    return measured(events, 2, 64, "train", None, steps)


def test_a_line_of_ten_steps_counts_as_ten_and_its_time_as_one_mean() -> None:
    found = found_in({0: rank("log", lines(4, 10)), 1: rank("none", [])}, RequestedSteps(40, 30))
    assert (found.steps_source, found.contradiction, found.window_findings, found.window) == ("log", None, (), (10, 39))
    pace = found.performance
    assert found.training is not None
    assert (pace.num_measured_steps, pace.steps_together, pace.step_s.n) == (30, 10, 3)
    assert pace.samples_per_s == pytest.approx(640.0)
    assert pace.samples_per_s_per_gpu == pytest.approx(320.0)
    assert pace.first_step_s is None
    assert [step for step, _ in found.training.losses or ()] == [9, 19, 29, 39]


def test_lines_without_tokens_make_no_rate_in_tokens_and_that_is_said() -> None:
    found = found_in({0: rank("log", lines(4, 10)), 1: rank("none", [])})
    cell = dataclasses.replace(CELL, steps={"warmup": 10, "measured": 30})
    assert window_warnings(Ending(status="ok"), cell, found, None) == []
    assert window_warnings(Ending(status="ok"), dataclasses.replace(cell, program={"unit": "tokens"}), found, None) == [NO_TOKENS]


def test_who_says_log_in_a_run_of_epochs_gets_a_record() -> None:
    found = found_in({0: rank("log", lines(4, 10)), 1: rank("log", lines(4, 10))})
    assert window_warnings(Ending(status="ok"), dataclasses.replace(CELL, steps=None), found, None) == []


def test_lines_that_come_a_little_early_or_late_make_no_clock_go_back() -> None:
    found = found_in({0: rank("log", lines(6, 10, jitter_ns=30_000_000)), 1: rank("none", [])})
    assert found.window_findings == ()


def test_no_rank_that_tells_nothing() -> None:
    found = found_in({0: rank("none", []), 1: rank("none", [])}, RequestedSteps(40, 30))
    assert (found.steps_source, found.performance, found.contradiction) == ("none", None, None)
    assert (found.window_findings, found.warnings, found.training.train_s) == ((), (), 100.0)


def test_a_rank_is_silent_by_itself_only_beside_output_that_was_read() -> None:
    one = [{"step": 0, "seconds": 0.1, "measured": True}]
    assert reporting_ranks({0: rank(None, one), 1: rank("none", [])}, 2).num_ranks == 2
    assert reporting_ranks({0: rank("log", one), 1: rank("none", [])}, 2).num_ranks == 1
    assert reporting_ranks({0: rank("log", one)}, 2).num_ranks == 2
    assert found_in({0: rank(None, one), 1: rank("none", [])}, RequestedSteps(1, 1)).contradiction is not None


@pytest.mark.parametrize(
    ("count", "steps", "asked", "words"),
    [
        (4, 10, RequestedSteps(40, 30), None),
        (4, 10, RequestedSteps(45, 45), None),
        (4, 10, RequestedSteps(51, 41), "told of 30 of the 41 measured steps that were asked, up to step 40 of 51, 10 to a line"),
        (1, 10, RequestedSteps(10, 5), "told of 0 of the 5 measured steps"),
        (0, 10, RequestedSteps(10, 5), "no line of its output (`slipway logs RUN` shows it) told of a step"),
        (1, 10, RequestedSteps(10, 0), None),
    ],
)
def test_a_window_may_be_shorter_by_what_a_line_holds(count: int, steps: int, asked: RequestedSteps, words: str | None) -> None:
    said = too_few_lines({0: rank("log", lines(count, steps))}, asked)
    assert (said is None) == (words is None)
    assert (words or "None") in str(said)


@pytest.mark.parametrize("count", [0, 4])
def test_why_lines_were_left_out_is_the_reason(count: int) -> None:
    warning = "10 lines match the expression, and tell of no step that can be: they were left out"
    events = rank("log", lines(count, 10))
    events.add({"event": "warning", "message": warning, "time": 1.0})
    reason = too_few_lines({0: events}, RequestedSteps(100, 90))
    assert reason.endswith(f": {warning}")


@pytest.mark.parametrize("line", [{"step": 3, "steps": 5}, {"step": 2**53 - 1, "steps": 2**53 - 1}, {"step": 12, "steps": 4}])
def test_a_line_of_more_steps_than_can_be_is_left_out(line: dict[str, int]) -> None:
    events = rank("log", [{"step": 9, "steps": 10, "seconds": 0.1}, {**line, "seconds": 0.1}])
    assert (len(events.steps), events.broken_lines) == (10, 1)


def test_the_last_error_of_a_log_has_the_first_entry_of_its_list(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "10:00:00 plan ERROR earlier\n10:00:01 plan ERROR 2 entries of the source cannot be used:\n  a.txt: no image\n  b.txt: no image\n"
        "10:00:02 plan INFO ends\n  not of the error\n"
    )
    assert last_error(tmp_path / "log") == "2 entries of the source cannot be used: a.txt: no image"
