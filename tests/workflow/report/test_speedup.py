"""Speed-up and efficiency against closed forms, the published number, and properties that hold for every study."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workflow.report.builder import GPU, cell_result, collected, make_cell, make_record, scaling_cells
from workflow.report.cells import CellResult
from workflow.report.speedup import Comparison, compare_to_baseline

ONE_NODE = {"nodes": 1}


def primary(cells: Sequence[CellResult], baseline: Mapping[str, Any] = ONE_NODE) -> dict[str, Comparison]:
    comparisons = [comparison for comparison in compare_to_baseline(cells, baseline) if comparison.primary]
    assert [comparison.cell.cell_id for comparison in comparisons] == [cell.cell_id for cell in cells]
    return {comparison.cell.cell_id: comparison for comparison in comparisons}


def numbers(comparison: Comparison) -> tuple[float, float]:
    return comparison.speedup.value, comparison.efficiency.value


def test_resnet_152_of_the_deck() -> None:
    """Batch 32 per GPU, 4 -> 8 nodes: 1077 -> 696 min for the same epochs = 1.547 x, 77.4 % relative to 4 nodes.

    Twice the nodes do the same epochs in half the steps, so a step takes 2 x 696/1077 as long.
    """
    four, eight = (make_cell(model="resnet152", batch_size=32, nodes=nodes, gpus_per_node=8) for nodes in (4, 8))
    cells = [cell_result(four, [0.2] * 3), cell_result(eight, [0.2 * 2 * 696 / 1077] * 3)]
    speedup, efficiency = numbers(primary(cells, {"nodes": 4})[eight["cell_id"]])
    assert f"{speedup:.3f} {efficiency:.1%}" == "1.547 77.4%"


@pytest.mark.parametrize(("kind", "batch", "power"), [("weak", "batch_size", 0.5), ("strong", "global_batch_size", -0.5)])
def test_a_kind_of_scaling_compares_cells_with_one_batch(kind: str, batch: str, power: float) -> None:
    """Steps that get longer, or shorter, with the root of the nodes: the speed-up is that root in both kinds."""
    cells = [cell_result(cell, [0.1 * cell["nodes"] ** power] * 3) for cell in scaling_cells(**{batch: [64, 128]}, nodes=[1, 2, 4])]
    found = primary(cells)
    assert len(found) == 6
    for comparison in found.values():
        root = comparison.cell.cell.nodes**0.5
        assert comparison.scaling == kind
        assert comparison.partner.size(batch) == comparison.cell.size(batch)
        assert numbers(comparison) == pytest.approx((root, 1 / root))


@pytest.mark.parametrize(("buckets", "marked"), [([8, 16], True), ([16], False), (None, False)])
def test_weak_scaling_of_sequences_in_buckets_is_marked(buckets: list[int] | None, marked: bool) -> None:
    """The mix of lengths changes with the global batch."""
    spec = {"source": "text", "buckets": buckets}
    for batch, expected in (({"batch_size": [16]}, marked), ({"global_batch_size": [64]}, False)):
        cells = [cell_result({**cell, "dataset_spec": spec}, [0.1] * 3) for cell in scaling_cells(**batch, nodes=[1, 2])]
        marks = {one.cell.cell.nodes: "lengths" in one.marks for one in primary(cells).values()}
        assert marks == {1: False, 2: expected}


def test_a_cell_with_both_partners_has_both_comparisons() -> None:
    cells = [cell_result(cell, [0.1] * 3) for cell in scaling_cells(batch_size=[32, 64], nodes=[1, 2])]
    both = {comparison.scaling: comparison for comparison in compare_to_baseline(cells, ONE_NODE) if comparison.cell is cells[1]}
    assert both["weak"].primary
    assert not both["strong"].primary
    assert numbers(both["weak"]) == pytest.approx((2.0, 1.0))
    assert numbers(both["strong"]) == pytest.approx((1.0, 0.5))


def test_what_has_no_partner_of_the_common_kind_takes_the_other() -> None:
    points = [(32, 1), (32, 2), (32, 4), (96, 1), (24, 4)]
    cells = [cell_result(make_cell(batch_size=batch, nodes=nodes), [0.1] * 3) for batch, nodes in points]
    assert [comparison.scaling for comparison in primary(cells).values()] == ["weak", "weak", "weak", "weak", "strong"]


def test_every_cell_of_the_baseline_is_one_by_definition() -> None:
    cells = [cell_result(cell, [0.1 * cell["gpus_per_node"]] * 3) for cell in scaling_cells(nodes=[1, 2], gpus_per_node=[1, 2])]
    found = primary(cells)
    for cell in cells:
        if cell.cell.nodes == 1:
            assert found[cell.cell_id].is_baseline
            assert numbers(found[cell.cell_id]) == (1.0, 1.0)
        else:  # compared with one node of as many GPUs
            partner = found[cell.cell_id].partner
            assert partner.cell.gpus_per_node == cell.cell.gpus_per_node


def test_a_baseline_of_one_process_counts_processes() -> None:
    cells = [cell_result(cell, [0.1] * 3) for cell in scaling_cells(nodes=[1, 2], gpus_per_node=[1, 4])]
    found = primary(cells, {"nodes": 1, "gpus_per_node": 1})
    assert [numbers(found[cell.cell_id]) for cell in cells] == [pytest.approx((size, 1)) for size in (1, 4, 2, 8)]


def test_a_baseline_that_names_the_batch_is_compared_whatever_the_batch() -> None:
    cells = [cell_result(cell, [0.1] * 3) for cell in scaling_cells(batch_size=[32, 48], nodes=[1, 2])]
    found = primary(cells, {"nodes": 1, "batch_size": 32})
    assert [found[cell.cell_id].scaling for cell in cells] == ["weak", "weak", "other", "other"]
    assert "batch" in found[cells[3].cell_id].marks
    assert numbers(found[cells[3].cell_id])[0] == pytest.approx(3)


def test_no_number_without_a_measurement() -> None:
    cells = [cell_result(make_cell(nodes=nodes), steps) for nodes, steps in ((1, []), (2, [0.1] * 3), (4, []))]
    found = primary(cells)
    assert found[cells[1].cell_id].speedup is None
    assert found[cells[1].cell_id].reason == f"baseline {cells[0].cell_id}: oom"
    assert found[cells[2].cell_id].reason == "oom"
    assert {comparison.reason for comparison in compare_to_baseline(cells[1:2], {})} == {"the study names no baseline"}
    other = compare_to_baseline([cells[1], cell_result(make_cell(nodes=1, batch_size=24), [0.1])], ONE_NODE)[0]
    assert other.reason == "no baseline (nodes: 1) has batch 32 per process, or 64 in all"


@pytest.mark.parametrize(
    ("steps", "marks"),
    [
        ((0.1, 0.1, 0.1), [set(), set(), set()]),
        ((0.1, 0.096, 0.1), [set(), {"superlinear", "rising"}, set()]),  # E 1, 1.042, 1
        ((0.1, 0.125, 0.12), [set(), set(), {"rising"}]),  # E 1, 0.8, 0.833
        ((0.1, 0.098, 0.0955), [set(), set(), {"superlinear"}]),  # E 1, 1.020, 1.047: less than 3 % a step
    ],
)
def test_curves_that_cannot_be_are_marked(steps: Sequence[float], marks: Sequence[set[str]]) -> None:
    cells = [cell_result(make_cell(nodes=nodes), [step] * 3) for nodes, step in zip((1, 2, 4), steps, strict=True)]
    assert [set(comparison.marks) for comparison in primary(cells).values()] == list(marks)


def marks_at(cells: Sequence[CellResult], place: int, baseline: Mapping[str, Any] = ONE_NODE) -> set[str]:
    return set(primary(cells, baseline)[cells[place].cell_id].marks)


def test_fewer_processes_than_the_baseline_are_not_superlinear() -> None:
    """Four nodes are the baseline, and a process does more where there are fewer: that is what scaling losses look like from there."""
    cells = [cell_result(make_cell(nodes=nodes), [step] * 3) for nodes, step in ((1, 0.08), (2, 0.09), (4, 0.1))]
    assert [marks_at(cells, place, {"nodes": 4}) for place in range(3)] == [set(), set(), set()]


def test_a_mark_of_a_curve_needs_an_interval_that_says_so() -> None:
    """Efficiency 1.06 of runs that scatter by 5 %, and of two runs that agree: neither is known to be above 1.03."""
    base = cell_result(make_cell(nodes=1), [0.095, 0.1, 0.105])
    above = cell_result(make_cell(nodes=2), [step_s / 1.06 for step_s in (0.1, 0.105, 0.095)])
    assert marks_at([base, above], 1) == set()
    two = [cell_result(make_cell(nodes=nodes), [step] * 2) for nodes, step in ((1, 0.1), (2, 0.09))]
    assert marks_at(two, 1) == set()


def test_equal_cells_of_few_noisy_runs_are_seldom_marked() -> None:
    """Four cells that scale ideally, three runs each, 5 % from run to run: at most 5 % of the cells carry a mark that is not so."""
    dice = random.Random(5)
    cells = [make_cell(nodes=nodes) for nodes in (1, 2, 4, 8)]
    wrong = dict.fromkeys(("superlinear", "rising"), 0)
    for _ in range(200):
        found = [cell_result(cell, [0.1 * dice.lognormvariate(0, 0.05) for _ in range(3)]) for cell in cells]
        for comparison in compare_to_baseline(found, ONE_NODE):
            for mark in wrong:
                wrong[mark] += mark in comparison.marks
    assert max(wrong.values()) <= 0.05 * 200 * 3, wrong


def test_rising_is_of_the_two_cells_and_not_of_their_baseline() -> None:
    """The baseline scatters widely; the two cells hardly do, and the larger one is clearly better."""
    cells = [
        cell_result(make_cell(nodes=1), [0.08, 0.1, 0.12]),
        cell_result(make_cell(nodes=2), [0.125, 0.1251, 0.1249]),
        cell_result(make_cell(nodes=4), [0.1175, 0.1176, 0.1174]),
    ]
    assert marks_at(cells, 2) == {"rising"}


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("hardware", "hardware"),
        ("software", "software"),
        ("image_digest", "image"),
        ("threads_per_rank", "threads"),
        ("dataset_digest", "dataset"),
        ("program_digest", "program"),
        ("tf32", "settings"),
        ("cudnn_benchmark", "settings"),
        ("commit", "commit"),
    ],
)
def test_mixing_in_a_series_is_marked(name: str, mark: str) -> None:
    base, other = make_cell(nodes=1), make_cell(nodes=2)
    plain = cell_result(base, [0.1] * 3, distinct={**cell_result(base, [0.1]).distinct, name: frozenset({"this"})})
    mixed = cell_result(other, [0.1] * 3, distinct={**plain.distinct, name: frozenset({GPU})})
    assert mark in primary([plain, mixed])[other["cell_id"]].marks
    assert mark not in primary([plain, mixed])[base["cell_id"]].marks


@pytest.mark.parametrize("mark", ["short", "partial", "oversubscribed", "drift"])
def test_a_comparison_says_that_its_baseline_is_marked_and_not_that_it_is_itself(mark: str) -> None:
    cells = [cell_result(make_cell(nodes=1), [0.1] * 3, marks=frozenset({mark})), cell_result(make_cell(nodes=2), [0.1] * 3)]
    assert [marks_at(cells, place) for place in (0, 1)] == [{mark}, {"baseline"}]
    both = [cells[0], cell_result(make_cell(nodes=2), [0.1] * 3, marks=frozenset({mark, "short"}))]
    assert marks_at(both, 1) == {mark, "short"}


PROPERTY = settings(deadline=None, max_examples=25)
STEPS = st.lists(st.floats(0.001, 100), min_size=1, max_size=4)


@PROPERTY
@given(
    steps=st.lists(STEPS, min_size=3, max_size=3),
    factor=st.floats(0.01, 100),
    order=st.permutations(range(3)),
    kind=st.sampled_from(["batch_size", "global_batch_size"]),
)
def test_units_and_order_change_nothing(steps: list[list[float]], factor: float, order: list[int], kind: str) -> None:
    cells = scaling_cells(**{kind: [64]}, nodes=[1, 2, 4])
    plain = primary([cell_result(cell, own) for cell, own in zip(cells, steps, strict=True)])
    scaled = [cell_result(cell, [factor * step for step in reversed(own)]) for cell, own in zip(cells, steps, strict=True)]
    other = primary([scaled[index] for index in order])
    for cell in cells:
        first, second = plain[cell["cell_id"]], other[cell["cell_id"]]
        assert numbers(first) == pytest.approx(numbers(second))
        assert (first.speedup.low is None) == (second.speedup.low is None)
        if first.speedup.low is not None:
            assert second.speedup.low == pytest.approx(first.speedup.low, rel=1e-6)


@PROPERTY
@given(steps=st.tuples(STEPS, STEPS), nodes=st.integers(2, 64))
def test_speedup_is_efficiency_times_growth_and_the_ratio_of_rates(steps: tuple[list[float], list[float]], nodes: int) -> None:
    base, cell = cell_result(make_cell(nodes=1), steps[0]), cell_result(make_cell(nodes=nodes), steps[1])
    speedup, efficiency = numbers(primary([base, cell])[cell.cell_id])
    assert speedup == pytest.approx(efficiency * nodes)
    assert speedup == pytest.approx(cell.rate_per_s.value / base.rate_per_s.value)


@pytest.mark.parametrize(
    ("path", "one", "other", "marks"),
    [
        ("engine", "bare", "docker", {"image"}),
        ("engine", "docker", "docker", set()),
        ("engine", None, "docker", set()),  # an older record did not tell
        ("provenance.image_digest", None, "sha256:" + "a" * 64, set()),
        ("provenance.tf32", None, True, set()),
        ("provenance.tf32", False, True, {"settings"}),
    ],
)
def test_what_was_not_told_differs_from_nothing_but_no_container_does_from_one(
    tmp_path: Path, path: str, one: object, other: object, marks: set[str]
) -> None:
    cells = [make_cell(nodes=nodes) for nodes in (1, 2)]
    told = [(cells[0], one), (cells[1], other)]
    records = [make_record(cell, repeat, **{path: value}) for cell, value in told for repeat in (1, 2, 3)]
    assert [comparison.marks for comparison in collected(tmp_path / "s", records).primary] == [set(), marks]


def test_more_waiting_for_input_than_time_is_no_part_of_a_step(tmp_path: Path) -> None:
    cells = [make_cell(nodes=nodes) for nodes in (1, 2, 4)]
    shares = [(cells[0], 0.5), (cells[1], 1.0), (cells[2], 1.7)]
    records = [make_record(cell, **{"performance.input_wait_s_mean": share * 0.101}) for cell, share in shares]
    analysis = collected(tmp_path / "s", records, repeats=1)
    assert [cell.input_wait_ratio for cell in analysis.cells] == [pytest.approx(0.5), 1.0, None]
