"""Predictions by closed forms, what is refused, and the errors on published series."""

import itertools
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import prediction as benchmark
from benchmarks.prediction import Trial, conformal_quantile, covered, errors_of, points_of_series, relative_errors, trials_of
from workflow.report.prediction import (
    ERRORS,
    LEVEL,
    MIN_GROWTH,
    RATES,
    Fit,
    Point,
    Prediction,
    exchange_fit,
    fit,
    growth,
    merged,
    own_error,
    predict,
)


def ring(nodes: Sequence[int], constant: float = 0.02, exchange: float = 0.01, error: float = 0.0) -> tuple[Point, ...]:
    return merged(Point(n, n / (constant + exchange * (1 - 1 / n)), error) for n in nodes)


def predicted(points: Sequence[Point], nodes: int) -> Prediction:
    found = predict(points, nodes)
    assert isinstance(found, Prediction), found
    return found


@pytest.mark.parametrize("nodes", [(1, 2), (2, 4), (1, 2, 4), (1, 3, 5, 8)])
@pytest.mark.parametrize(("constant", "exchange"), [(0.02, 0.01), (1.0, 0.0), (3.0, 100.0)])
def test_a_ring_is_predicted_exactly(nodes: Sequence[int], constant: float, exchange: float) -> None:
    for factor in (2, 4):
        target = factor * nodes[-1]
        found = predicted(ring(nodes, constant, exchange), target)
        assert found.rate == pytest.approx(target / (constant + exchange * (1 - 1 / target)))
        assert found.factor == factor
        assert found.low < found.rate < found.high


def test_nodes_that_get_faster_go_on_as_the_mean_of_their_times() -> None:
    """Neither more exchange nor less than none: relative least squares of a constant is sum(1/t) / sum(1/t^2)."""
    points = (Point(1, 100.0), Point(2, 205.0))
    times = [1 / 100, 2 / 205]
    constant = sum(1 / t for t in times) / sum(1 / t**2 for t in times)
    assert exchange_fit(points) == pytest.approx(Fit(constant, 0.0))
    assert predicted(points, 4).rate == pytest.approx(4 / constant)


def test_exchange_alone_goes_through_no_negative_rest() -> None:
    model = fit([(0.5, 1.0), (0.75, 3.0)])
    v = [0.5, 0.25]
    assert model == pytest.approx(Fit(0.0, sum(v) / sum(x * x for x in v)))


def test_the_first_node_does_not_count_where_two_larger_ones_are_there() -> None:
    points = ring((2, 4))
    assert predict((Point(1, 1000.0), *points), 8) == predict(points, 8)


@pytest.mark.parametrize(
    ("nodes", "target", "reason"),
    [
        ((), 2, "no point beyond the first node"),
        ((1,), 2, "no point beyond the first node"),
        ((2,), 4, "one number of nodes (2): a prediction needs two"),
        ((1, 2), 2, "2 nodes: not more than the 2 that were measured"),
        ((1, 2), 1, "1 node: not more than the 2 that were measured"),
        ((1, 2), 9, "9 nodes are more than 4 times the 2 that were measured"),
    ],
)
def test_what_is_refused(nodes: Sequence[int], target: int, reason: str) -> None:
    found = predict(ring(nodes), target)
    assert isinstance(found, str)
    assert found.startswith(reason)


def test_points_that_follow_no_ring_are_refused_unless_their_runs_vary_that_much() -> None:
    """Exchange that grows with the nodes: t(n) = 1 + n / 10."""
    points = [Point(n, n / (1 + n / 10)) for n in (1, 2, 4, 8)]
    found = predict(points, 16)
    assert isinstance(found, str)
    assert found.startswith("c + b (1 - 1/n) misses the measured rate of 4 nodes by 8%")
    assert isinstance(predict([point._replace(error=0.2) for point in points], 16), Prediction)
    faster = predict((Point(1, 100.0), Point(2, 300.0)), 4)
    assert isinstance(faster, str), "three times as fast on two nodes is no weak scaling"


def test_units_and_the_order_of_points_change_no_relative_prediction() -> None:
    points = [Point(1, 100.0, 0.01), Point(2, 190.0, 0.02), Point(4, 350.0, 0.0), Point(8, 670.0, 0.03)]
    expected = predicted(merged(points), 16)
    for order in itertools.permutations(points):
        assert predicted(merged(order), 16) == expected
    for unit in (1e-6, 0.5, 512.0, 1e9):
        found = predicted(merged(point._replace(rate=point.rate * unit) for point in points), 16)
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other) or one / unit == pytest.approx(other)


def test_the_interval_is_that_of_the_published_series_and_of_the_runs() -> None:
    points = (Point(1, 100.0), Point(2, 180.0))
    known = ERRORS[0]
    times = [point.nodes / point.rate for point in points]
    at_4 = 1.5 * times[1] - 0.5 * times[0]
    of_series = known.scaled * (MIN_GROWTH + 1 - times[1] / at_4)
    found = predicted(points, 4)
    assert found.rate == pytest.approx(4 / at_4)
    assert math.log(found.high / found.rate) == pytest.approx(of_series) == pytest.approx(math.log(found.rate / found.low))
    assert found.covered == known.covered
    small = 1e-5
    of_runs = [point._replace(error=small) for point in points]
    assert own_error(of_runs, 4) == pytest.approx(small * math.hypot(1.5 * times[1], 0.5 * times[0]) / at_4, rel=1e-3)
    noisy = [point._replace(error=0.05) for point in points]
    wider = math.log(predicted(noisy, 4).high / found.rate)
    assert wider == pytest.approx(math.hypot(of_series, 1.6449 * own_error(noisy, 4)), rel=1e-4)


def test_points_of_the_same_nodes_are_one() -> None:
    (point,) = merged([Point(2, 100.0, 0.03), Point(2, 121.0, 0.04)])
    assert point == pytest.approx((2, 110.0, 0.025))
    for wrong in (Point(0, 1.0), Point(2, 0.0), Point(2, math.nan), Point(2, math.inf), Point(2, -1.0), Point(10**7, 1.0)):
        with pytest.raises(ValueError, match=r"nodes|a rate of"):
            merged([wrong])


def test_a_conformal_quantile_is_an_order_statistic() -> None:
    scores = [float(n) for n in range(1, 20)]
    random.Random(1).shuffle(scores)
    assert conformal_quantile(scores, 0.9) == 18.0
    assert conformal_quantile(scores[:3], 0.9) == max(scores[:3])


def test_a_document_is_covered_by_the_others_alone() -> None:
    def of(document: str, *errors: float) -> list[Trial]:
        return [Trial(document, 0, 2.0, error, 0.0) for error in errors]

    assert covered(of("a", 0.1, 0.2), LEVEL) is None
    assert covered([*of("a", 0.1, 0.2), *of("b", 0.3)], LEVEL) == (2 / 3, 3)
    assert relative_errors(of("a", *[math.log1p(x / 100) for x in range(11)])) == pytest.approx((0.05, 0.09))


def test_each_later_point_is_predicted_from_those_before_it() -> None:
    trials = trials_of("a", 7, ring((1, 2, 4, 8, 64)))
    assert [(one.document, one.series, one.factor) for one in trials] == [("a", 7, 2.0), ("a", 7, 4.0), ("a", 7, 2.0)]
    assert [one.log_error for one in trials] == pytest.approx([0.0] * 3, abs=1e-9)
    assert trials[0].growth == pytest.approx(growth(Fit(0.02, 0.01), 2, 4))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([[32, 380.0], [8, 100], [16, 190], [16, 190], [4, 55], [12, 1]], [(1, 100.0), (2, 190.0), (4, 380.0)]),
        ([], "no whole node of 8 GPUs"),
        ([[4, 1.0]], "no whole node of 8 GPUs"),
        ([["8", 1.0]], "not pairs of numbers"),
        ([[True, 1.0]], "not pairs of numbers"),
        ([[8, 1.0, 2.0]], "not pairs of numbers"),
        ([None], "not pairs of numbers"),
        ([[8, 0]], "a number of GPUs, or a rate, that is none"),
        ([[8, math.nan]], "a number of GPUs, or a rate, that is none"),
        ([[8.5, 1.0]], "a number of GPUs, or a rate, that is none"),
        ([[1e300, 1.0]], "a number of GPUs, or a rate, that is none"),
        ([[8, 10 * RATES[1]]], "a rate of 1e+19"),
        ({"a": 1}, "not pairs of numbers"),
        ([[8, 10**400]], "not pairs of numbers"),
        ([[8, 1.0]] * 1001, "more than 1000 points"),
    ],
)
def test_a_published_series_is_read_with_care(values: Any, found: Any) -> None:
    points = points_of_series(values, 8)
    assert found == (points if isinstance(points, str) else [(point.nodes, pytest.approx(point.rate)) for point in points])


# The figures of the published series. They are of the method: who changes it, says here what it became.


def test_the_errors_of_the_report_are_those_of_the_published_series() -> None:
    trials = benchmark.shipped_trials()
    assert errors_of(trials) == ERRORS
    twice, four = (group for _, group in sorted(benchmark.by_factor(trials).items()))
    for group, counts, errors in ((twice, (122, 95, 25), (0.021, 0.0605)), (four, (52, 30, 6), (0.0313, 0.0797))):
        assert (len(group), len({one.series for one in group}), len({one.document for one in group})) == counts
        assert relative_errors(group) == pytest.approx(errors, abs=5e-5)


def test_dlperf_is_predicted_at_twice_the_nodes() -> None:
    trials, refused = benchmark.trials_of_file(benchmark.read_series(benchmark.SERIES / "dlperf.json"), 8)
    median, p90 = relative_errors(trials)
    assert (len(trials), sum(refused.values())) == (57, 26)
    assert (round(median, 3), round(p90, 3)) == (0.023, 0.094)
    assert covered(trials, LEVEL) == (52 / 57, 57)


def test_foreign_files_are_counted_or_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def run(content: str, *options: str) -> int:
        path = tmp_path / "series.json"
        path.write_text(content)
        monkeypatch.setattr("sys.argv", ["prediction", "--series", str(path), *options])
        return benchmark.main()

    ties = ["a", "ties", [[4, 100], [8, 100], [16, 100]]]
    assert run(json.dumps([ties, ["b", "one point", [[4, 1]]], 5, [1, 2, 3], ["c", "x", None], ["d", "none", [[4, float("nan")]]]])) == 0
    assert "6 series, nodes of 8 GPUs: 0 predicted, 6 refused" in capsys.readouterr().out
    assert run(json.dumps([ties, ["b", "up", [[4, 1], [8, 3], [16, 9], [32, 30]]]]), "--gpus-per-node", "4") == 0
    said = capsys.readouterr().out
    assert "refused 1: c + b (1 - 1/n) misses the measured rate of 2 nodes by 47%" in said
    assert "2 series, nodes of 4 GPUs: 0 predicted, 2 refused" in said
    rings = [[name, "", [[4 * point.nodes, point.rate] for point in ring((1, 2, 4), 1.0, cost)]] for name, cost in (("a", 0.1), ("b", 0.3))]
    assert run(json.dumps(rings), "--gpus-per-node", "4") == 0
    assert "x2: 2 predictions (2 series, 2 documents): error median 0.0%" in capsys.readouterr().out
    for content in ("", "{", "[" * 10**5, '{"a": 1}'):
        assert run(content) == 2
        assert "series.json: no " in capsys.readouterr().err
