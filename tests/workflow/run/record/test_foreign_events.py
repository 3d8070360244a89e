"""What a program may say in its events, and what becomes of what no program should: never the end of the node program or of the record."""

import io
import json
import math
from pathlib import Path

import msgspec
import pytest

from base.jsonfile import canonical_json
from workflow.run.node.ranks import PARSE_LINES, EventTail
from workflow.run.record.events import (
    MAX_LINE,
    MAX_WARNING,
    ErrorEvent,
    OtherEvent,
    PhaseEvent,
    RunStart,
    bounded_lines,
    checked_event,
    parse_events,
    parse_line,
    read_events,
)
from workflow.run.record.rate import performance
from workflow.run.record.run_record import measured, program_provenance

HUGE = "1" + "0" * 400
STEP = '{"event": "step", "step": 0, "seconds": 0.5, "measured": true}'
BROKEN = [
    f'{{"event": "step", "step": 0, "seconds": {HUGE}}}',
    f'{{"event": "step", "step": {HUGE}, "seconds": 1}}',
    '{"event": "step", "step": 0, "seconds": 1e999}',
    '{"event": "step", "step": -1, "seconds": 1}',
    '{"event": "step", "step": true, "seconds": 1}',
    '{"event": "step", "step": 0, "seconds": -0.1}',
    '{"event": "step", "step": 0, "seconds": NaN}',
    '{"event": "step", "step": 0, "seconds": 1e308}',
    '{"event": "step", "seconds": 1}',
    '{"event": 3}',
    '{"event": "warning"}',
    "[" * 100_000,
    "",
    json.dumps({"event": "warning", "message": "x" * MAX_LINE}),
]


@pytest.mark.parametrize("line", BROKEN)
def test_a_broken_line_is_counted_and_ends_nothing(tmp_path: Path, line: str) -> None:
    path = tmp_path / "events-0.jsonl"
    path.write_text(f"{line}\n{STEP}\n" + STEP.replace('"step": 0', '"step": 9'))  # torn at the end of the program
    found = read_events(tmp_path, 1)
    assert (found[0].broken_lines, list(found[0].steps)) == (1, [0])
    canonical_json(msgspec.to_builtins(measured(found, 1, 8)))
    beats = EventTail(path, 0.0)
    beats.poll(1.0)
    assert beats.step == 0
    assert beats.limit_s(1.0, 5.0) == 5.0


@pytest.mark.parametrize(
    "event",
    [
        {"event": "run_start", "parameters": 10**400, "provenance": {"a": math.nan, "b": [[[[[[1]]]]]], "\ud800": "\udcff"}},
        {"event": "run_start", "framework": ["x"], "framework_version": {"a": 1}, "provenance": "\ud800"},
        {"event": "run_stop", "norm": 1e308, "train_s": True, "max_memory_allocated_bytes": 1e99},
        {"event": "error", "kind": ["oom"], "message": "\udcff\x1b" * 5000, "time": 10**400},
        {"event": "warning", "message": "\udcff" * 5000},
        {"event": "phase", "phase": {"\ud800": 10**400}},
        {"event": "eval", "split": "\ud800", "loss": 10**400, "samples": -3},
        {"event": "checkpoint", "step": 10**400, "bytes": 1e300, "resumable": True},
    ],
)
def test_any_field_may_hold_anything_and_the_record_can_be_written(tmp_path: Path, event: dict[str, object]) -> None:
    (tmp_path / "events-0.jsonl").write_text(f'{{"event": "run_start"}}\n{STEP}\n{json.dumps(event)}\n')
    canonical_json(msgspec.to_builtins(measured(read_events(tmp_path, 1), 1, 8)))
    beats = EventTail(tmp_path / "events-0.jsonl", 0.0)
    beats.poll(1.0)
    canonical_json([beats.phase, beats.error, beats.checkpoint])


def test_a_size_that_a_program_tells_is_kept_where_it_is_one() -> None:
    found = [
        program_provenance({0: RunStart(provenance={"gpu_memory_bytes": value})})["gpu_memory_bytes"] for value in (80 << 30, 85e9, "80 GB")
    ]
    assert found == [80 << 30, 85_000_000_000, None]


def test_what_is_said_is_bounded() -> None:
    lines = [json.dumps({"event": "warning", "message": "x" * 9000}).encode() + b"\n"] * 5000
    events = parse_events(lines)
    assert (len(events.warnings), len(events.warnings[0])) == (1000, MAX_WARNING)
    evals = parse_events(json.dumps({"event": "eval", "loss": number}).encode() + b"\n" for number in range(5000)).evals
    assert (len(evals), evals[-1].loss) == (1000, 4999.0)


def test_a_line_without_end_takes_no_memory_and_hides_nothing(tmp_path: Path) -> None:
    content = b"x" * (3 * MAX_LINE) + b"\n" + STEP.encode() + b"\n"
    assert [len(line) for line in bounded_lines(io.BytesIO(content))] == [1, len(STEP) + 1]
    assert list(bounded_lines(io.BytesIO(b"x" * (2 * MAX_LINE)))) == [b"\n"]
    path = tmp_path / "events-0.jsonl"
    path.write_bytes(content)
    beats = EventTail(path, 0.0)
    for _ in range(3):
        beats.poll(1.0)
        assert len(beats._rest) <= MAX_LINE + 1
    assert beats.step == 0


def test_numbers_at_the_bounds_give_finite_results() -> None:
    lines = [
        json.dumps({"event": "step", "step": step, "seconds": seconds, "measured": True, "loss": 1e100}).encode() + b"\n"
        for step, seconds in enumerate((1e100, 5e-324, 1e-99, 0))
    ]
    found = performance({0: parse_events(lines)}, 1, 1 << 40)
    canonical_json(msgspec.to_builtins(found))


def test_only_what_is_read_is_kept() -> None:
    event = checked_event(parse_line('{"event": "phase", "phase": "train", "other": [1, 2], "time": 3}'))
    assert event == PhaseEvent("train")
    assert checked_event({"event": "of another version", "x": 1}) == OtherEvent()


@pytest.mark.parametrize("many", [0, PARSE_LINES])
def test_a_loss_that_is_not_finite_ends_a_rank_as_nan(tmp_path: Path, many: int) -> None:
    path = tmp_path / "events-0.jsonl"
    bad = 60 + many // 2
    steps = [{"event": "step", "step": step, "seconds": 0.01, "loss": math.nan if step == bad else 1.0} for step in range(2 * bad)]
    path.write_text("".join(json.dumps(step) + "\n" for step in steps))
    beats = EventTail(path, 0.0)
    beats.poll(1.0)
    assert beats.error == ErrorEvent("nan", f"the loss of step {bad} is nan")
