"""Programs with clocks of their own, whose true rate is known: the record has it within 2 %, or a mark says what it does not know."""

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks import counts
from benchmarks.counts import AIM, NUMBERED, Program, lines, measure
from workflow.run.record.run_record import Measurements

CASES: list[tuple[Callable[[Program], tuple[Measurements, float]], bool, set[str]]] = [
    (counts.full, True, set()),
    (counts.counted, True, {"samples", "warned"}),
    (counts.uncounted, False, {"assumed"}),
    (counts.own_batch, False, {"samples", "warned"}),
    (counts.own_batch_uncounted, False, {"assumed"}),
    (counts.validated, False, {"samples", "warned"}),
    (counts.log_full, True, set()),
    (counts.log_counted, True, {"samples", "warned"}),
    (counts.log_uncounted, False, {"assumed"}),
    (counts.log_every, False, {"assumed"}),
    (counts.log_validated, False, {"assumed", "warned"}),
    (counts.log_latencies, True, {"gaps"}),
]


def test_every_program_is_here() -> None:
    assert [program for program, _, _ in CASES] == list(counts.PROGRAMS)


@pytest.mark.parametrize(("program", "true", "marks"), CASES, ids=[program.__name__ for program, _, _ in CASES])
def test_a_rate_is_true_or_has_a_mark(program: Callable[[Program], tuple[Measurements, float]], true: bool, marks: set[str]) -> None:
    for seed in range(5):
        error, found = measure(program, seed)
        assert not true or abs(error) <= AIM
        assert marks <= set(found)
        assert set(found) - marks <= ({"stalls"} if "full" not in program.__name__ else set())


@pytest.mark.parametrize("in_flight", [1, 2, 4])
def test_latencies_that_overlap_do_not_make_the_window_longer(in_flight: int) -> None:
    program = Program(np.random.default_rng(0))
    program.last = program.batch
    text = "step {step} took {ms} ms"
    found = program.printed(lines(program, text, latency=in_flight), rf"{NUMBERED} took (?P<milliseconds>\S+)")
    assert found.contradiction is None
    assert found.performance.samples_per_s == pytest.approx(program.truth(), rel=AIM)
    assert found.performance.step_s.p50 == pytest.approx(in_flight * program.batch * program.sample_s)
    assert found.performance.uneven_cause == (None if in_flight == 1 else "gaps")
