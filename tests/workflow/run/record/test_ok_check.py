"""What must lie on storage of a run that ended `ok`."""

from __future__ import annotations

from typing import Any

import pytest

from base.jsonfile import canonical_json
from workflow.run.record.events import RankEvents, parse_events
from workflow.run.record.outcome import contradiction, other_device
from workflow.run.record.run_record import measured


def test_every_rank_has_begun_and_ended_in_what_was_pushed() -> None:
    whole = RankEvents(start={"parameters": 7}, stop={"norm": 1.5})
    assert contradiction({0: whole, 1: whole}, 2, ("lenet", 7)) is None
    assert contradiction({0: whole, 1: whole}, 2, None) is None
    found = contradiction({0: whole}, 2, None)
    assert found is not None
    assert found.startswith("rank 1 ended well, and there is no events-1.jsonl among what could be pushed")
    torn = {0: whole, 1: RankEvents(start={"parameters": 7})}
    assert "events-1.jsonl was pushed without run_stop:" in str(contradiction(torn, 2, None))
    assert "events-0.jsonl was pushed without run_start and run_stop:" in str(measured({0: RankEvents()}, 1, 2)["contradiction"])
    assert "another network" in str(contradiction({0: whole}, 1, ("lenet", 8)))


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"world_size": 2, "rank": 1, "device": "cuda:1"}, None),
        ({}, None),
        ({"world_size": 1}, "rank 1 tells of 1 ranks in all, and the run has 2: they did not work together"),
        ({"rank": 0}, "events-1.jsonl was written by rank 0"),
        ({"device": "cpu"}, "rank 1 computed on cpu, as it tells, and the run's device is cuda"),
    ],
)
def test_a_rank_that_was_elsewhere_makes_no_result(told: dict[str, Any], words: str | None) -> None:
    """Two processes that never met do twice the work of one: a speed-up of exactly 2."""
    good = RankEvents(start={"world_size": 2, "rank": 0, "device": "cuda"}, stop={"norm": 1.5})
    events = {0: good, 1: RankEvents(start=told, stop={"norm": 1.5})}
    found = contradiction(events, 2, None) or other_device(events, "cuda")
    assert str(words) in str(found)


def test_one_process_may_work_for_all_ranks_if_it_says_so() -> None:
    alone = RankEvents(start={"world_size": 2, "rank": 0, "drives_all": True}, stop={"norm": 1.5})
    assert contradiction({0: alone}, 2, None) is None
    beside = {0: alone, 1: RankEvents(start={}, stop={"norm": 1.5})}
    assert "works for all ranks, and there is an events-1.jsonl" in str(contradiction(beside, 2, None))
    assert "tells of 2 ranks in all, and the run has 1" in str(contradiction({0: alone}, 1, None))


def test_what_run_start_tells_of_rank_and_device_is_read() -> None:
    lines = b'{"event": "run_start", "rank": 3, "device": "cpu"}\n{"event": "run_stop"}\n'
    assert "written by rank 3" in str(measured({0: parse_events([*lines.splitlines(keepends=True)])}, 1, 8)["contradiction"])
    assert "written" not in str(measured({0: parse_events([b'{"event": "run_start", "rank": "x"}\n'])}, 1, 8)["contradiction"])


@pytest.mark.parametrize("loss", ["NaN", "-Infinity", "1e999"])
def test_a_loss_that_is_not_finite_is_no_result(loss: str) -> None:
    """A step of NaN may take as long as any other: a table would show its rate as that of a training."""
    lines = ['{"event": "run_start"}', *(_step(step, "0.5" if step < 7 else loss) for step in range(9)), '{"event": "run_stop"}']
    events = {0: parse_events([f"{line}\n".encode() for line in lines])}
    assert str(contradiction(events, 1, None)).endswith("tells that the loss of its step 7 is NaN or infinite")
    assert [step.loss for step in events[0].steps.values()] == [0.5] * 7 + [None] * 2
    canonical_json(measured(events, 1, 8))


@pytest.mark.parametrize("told", ["-5", "0.5", "1e999", '"eight"', "NaN", "true"])
@pytest.mark.parametrize("key", ["samples", "tokens"])
def test_a_number_of_samples_that_is_none_is_no_result(key: str, told: str) -> None:
    """The batch of the cell would count in its place, which the rank may not have done."""
    steps = [_step(step, "0.5").replace('"samples": 8', f'"{key}": {told}' if step == 4 else f'"{key}": 8.0') for step in range(9)]
    events = {0: parse_events([f"{line}\n".encode() for line in ('{"event": "run_start"}', *steps, '{"event": "run_stop"}')])}
    found = str(contradiction(events, 1, None))
    assert found.startswith("rank 0 tells of ")
    assert found.endswith(f" {key} in its step 4: expected a whole number from 0 on, or nothing where it does not know")


@pytest.mark.parametrize("told", ["0", "8", "null"])
def test_samples_that_are_not_known_are_those_of_the_cell(told: str) -> None:
    steps = [_step(step, "0.5").replace('"samples": 8', f'"samples": {told}') for step in range(9)]
    events = {0: parse_events([f"{line}\n".encode() for line in ('{"event": "run_start"}', *steps, '{"event": "run_stop"}')])}
    assert contradiction(events, 1, None) is None


@pytest.mark.parametrize(
    ("told", "source", "assumed"), [("null", "program", ["samples"]), ("8", "program", []), ("null", "log", ["samples"]), ("8", "log", [])]
)
def test_samples_that_no_rank_reports_are_assumed(told: str, source: str, assumed: list[str]) -> None:
    steps = [_step(step, "0.5").replace('"samples": 8', f'"samples": {told}') for step in range(9)]
    start = f'{{"event": "run_start", "steps_source": "{source}"}}'
    events = {0: parse_events([f"{line}\n".encode() for line in (start, *steps, '{"event": "run_stop"}')])}
    assert measured(events, 1, 8)["performance"]["assumed"] == assumed


def _step(step: int, loss: str) -> str:
    return f'{{"event": "step", "step": {step}, "seconds": 0.5, "measured": true, "samples": 8, "loss": {loss}}}'
