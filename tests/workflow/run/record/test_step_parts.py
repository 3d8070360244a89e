"""The parts of a step, in numbers that can be checked by hand, and what no order of ranks and no unit of time may change."""

import json
import random
from typing import Any

import msgspec
import pytest

from extras.verify.runs import differences
from tests.workflow.report.builder import make_cell, make_record
from workflow.run.record.events import Step, parse_events
from workflow.run.record.model import StepParts, WhatIf
from workflow.run.record.rate import performance
from workflow.run.record.step_parts import parts_of, what_if

WHOLE = {"input_s": 0.01, "copy_s": 0.002, "forward_s": 0.02, "backward_s": 0.04, "optimizer_s": 0.005}


def step(seconds: float = 0.1, exchange_s: float | None = 0.02, **parts: Any) -> Step:
    return Step(step=0, seconds=seconds, measured=True, samples=2, exchange_s=exchange_s, **parts)


def test_communication_is_what_the_last_rank_waits_and_skew_what_the_others_wait_beyond_that() -> None:
    """Rank 1 is 30 ms late in the first step, rank 0 in the second one; in both the exchange alone takes 5 ms, and 7 ms."""
    ranks = [{4: step(0.1, 0.035, **WHOLE), 5: step(0.12, 0.007, **WHOLE)}, {4: step(0.1, 0.005, **WHOLE), 5: step(0.12, 0.037, **WHOLE)}]
    found = parts_of(ranks, [4, 5])
    assert found is not None
    assert (found.exposed_s, found.skew_s, found.step_s) == (pytest.approx(0.006), pytest.approx(0.015), pytest.approx(0.11))
    assert {name: getattr(found, name) for name in WHOLE} == {name: pytest.approx(value) for name, value in WHOLE.items()}
    assert found.other_s == pytest.approx(0.11 - 0.077 - 0.021)


def test_one_rank_waits_for_nobody() -> None:
    found = parts_of([{0: step(0.1, 0.001, **WHOLE)}], [0])
    assert found is not None
    assert (found.exposed_s, found.skew_s) == (0.001, 0.0)


@pytest.mark.parametrize(("processes", "exposed_s", "backward_s"), [(1, 0.0, 0.06), (2, 0.02, 0.04)])
def test_a_rank_that_trains_alone_has_no_exchange_whatever_it_calls_so(processes: int, exposed_s: float, backward_s: float) -> None:
    """DistributedDataParallel of one process still copies gradients to its buckets: no network makes that faster."""
    told = {"samples": 8, "input_s": 0.01, "copy_s": 0.002, "forward_s": 0.02, "backward_s": 0.04, "exchange_s": 0.02, "optimizer_s": 0.005}
    lines = [
        json.dumps({"event": "step", "step": number, "measured": True, "seconds": 0.1, **told}).encode() + b"\n" for number in range(3)
    ]
    found = performance({0: parse_events(lines)}, 1, 8, processes=processes)
    assert found is not None
    assert found.parts is not None
    assert found.what_if is not None
    assert (found.parts.exposed_s, found.parts.backward_s) == (pytest.approx(exposed_s), pytest.approx(backward_s))
    assert found.what_if.no_exposed_s == pytest.approx(0.1 - exposed_s)


def test_a_part_that_a_rank_left_out_of_a_step_is_not_known_and_in_the_rest() -> None:
    ranks = [{0: step(**WHOLE), 1: step(**WHOLE)}, {0: step(**WHOLE), 1: step(**{**WHOLE, "copy_s": None}, exchange_s=None)}]
    found = parts_of(ranks, [0, 1])
    assert found == StepParts(
        input_s=pytest.approx(0.01), forward_s=pytest.approx(0.02), backward_s=pytest.approx(0.04), optimizer_s=pytest.approx(0.005),
        other_s=pytest.approx(0.025), step_s=pytest.approx(0.1),
    )  # fmt: skip
    assert parts_of(ranks, [0]) is not None
    assert parts_of([{0: step(exchange_s=None)}], [0]) is None


def test_parts_that_overlap_leave_a_rest_below_zero() -> None:
    found = parts_of([{0: step(0.1, None, forward_s=0.08, backward_s=0.08)}], [0])
    assert found is not None
    assert found.other_s == pytest.approx(-0.06)


@pytest.mark.parametrize(
    ("told", "kept"), [("0.04", 0.04), ("0", 0.0), ("0.1005", 0.1), ("-1", None), ("0.2", None), ("NaN", None), ("[]", None)]
)
def test_a_part_longer_than_its_step_is_none(told: str, kept: float | None) -> None:
    events = parse_events([b'{"event": "step", "step": 0, "seconds": 0.1, "forward_s": %s}\n' % told.encode()])
    assert events.steps[0].forward_s == kept


def lines(rank: int, **parts: float) -> bytes:
    told = [
        {"event": "step", "step": number, "seconds": 0.1, "measured": True, "samples": 8, "monotonic_ns": (number + 1) * 10**8, **parts}
        for number in range(30)
    ]
    return b"".join(json.dumps(one).encode() + b"\n" for one in told)


def test_the_record_has_what_the_events_give_and_verify_computes_it_again(tmp_path: Any) -> None:
    for rank in (0, 1):
        (tmp_path / f"events-{rank}.jsonl").write_bytes(lines(rank, exchange_s=0.01 * (1 + rank), **WHOLE))
    events = {rank: parse_events((tmp_path / f"events-{rank}.jsonl").read_bytes().splitlines(keepends=True)) for rank in (0, 1)}
    found = performance(events, 2, 16)
    assert found is not None
    assert found.parts is not None
    assert (found.parts.exposed_s, found.parts.skew_s) == (pytest.approx(0.01), pytest.approx(0.005))
    cell = make_cell(nodes=2, batch_size=8)
    parts = json.loads(msgspec.json.encode(found.parts))

    def wrong(parts: dict[str, Any]) -> list[str]:
        record = make_record(cell)
        record["performance"]["parts"] = parts
        return [said for said in differences(record, tmp_path, None) if "parts" in said]

    assert wrong(parts) == []
    assert wrong({**parts, "exposed_s": 0.012})[0].startswith("performance.parts.exposed_s is 0.012, and its events give 0.01")


# Steps without one of their parts.


def what_ifs(ranks: list[list[Step]], mode: str = "train", straggler: int | None = None) -> WhatIf:
    result = what_if([dict(enumerate(steps)) for steps in ranks], range(len(ranks[0])), mode, straggler)
    assert result is not None
    return result


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)


def test_slow_input_of_one_rank_is_found_on_the_critical_path() -> None:
    """Rank 1 waits 50 ms for its batch, rank 0 as long for rank 1; the exchange alone takes 10 ms, the rest 80 ms on both."""
    late = {"input_s": 0.05, "forward_s": 0.02, "backward_s": 0.05, "optimizer_s": 0.01}
    even = {**late, "input_s": 0.0}
    result = what_ifs([[step(0.14, 0.06, **even)], [step(0.14, 0.01, **late)]], straggler=1)
    assert (result.step_s, result.no_input_s, result.no_exposed_s) == (near(0.14), near(0.09), near(0.13))
    assert result.no_skew_s == near(0.09), "if rank 1 was no slower than the other"
    assert (result.no_copy_s, result.no_other_s) == (None, near(0.14))
    assert result.slow_part == "input"


def test_ranks_that_are_slow_in_turn_are_as_fast_as_their_mean() -> None:
    result = what_ifs([[step(0.1, 0.01), step(0.1, 0.03)], [step(0.1, 0.03), step(0.1, 0.01)]])
    assert (result.step_s, result.no_skew_s, result.slow_part) == (near(0.1), near(0.09), None)


def test_input_that_ranks_lack_in_turn_is_taken_away_step_by_step() -> None:
    """Each rank waits 40 ms in its own step: a mean of 20 ms over ranks, but every step is 40 ms longer."""
    late, even = {"input_s": 0.04}, {"input_s": 0.0}
    result = what_ifs([[step(0.1, 0.01, **late), step(0.1, 0.05, **even)], [step(0.1, 0.05, **even), step(0.1, 0.01, **late)]])
    assert (result.step_s, result.no_input_s) == (near(0.1), near(0.06))


def test_without_others_nothing_is_gained_by_their_parts() -> None:
    result = what_ifs([[step(0.1, None, **WHOLE)]])
    assert (result.no_exposed_s, result.no_skew_s) == (None, None)
    assert (result.no_input_s, result.no_copy_s, result.no_other_s) == (near(0.09), near(0.098), near(0.077))
    told = what_ifs([[step(0.1, 0.001, **WHOLE)]])
    assert (told.no_exposed_s, told.no_skew_s) == (near(0.099), near(0.1))


def test_ranks_of_an_inference_go_their_own_ways() -> None:
    result = what_ifs([[step(0.1, None, input_s=0.04)], [step(0.2, None, input_s=0.0)]], mode="infer")
    assert (result.step_s, result.no_input_s, result.no_skew_s) == (near(0.15), near(0.13), None)


def test_a_wait_of_the_host_while_the_device_computes_costs_nothing() -> None:
    """The events of the stream fill 95 of 100 ms; the host waited 60 ms for its batch meanwhile."""
    busy = {"input_s": 0.06, "forward_s": 0.03, "backward_s": 0.06, "optimizer_s": 0.005}
    assert what_ifs([[step(0.1, None, **busy)]]).no_input_s == near(0.095)


@pytest.mark.parametrize("lost", ["forward_s", "backward_s", "optimizer_s", "input_s"])
def test_what_is_no_part_is_not_known_where_a_part_is_not_told(lost: str) -> None:
    parts = {name: value for name, value in WHOLE.items() if name != lost}
    assert what_ifs([[step(0.1, 0.0, **parts)]]).no_other_s is None


def test_nothing_is_said_of_ranks_of_which_one_does_not_tell_how_long_it_waited() -> None:
    ranks = [{0: step(0.1, 0.01, **WHOLE), 1: step(0.1, 0.01, **WHOLE)}, {0: step(0.1, 0.02, **WHOLE), 1: step(0.1, None, **WHOLE)}]
    assert what_if(ranks, [0, 1], "train", None) is None
    assert what_if(ranks, [0], "train", None) is not None
    assert what_if([{0: step(0.1, None)}], [0], "train", None) is None, "no part at all"
    assert what_if([], [], "train", None) is None


@pytest.mark.parametrize("seed", range(20))
def test_neither_the_order_of_ranks_nor_the_unit_of_time_changes_what_would_be(seed: int) -> None:
    rng = random.Random(seed)
    count, length = rng.randint(2, 5), rng.randint(1, 6)
    ranks = [
        [step(rng.uniform(0.2, 0.3), rng.uniform(0, 0.1), **{name: rng.uniform(0, 0.05) for name in WHOLE}) for _ in range(length)]
        for _ in range(count)
    ]
    slow = rng.randrange(count)
    first = msgspec.to_builtins(what_ifs(ranks, straggler=slow))
    order = rng.sample(range(count), count)
    moved = what_ifs([ranks[rank] for rank in order], straggler=order.index(slow))
    assert msgspec.to_builtins(moved) == {name: pytest.approx(value) for name, value in first.items()}
    names = ("seconds", "exchange_s", *WHOLE)
    slower = [[one._replace(**{name: 8 * getattr(one, name) for name in names}) for one in steps] for steps in ranks]
    scaled = msgspec.to_builtins(what_ifs(slower, straggler=slow))
    assert scaled == {name: value if name == "slow_part" else pytest.approx(8 * value) for name, value in first.items()}
    assert all(value <= first["step_s"] + 1e-12 for name, value in first.items() if name != "slow_part"), "no removal makes it slower"
