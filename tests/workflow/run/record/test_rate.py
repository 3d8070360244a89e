"""The rate is samples over wall time, in numbers that can be checked by hand; and by simulation, where both are known."""

import dataclasses
import json
import math
import random
from typing import Any

import pytest

from benchmarks.rate import CASES, measure
from benchmarks.stragglers import named
from tests.workflow.run.cells import document
from tests.workflow.run.record.test_record import rank_events
from workflow.run.record.events import RankEvents, RunStart, RunStop, Step, parse_events
from workflow.run.record.model import Drift, Replicas
from workflow.run.record.outcome import Ending
from workflow.run.record.rate import (
    MAX_LENGTHS,
    NOT_COMPARED,
    drift,
    early,
    performance,
    replica_warnings,
    replicas_of,
    reported_windows,
    straggler,
    training,
    window_of,
)
from workflow.run.record.run_record import NO_TOKENS, measured, window_warnings

SECOND_NS = 10**9


def rank(seconds: list[float], *, waits: list[float] | None = None, clock_ns: int = 0, gap_s: float = 0.0, **step: Any) -> RankEvents:
    """A rank that did 2 samples in each step, `waits` of it waiting for the others, and then nothing for `gap_s`."""
    steps = {}
    now = float(clock_ns) / SECOND_NS
    for number, took in enumerate(seconds):
        now += took
        wait = waits[number] if waits else None
        steps[number] = Step(
            step=number, seconds=took, input_s=0.0, measured=True, samples=2, monotonic_ns=round(SECOND_NS * now), exchange_s=wait, steps=1
        )._replace(**step)
        now += gap_s
    return RankEvents(steps=steps)


def rate(events: dict[int, RankEvents], mode: str = "train") -> Any:
    found = performance(events, len(events), 2 * len(events), mode)
    assert found is not None
    return found


def test_a_step_that_stalls_counts_with_all_its_time() -> None:
    """99 steps of 0.1 s and one of 10.1 s, 8 ranks of 2: 1600 samples in 20 s."""
    found = rate({number: rank([0.1] * 99 + [10.1]) for number in range(8)})
    assert (found.samples, found.window_s, found.samples_per_s) == (1600, pytest.approx(20), pytest.approx(80))
    assert found.samples_per_s_per_gpu == pytest.approx(10)
    assert found.step_s.p50 == pytest.approx(0.1), "the median step says 160 samples/s"
    assert (found.rate_to_median_ratio, found.uneven_cause) == (pytest.approx(0.5), "stalls")


def stepping(number: int, end_s: float, seconds: float) -> dict[str, Any]:
    return {"event": "step", "step": number, "seconds": seconds, "measured": True, "samples": 2, "monotonic_ns": int(end_s * 1e9)}


def phase(name: str, at_s: float) -> dict[str, Any]:
    return {"event": "phase", "phase": name, "monotonic_ns": int(at_s * 1e9)}


RESULT = {"event": "eval", "split": "test", "step": 2, "loss": 1.0, "accuracy": 0.5}


@pytest.mark.parametrize(
    ("between", "third_s", "window_s", "evaluation_s"),
    [
        ([phase("eval", 2), phase("eval", 4), RESULT, phase("train", 6)], 1.0, 4.0, 4.0),
        ([phase("eval", 2), phase("train", 6)], 1.0, 8.0, 0.0),
        ([phase("eval", 2), {**RESULT, "step": 3}, phase("train", 6)], 1.0, 8.0, 0.0),
        ([phase("eval", 0), RESULT, phase("train", 60)], 1.0, 4.0, 4.0),
        ([phase("eval", 2), RESULT, phase("train", 6)], 4.0, 7.0, 1.0),
        ([phase("eval", 2), RESULT, phase("train", 6)], 5.0, 8.0, 0.0),
        ([phase("eval", 6), RESULT, phase("train", 2)], 1.0, 8.0, 0.0),
        ([phase("eval", 2), RESULT], 1.0, 8.0, 0.0),
    ],
    ids=["said", "no result", "of another step", "longer than the gap", "part of it in the step", "in the step", "backward", "no end"],
)
def test_an_evaluation_takes_no_more_out_of_the_window_than_lies_between_steps(
    between: list[dict[str, Any]], third_s: float, window_s: float, evaluation_s: float
) -> None:
    """Four steps that end 1, 2, 7 and 8 s after the begin."""
    lines = [stepping(0, 1, 1.0), stepping(1, 2, 1.0), *between, stepping(2, 7, third_s), stepping(3, 8, 1.0)]
    found = rate({0: parse_events([json.dumps(line).encode() + b"\n" for line in lines])})
    assert (found.window_s, found.evaluation_s) == pytest.approx((window_s, evaluation_s))
    assert found.samples_per_s == pytest.approx(8 / window_s)


def test_each_rank_leaves_out_its_own_evaluations_between_the_steps_of_the_window() -> None:
    """Steps of 1 s, of which 1 and 2 are measured. Ranks evaluate 2 s before step 1, two splits before step 2, and 3 s before step 3."""

    def lines(each_s: float) -> RankEvents:
        found = [{**stepping(0, 1, 1.0), "measured": False}]
        now_s = 1.0
        for step, spans in ((1, [2.0]), (2, [each_s, each_s]), (3, [3.0])):
            for split, lasted_s in zip(("test", "validation"), spans, strict=False):
                found += [phase("eval", now_s), {**RESULT, "split": split, "step": step}, phase("train", now_s + lasted_s)]
                now_s += lasted_s
            now_s += 1.0
            found.append({**stepping(step, now_s, 1.0), "measured": step < 3})
        return parse_events([json.dumps(line).encode() + b"\n" for line in ({"event": "run_start"}, *found)])

    events = {0: lines(1.0), 1: lines(2.0)}
    found = rate(events)
    assert (found.window_s, found.evaluation_s) == pytest.approx((2.0, 4.0))
    window = window_of(events, 2, "train")
    assert window is not None
    assert [one.evaluation_s for one in reported_windows(window)] == pytest.approx([2.0, 4.0])
    told = training(events, 2)
    assert told is not None
    assert [(one.step, one.training_s) for one in told.evaluations or ()] == [(1, 1.0), (2, 2.0), (2, 2.0), (3, 3.0)]
    assert told.trained_s == 4.0


def test_more_evaluations_than_a_record_keeps_take_no_time() -> None:
    """1,200 steps of 0.1 s, before each of which but the first one 1 s was evaluated."""
    lines: list[dict[str, Any]] = []
    for number in range(1200):
        begin_s = 1.1 * number
        if number:
            lines += [phase("eval", begin_s - 1), {**RESULT, "step": number}, phase("train", begin_s)]
        lines.append(stepping(number, begin_s + 0.1, 0.1))
    found = rate({0: parse_events([json.dumps(line).encode() + b"\n" for line in lines])})
    assert (found.window_s, found.evaluation_s) == pytest.approx((120, 1199))


def test_what_a_rank_does_between_its_steps_is_part_of_the_window() -> None:
    """100 steps of 0.1 s with 0.1 s between them, such as an evaluation: the last gap is behind the window."""
    found = rate({0: rank([0.1] * 100, gap_s=0.1)})
    assert (found.window_s, found.samples_per_s, found.uneven_cause) == (pytest.approx(19.9), pytest.approx(200 / 19.9), "gaps")


def test_clocks_of_different_nodes_need_not_agree() -> None:
    found = rate({0: rank([0.1] * 100), 1: rank([0.1] * 100, clock_ns=7 * 10**15)})
    assert (found.window_s, found.samples_per_s, found.uneven_cause) == (pytest.approx(10), pytest.approx(40), None)


def test_the_window_that_a_program_tells_counts_where_its_lines_come_late() -> None:
    """Beside a GPU the line of the first measured step may be written when others are under way."""
    events = {0: rank([0.1] * 100)}
    first = events[0].steps[0]
    events[0].steps[0] = first._replace(monotonic_ns=SECOND_NS // 5)
    assert rate(events).window_s == pytest.approx(9.9)
    events[0].stop = RunStop(window_wall_s=10.0, window_steps_s=10.0)
    assert rate(events).samples_per_s == pytest.approx(20)


def test_a_window_without_a_clock_is_as_long_as_its_steps() -> None:
    assert rate({0: rank([0.1] * 100, monotonic_ns=None)}).samples_per_s == pytest.approx(20)
    assert rate({0: rank([0.1] * 100)}).samples_per_s == pytest.approx(20)


def windows(counts: dict[int, int], told_s: dict[int, float]) -> dict[int, RankEvents]:
    """Ranks of 4 samples a step and 0.1 s, which call `counts` steps from step 10 on measured and tell `told_s` for them."""
    events = {}
    for number, count in counts.items():
        entry = rank([0.1] * 210, samples=4)
        entry.steps = {step: took._replace(measured=10 <= step < 10 + count) for step, took in entry.steps.items()}
        entry.stop = RunStop(window_wall_s=told_s[number], checksum="a") if number in told_s else None
        events[number] = entry
    return events


@pytest.mark.parametrize("mode", ["train", "infer"])
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("count", [200, 150, 100])
def test_ranks_that_measure_different_steps_have_their_true_rate(mode: str, told: bool, count: int) -> None:
    """A rank's told wall time is that of all the steps it calls measured: the common ones may be fewer."""
    events = windows({0: 200, 1: count}, {0: 20.0, 1: count / 10} if told else {})
    found = performance(events, 2, 8, mode)
    assert (found.samples_per_s, found.uneven_cause) == (pytest.approx(80), None)
    assert found.rate_to_median_ratio == pytest.approx(1)
    assert (found.samples, found.window_s) == (
        (800 + 4 * count, pytest.approx(20)) if mode == "infer" else (8 * count, pytest.approx(count / 10))
    )
    assert measured(events, 2, 8, mode).warnings == ()


def told_lines(order: list[int]) -> bytes:
    """The lines of 4 samples and 0.1 s that a rank writes, one every 0.1 s."""
    fields = {"event": "step", "seconds": 0.1, "measured": True, "samples": 4}
    lines = [{**fields, "step": step, "monotonic_ns": (place + 1) * SECOND_NS // 10} for place, step in enumerate(order)]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def test_a_step_that_is_told_again_changes_nothing_and_is_counted() -> None:
    events = {0: parse_events(told_lines([*range(199), 0, 199]).splitlines(keepends=True))}
    found = performance(events, 1, 4)
    assert (found.samples_per_s, found.window_s) == (pytest.approx(800 / 20.1), pytest.approx(20.1))
    assert measured(events, 1, 4).warnings == ("rank 0 wrote 1 lines that are no events, or tell a step again",)


@pytest.mark.parametrize("order", [[*range(1, 199), 0, 199], [199, *range(199)], list(range(199, -1, -1))])
def test_steps_in_another_order_tell_no_wall_time(order: list[int]) -> None:
    events = {0: parse_events(told_lines(order).splitlines(keepends=True))}
    found = performance(events, 1, 4)
    assert (found.samples_per_s, found.window_s) == (pytest.approx(40), pytest.approx(20))
    (said,) = measured(events, 1, 4).window_findings
    assert said.startswith("the clock of rank 0 goes back")


def test_ranks_that_tell_no_wall_time_are_warned_of() -> None:
    """Their steps are added up, however long they really took together."""
    fields = {"event": "step", "seconds": 0.1, "measured": True, "samples": 4}
    silent = {0: parse_events([json.dumps({**fields, "step": step}).encode() + b"\n" for step in range(5)])}
    (said,) = measured(silent, 1, 4).window_findings
    assert said == "the wall time of the window is not known on rank 0: time between its steps is in no number"
    silent[0].stop = RunStop(window_wall_s=0.7)
    (said,) = measured(silent, 1, 4).window_findings
    assert said == "the steps of rank 0 tell no monotonic_ns: nobody has compared their seconds with Slipway's clock"


def test_no_window_is_shorter_than_its_steps() -> None:
    events = {0: rank([0.1] * 100, monotonic_ns=5)}
    assert rate(events).window_s == pytest.approx(10)
    events[0].stop = RunStop(window_wall_s=0.1)
    assert rate(events).window_s == pytest.approx(10)
    events[0].stop = RunStop(window_wall_s=9.9)
    assert rate(events).window_s == 9.9, "as far apart as the clocks of a node may be"


def test_a_miscount_of_samples_never_makes_a_run_faster_and_is_told() -> None:
    asked = rate({0: rank([0.1] * 10)}).samples_per_s
    assert rate({0: rank([0.1] * 10, samples=16)}).samples_per_s == pytest.approx(asked)
    assert rate({0: rank([0.1] * 10, samples=1)}).samples_per_s == pytest.approx(asked / 2)
    assert rate({0: rank([0.1] * 10, samples=None)}).samples_per_s == pytest.approx(asked)
    (warning,) = measured({0: rank([0.1] * 10, samples=16)}, 1, 2).warnings
    assert warning == "the ranks tell of 160 samples in 10 measured steps, and the cell asks for 20"
    assert measured({0: rank([0.1] * 10)}, 1, 2).warnings == ()


def test_tokens_count_as_they_are_told() -> None:
    """Three and five tokens a step, 100 steps of 0.1 s; one silent step, and nobody knows how many they were."""
    events = {0: rank([0.1] * 100, tokens=3), 1: rank([0.1] * 100, tokens=5)}
    found = rate(events)
    assert (found.tokens, found.tokens_per_s, found.tokens_per_s_per_gpu) == (800, pytest.approx(80), pytest.approx(40))
    assert found.samples_per_s == pytest.approx(40)
    slow = {0: rank([0.1] * 100, tokens=3), 1: rank([0.2] * 100, tokens=5)}
    assert rate(slow).tokens_per_s == pytest.approx(40)
    assert rate(slow, "infer").tokens_per_s == pytest.approx(30 + 25)
    events[1].steps[7] = events[1].steps[7]._replace(tokens=None)
    found = rate(events)
    assert (found.tokens, found.tokens_per_s, found.tokens_per_s_per_gpu) == (None, None, None)
    cell = document(steps={"warmup": 0, "measured": 100}, program={"unit": "tokens"})
    assert window_warnings(Ending(status="ok"), cell, measured(events, 2, 4), None) == [NO_TOKENS]
    assert window_warnings(Ending(status="ok"), cell, measured(slow, 2, 4), None) == []
    assert window_warnings(Ending(status="ok"), dataclasses.replace(cell, program={}), measured(events, 2, 4), None) == []


def test_tokens_are_told_apart_by_the_length_of_their_sequences() -> None:
    """Two ranks, ten steps of 3 tokens in sequences of 4 and of 5 tokens in sequences of 9."""
    both = {
        number: Step(step=number, seconds=0.1, measured=True, tokens=3 + 2 * (number % 2), length=4 + 5 * (number % 2))
        for number in range(20)
    }
    events = {0: RankEvents(steps=dict(both)), 1: RankEvents(steps=dict(both))}
    assert rate(events).tokens_by_length == ((4, 60), (9, 100))
    for wrong in (None, 0):
        events[1].steps[7] = both[7]._replace(length=wrong)
        assert rate(events).tokens_by_length is None
    one = {number: Step(step=number, seconds=0.1, measured=True, tokens=3, length=number + 1) for number in range(MAX_LENGTHS + 1)}
    assert rate({0: RankEvents(steps=one)}).tokens_by_length is None
    del one[MAX_LENGTHS]
    assert rate({0: RankEvents(steps=one)}).tokens_by_length == tuple((number + 1, 3) for number in range(MAX_LENGTHS))


def test_inference_is_as_fast_as_its_ranks_together() -> None:
    """Seven ranks with 20 samples/s and one with 10: 150, and the slow one ends after 20 s. In training all would wait for it: 80."""
    events = {number: rank([0.2 if number == 3 else 0.1] * 100) for number in range(8)}
    found = rate(events, "infer")
    assert (found.samples_per_s, found.window_s) == (pytest.approx(150), pytest.approx(20))
    assert (found.straggler_rank, found.uneven_cause) == (3, "stragglers")
    assert rate(events).samples_per_s == pytest.approx(80)


def test_a_straggler_is_named_by_its_own_work_only() -> None:
    """Rank 1 works for 0.2 s of every step, the others wait for it: all steps are equally long."""
    slow = {number: rank([0.2] * 100, waits=[0.0 if number == 1 else 0.1] * 100) for number in range(4)}
    found = rate(slow)
    assert (found.straggler_rank, found.rank_skew_p95_ratio) == (1, pytest.approx(2))
    silent = {number: rank([0.2 + 0.001 * number] * 100) for number in range(4)}
    assert (rate(silent).straggler_rank, rate(silent).rank_skew_p95_ratio) == (None, None), "an arbitrary rank would be named"
    slow[3] = rank([0.2] * 100)
    assert (rate(slow).straggler_rank, rate(slow).rank_skew_p95_ratio) == (None, None), "one that does not tell"


def test_ranks_that_are_alike_have_no_straggler() -> None:
    alike = {number: rank([0.2] * 100, waits=[0.1 - 0.001 * number] * 100) for number in range(4)}
    found = rate(alike)
    assert (found.straggler_rank, found.rank_skew_p95_ratio) == (None, pytest.approx(0.103 / 0.1015))


def test_noise_that_lasts_names_nobody() -> None:
    """The slowest of a window must be it in each quarter; and of a few steps nothing can be said."""
    assert straggler([[0.1, 0.2]] * 20) == 1
    assert straggler([[0.1, 0.2]] * 19) is None
    assert straggler([[0.1, 0.2]] * 80 + [[0.1, 0.1]] * 20) is None
    assert straggler([[0.1, 0.109]] * 100) is None
    assert straggler([[0.1, 0.2], None] * 50) is None
    assert straggler([[0.1]] * 100) is None
    trials = [named(seed, 8, 100, (0.1, 0.9), 1.0) for seed in range(40)]
    assert sum(rank is not None for rank in trials) <= 2


@pytest.mark.parametrize("name", CASES)
def test_a_simulated_window_has_its_true_rate(name: str) -> None:
    truth, found = measure(CASES[name], 8, 120)
    assert found.samples_per_s == pytest.approx(truth, rel=0.01)
    assert (found.uneven_cause, found.straggler_rank) == (CASES[name].cause, CASES[name].straggler)


def test_waiting_for_input_is_a_part_of_the_steps_that_counts_over_all_of_them() -> None:
    lines = [
        json.dumps({"event": "step", "step": step, "seconds": 0.1, "measured": True, **({"input_s": told} if told is not None else {})})
        for step, told in enumerate([0.3, None, -1e-9, 0.05])
    ]
    events = parse_events([f"{line}\n".encode() for line in lines])
    assert [step.input_s for step in events.steps.values()] == [0.1, None, None, 0.05]
    found = performance({0: events}, 1, 4, "train")
    assert found.input_wait_s_mean == pytest.approx(0.15 / 4)


# The test of a drift: closed forms, and what it says of steps that depend on each other.


def ar1(dice: random.Random, count: int, rho: float, spread: float = 0.05) -> list[float]:
    """Steps whose logarithms follow an AR(1)."""
    value, found = dice.gauss(0, spread), []
    for _ in range(count):
        found.append(0.1 * math.exp(value))
        value = rho * value + dice.gauss(0, spread * math.sqrt(1 - rho * rho))
    return found


def beyond(found: Drift | None) -> bool:
    """At 5 %, two-sided: Student's t with 8 degrees of freedom."""
    return bool(abs(found.change_ratio or 0.0) > 2.306004 * (found.stderr_ratio or 0.0))


def test_an_exact_line_is_found_exactly() -> None:
    """From 0.1 at the begin of the window to 0.11 at its end: 0.01 of a mean of 0.105."""
    found = drift([0.1 + 0.01 * (place + 0.5) / 200 for place in range(200)])
    assert (found.change_ratio, found.stderr_ratio) == (pytest.approx(0.01 / 0.105), pytest.approx(0, abs=1e-9))
    assert (found.others_ratio, found.steps) == (pytest.approx([0] * 8, abs=1e-9), 200)


def test_the_first_steps_are_compared_with_the_last_half_without_the_last_step() -> None:
    even = [1.0] * 20 + [2.0] * 20
    assert early(even) == (pytest.approx(40 / 60 * 2), pytest.approx(0.5))
    assert early([*even[:-1], 90.0]) == (pytest.approx(40 / 148 * 2), pytest.approx(0.5))
    assert early(even[:19]) is None


@pytest.mark.parametrize("steps", [[], [0.1] * 99, [0.0] * 200])
def test_what_is_too_short_or_took_no_time_is_not_tested(steps: list[float]) -> None:
    assert drift(steps) is None


def test_long_windows_are_tested_in_blocks() -> None:
    found = drift([0.1 + 0.01 * place / 5000 for place in range(5000)])
    assert (found.change_ratio, found.steps) == (pytest.approx(0.01 / 0.105, rel=1e-3), 5000)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_steps_that_depend_on_each_other_are_no_drift(rho: float) -> None:
    """About 5 of 100 windows. By the halves of the window, at 2 %, it were 70 of 100 with 0.9."""
    dice = random.Random(11)
    assert sum(beyond(drift(ar1(dice, 200, rho))) for _ in range(300)) <= 24


def test_a_ramp_of_3_percent_is_found() -> None:
    """Steps that scatter by 2 %, independent of each other: always."""
    dice = random.Random(12)
    for _ in range(20):
        assert beyond(drift([took * (1 + 0.03 * place / 200) for place, took in enumerate(ar1(dice, 200, 0.0, 0.02))]))


# Whether the ranks of a run ended with the same parameters.


def ranks(*checksums: str | None) -> dict[int, RankEvents]:
    """One rank for each checksum; None: it tells none."""
    told = ({} if checksum is None else {"checksum": checksum} for checksum in checksums)
    return {
        rank: RankEvents(start=RunStart(), steps=rank_events([0.1]).steps, stop=RunStop(norm=1.5, **stop)) for rank, stop in enumerate(told)
    }


@pytest.mark.parametrize(
    ("checksums", "found", "words"),
    [
        (("a", "a", "a"), ("a", 3, []), None),
        (("a",), ("a", 1, []), None),
        (("a", None, "a"), ("a", 2, []), None),
        (("a", "b"), ("a", 2, [1]), "rank 1 ended with other parameters than the other one: "),
        (("b", "a", "a"), ("a", 3, [0]), "rank 0 ended with other parameters than the 2 others: "),
        (("a", "b", "c"), ("a", 3, [1, 2]), "ranks 1, 2 ended with other parameters than one other: "),
        (("a", *"bcdefghijk"), ("a", 11, list(range(1, 11))), "ranks 1, 2, 3, 4, 5, 6, 7, 8 ... ended with"),
    ],
)
def test_ranks_with_another_checksum_than_most_are_apart(checksums: tuple[str, ...], found: tuple[str, int, list[int]], words: str) -> None:
    replicas = replicas_of(ranks(*checksums))
    assert replicas == Replicas(checksum=found[0], ranks=found[1], apart=tuple(found[2]))
    said = replica_warnings(replicas)
    assert len(said) == (words is not None)
    assert all(sentence.startswith(words) and sentence.endswith("have come apart") for sentence in said)


def test_ranks_that_exchange_nothing_on_purpose_may_end_apart() -> None:
    words = "rank 1 ended with other parameters than the other one"
    said = [measured(ranks("a", "b"), 2, 8, one_network=one_network).warnings for one_network in (True, False)]
    assert [any(words in warning for warning in warnings) for warnings in said] == [True, False]


def test_where_no_rank_tells_one_nothing_is_known() -> None:
    assert replicas_of(ranks(None, None)) is None
    assert replicas_of({0: RankEvents(start=RunStart(), steps={}, stop=None)}) is None
    assert replica_warnings(None) == []


@pytest.mark.parametrize(
    ("checksums", "mode", "warned"),
    [
        ((None, None), "train", True),
        (("a", None), "train", True),
        (("a", "a"), "train", False),
        ((None,), "train", False),
        ((None, None), "infer", False),
    ],
)
def test_ranks_that_nobody_compared_are_a_warning(checksums: tuple[str | None, ...], mode: str, warned: bool) -> None:
    found = measured(ranks(*checksums), len(checksums), 2 * len(checksums), mode)
    assert (NOT_COMPARED in found.warnings) == warned


def test_ranks_of_a_run_that_was_cut_off_are_not_compared() -> None:
    events = ranks(None, None)
    events[1].stop = None
    assert NOT_COMPARED not in measured(events, 2, 4).warnings


@pytest.mark.parametrize(
    ("began_s", "ended_s", "hosts", "late"),
    [
        ([0, 0, 0], [100.0, 100.9, 99.0], "aaa", []),
        ([0, 0, 0], [100.0, 201.0, 100.2], "aaa", [1]),
        ([0, 0, 0], [100.0, 102.5, 102.9], "abc", [1, 2]),
        ([0, 0, 0], [200.0, 100.0, 100.0], "abc", []),
        ([9, 0, 0], [100.0, 100.0, 100.0], "aaa", []),
        ([9, 0, 7000], [100.0, 100.0, 7100.1], "aab", []),
        ([9, 0, 7000], [100.0, 100.0, 7150.1], "aab", [2]),
        ([0, 0, 0], [100.0, None, 100.0], "abc", []),
    ],
    ids=["together", "half as fast", "a little slower", "rank 0 saves", "rank 0 starts late", "another clock", "late there", "not told"],
)
def test_a_rank_that_nobody_reads_and_that_ended_later_than_rank_0_is_late(
    began_s: list[float], ended_s: list[float | None], hosts: str, late: list[int]
) -> None:
    """The window of rank 0 is 50 s: 2 % of it and 1 s are 2 s."""
    events = {
        rank: RankEvents(
            start=RunStart(steps_source="log" if rank == 0 else "none", hostname=hosts[rank], monotonic_ns=int(begin * 1e9)),
            stop=RunStop(monotonic_ns=None if end is None else int(end * 1e9)),
        )
        for rank, (begin, end) in enumerate(zip(began_s, ended_s, strict=True))
    }
    events[0].steps = {number: step._replace(samples=6) for number, step in rank_events([0.5] * 100).steps.items()}
    found = measured(events, 3, 6)
    assert found.training.late_ranks == tuple(late)
    said = [one for one in found.warnings if one != NOT_COMPARED]
    assert len(said) == bool(late)
    assert all(one.endswith("the ranks did not wait for each other, and the rate is that of rank 0 alone") for one in said)
