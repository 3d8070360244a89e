"""What bounds a cell: closed forms, anchors that are found by their keys, and what is not known."""

import gzip
import json
import random
import statistics
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from tests.workflow.report.builder import PARTS, collected, make_cell, make_record
from workflow.report.analysis import Analysis
from workflow.report.bounds import MIN_SHARE, Bound, advice, bound_of, bounds, judged, share_of
from workflow.report.cells import Estimate
from workflow.report.page import page

ROOT = Path(__file__).parents[3]
RUN: dict[str, Any] = {
    **{"if_step_s": 0.1, "if_no_input_s": 0.099, "if_no_copy_s": 0.1, "if_no_exposed_s": 0.095, "if_no_skew_s": 0.098},
    **{"if_no_other_s": 0.099},
    **{"slow_part": None, "straggler_rank": None, "hosts": "node00,node01", "gpus_per_node": 2, "num_processes": 4, "mode": "train"},
    **{"io_wait_ratio": None, "faults_per_s": None, "gpu_busy_ratio": None},
}


def run(**changes: Any) -> dict[str, Any]:
    return {**RUN, **changes}


@pytest.mark.parametrize(
    ("column", "verdict"),
    [
        ("if_no_input_s", "input"),
        ("if_no_copy_s", "copy"),
        ("if_no_exposed_s", "communication"),
        ("if_no_skew_s", "stragglers"),
        ("if_no_other_s", "host"),
    ],
)
def test_the_part_with_the_largest_share_bounds_it(column: str, verdict: str) -> None:
    found = bound_of([run(**{column: 0.075})])
    assert (found.verdict, found.share) == (verdict, pytest.approx(0.25))
    assert found.gains[verdict].factor.value == pytest.approx(4 / 3)
    assert (found.low, found.high) == (None, None), "one run has no interval"
    little = bound_of([run(**{column: 0.1 * (1 - MIN_SHARE + 0.01)})])
    others = sum(1 - run()[name] / 0.1 for name in RUN if name.startswith("if_no_") and name != column)
    assert (little.verdict, little.share) == ("compute", pytest.approx(1 - (MIN_SHARE - 0.01) - others))


def test_the_interval_is_that_of_the_runs() -> None:
    """Three gains with the geometric mean 1.2, by Student's t on their logarithms, of which two are log(1.25 / 1.2) from the mean."""
    gains = (1.2, 1.25, 1.2 * 1.2 / 1.25)
    found = bound_of([run(if_no_input_s=0.1 / gain) for gain in gains])
    factor = found.gains["input"].factor
    assert factor.value == pytest.approx(1.2)
    half = 4.302652729911275 * 0.04082199452 / 3**0.5  # t of 2 degrees of freedom; deviation of the logarithms: log(1.25 / 1.2)
    assert factor.high == pytest.approx(1.2 * 2.718281828459045**half, rel=1e-6)
    assert (found.low, found.high) == (pytest.approx(share_of(factor.low or 0)), pytest.approx(share_of(factor.high or 0)))
    assert [share_of(gain) for gain in (0.8, 1.0, 2.0)] == [0, 0, 0.5], "what an anchor makes slower has none"


def test_slow_input_of_one_rank_is_input_and_the_rank_is_named() -> None:
    slow = run(if_no_input_s=0.071, if_no_skew_s=0.07, straggler_rank=3, slow_part="input")
    found = bound_of([slow, slow, run(if_no_input_s=0.071, if_no_skew_s=0.07)])
    assert found.verdict == "input"
    assert "the others wait for rank 3 on node01 in 2 of 3 runs, by its input" in found.notes
    slow_rank = run(if_no_skew_s=0.07, straggler_rank=0, slow_part="compute")
    assert bound_of([slow_rank]).verdict == "stragglers"
    assert bound_of([slow_rank]).notes == ("the others wait for rank 0 on node00 in 1 of 1 runs, by its compute",)
    assert bound_of([run(if_no_skew_s=0.07)]).notes == ("ranks are slow in turn",)


def test_a_slow_rank_that_costs_something_is_named_whatever_bounds_the_cell() -> None:
    slow = {"if_no_skew_s": 0.093, "straggler_rank": 3, "slow_part": "compute"}
    words = "the others wait for rank 3 on node01 in 2 of 2 runs, by its compute"
    found = bound_of([run(**slow, if_no_exposed_s=0.07)] * 2)
    assert (found.verdict, found.notes) == ("communication", (words,))
    assert (bound_of([run(**slow)] * 2).verdict, bound_of([run(**slow)] * 2).notes) == ("compute", (words,))
    assert bound_of([run(**slow), run()]).notes == (), "in one of two runs"
    assert bound_of([run(**{**slow, "if_no_skew_s": 0.097})]).notes == (), "3 % of the step"


@pytest.mark.parametrize(
    ("io_wait", "words"),
    [
        (0.2, "its disk is slow"),
        (0.01, "decoding or the reader is slow, not the disk"),
        (None, "nobody knows whether the disk or decoding is slow"),
    ],
)
def test_a_slow_disk_is_told_from_slow_decoding_by_the_load_of_the_node(io_wait: float | None, words: str) -> None:
    found = bound_of([run(if_no_input_s=0.07, io_wait_ratio=io_wait, faults_per_s=120.0)])
    assert found.verdict == "input"
    assert found.notes[0].startswith(words)


def test_a_gpu_that_idles_in_the_midst_of_computing_waits_for_its_host() -> None:
    """60 % busy: of the 40 ms that it idles, 1 ms is input, 1 ms is no part, and 38 ms are left: with the 1 ms the host has 39 ms."""
    found = bound_of([run(gpu_busy_ratio=0.6)])
    assert (found.verdict, found.share) == ("host", pytest.approx(0.39))
    assert bound_of([run(gpu_busy_ratio=0.98)]).verdict == "compute"


def test_what_is_not_told_is_not_known() -> None:
    found = bound_of([run(), run(if_step_s=None)])
    assert (found.verdict, found.share, dict(found.gains)) == ("not known", None, {})
    assert 'does not report how long it waits for the others (exchange_s; in your own program run.part("exchange") around' in found.notes[0]
    assert "reports no part" in bound_of([run(if_step_s=None, num_processes=1)]).notes[0]
    assert bound_of([]) == Bound(verdict="not known", notes=("no run was measured",))
    some = bound_of([run(if_no_input_s=0.07), run(if_no_input_s=None)])
    assert "input" not in some.gains, "one of the runs does not tell it"
    assert some.verdict == "compute"


def test_compute_is_what_no_part_has() -> None:
    assert bound_of([run()]).share == pytest.approx(1 - 0.01 - 0.05 - 0.02 - 0.01)
    untold = bound_of([run(if_no_copy_s=None, if_no_other_s=None)])
    assert (untold.verdict, untold.share) == ("compute", pytest.approx(1 - 0.01 - 0.05 - 0.02))


def test_waiting_for_a_rank_with_slow_input_is_counted_once() -> None:
    slow = run(if_no_input_s=0.088, if_no_skew_s=0.087, straggler_rank=0, slow_part="input")
    assert bound_of([slow]).verdict == "compute"
    assert bound_of([slow]).share == pytest.approx(1 - 0.12 - 0.05 - 0.01)
    assert bound_of([{**slow, "slow_part": "compute"}]).share == pytest.approx(1 - 0.12 - 0.05 - 0.13 - 0.01)


def test_a_part_that_is_the_whole_step_is_no_division_by_zero() -> None:
    found = bound_of([run(if_no_input_s=0.0)])
    assert (found.verdict, found.share) == ("input", pytest.approx(0.999))
    assert bound_of([run(**{name: 0.0 for name in RUN if name.startswith("if_")})]).verdict == "compute"


@pytest.mark.parametrize("seed", range(50))
def test_numbers_that_no_clock_gives_are_judged_all_the_same(seed: int) -> None:
    rng = random.Random(seed)
    values = (0.0, 5e-324, 1e-9, 0.1, 1.0, 1e15, None)
    shares = (0.0, 0.3, 1.0, None)
    names = [name for name in RUN if name.endswith("_s")]
    runs = []
    for _ in range(rng.choice((1, 2, 3))):
        told = {name: rng.choice(values) for name in names}
        told |= {"gpu_busy_ratio": rng.choice(shares), "io_wait_ratio": rng.choice(shares), "slow_part": rng.choice((None, "copy", "host"))}
        runs.append(run(**told, straggler_rank=rng.choice((None, 0, 2**31)), hosts=rng.choice((None, "", "node00"))))
    anchors = {"communication": Estimate(value=rng.choice((1e-300, 0.5, 2.0, 1e300)), n=1)} if rng.random() < 0.3 else None
    found = bound_of(runs, anchors)
    assert found.share is None or 0 <= found.share <= 1
    assert all(one.factor.value > 0 for one in found.gains.values())


def test_an_anchor_takes_the_place_of_the_estimate_and_a_contradiction_is_said() -> None:
    runs = [run(if_no_exposed_s=0.08 * (1 + 0.001 * place)) for place in range(3)]
    anchor = Estimate(value=1.5, low=1.45, high=1.55, n=3)
    found = bound_of(runs, {"communication": anchor})
    assert (found.verdict, found.share) == ("communication", pytest.approx(1 / 3))
    assert found.notes == ("communication: the anchor measures 1.500 ±0.050, the parts alone say 1.249 ±0.003",)
    assert bound_of(runs, {"communication": Estimate(value=1.25, low=1.1, high=1.4, n=3)}).notes == ()
    single = bound_of(runs[:1], {"communication": Estimate(value=1.5, n=1)})
    assert single.notes == ("communication: the anchor measures 1.500 n=1, no CI, the parts alone say 1.250 n=1, no CI",)
    assert bound_of(runs[:1], {"communication": Estimate(value=1.3, n=1)}).notes == ()


def test_a_part_that_may_be_as_large_is_named() -> None:
    runs = [run(if_no_input_s=seconds, if_no_exposed_s=0.078) for seconds in (0.07, 0.072, 0.085)]
    found = bound_of(runs)
    assert (found.verdict, found.notes[-1]) == ("input", "communication may cost as much: up to 22 % of the step")
    assert bound_of([run(if_no_input_s=0.07, if_no_exposed_s=0.078)] * 3).notes[-1].startswith("nobody knows whether the disk")
    little = bound_of([run(if_no_exposed_s=seconds) for seconds in (0.09, 0.088, 0.085)])
    assert (little.verdict, little.notes) == ("compute", ("it may be bound by communication: up to 18 % of the step",))


INJECTED = {"input": "input", "disk": "input", "network": "communication", "rank": "stragglers", "compute": "compute"}


def test_injected_faults_of_real_runs_are_found_and_the_disk_among_them() -> None:
    """Each run alone; its real share is by the runs without a fault, and the step without an exchange by those that had none."""
    captured = json.loads(gzip.decompress((ROOT / "tests/captured/bounds/runs.json.gz").read_bytes()))
    rows = [{**RUN, "gpus_per_node": 1, "num_processes": 2, **row} for row in captured]
    even, silent = (statistics.median([row["step_s"] for row in rows if row["kind"] == kind]) for kind in ("none", "noop"))
    counted = [row for row in rows if row["kind"] in INJECTED and 1 - even / row["step_s"] >= 0.2]
    assert len(counted) == 40
    for row in counted:
        found = bound_of([row])
        assert found.verdict == INJECTED[row["kind"]], row
        if found.verdict == "input":
            assert found.notes[0].startswith(
                "its disk is slow" if row["kind"] == "disk" else "decoding or the reader is slow, not the disk"
            ), row
    exchange = 1 - silent / even
    assert exchange == pytest.approx(0.17, abs=0.01), "enough to be what bounds a run, where it is found"
    alone = [bound_of([row]).verdict for row in rows if row["kind"] == "none"]
    assert (alone.count("compute"), alone.count("communication")) == (5, 1)
    for kind, column, base, aim in (("input", "if_no_input_s", even, 0.1), ("network", "if_no_exposed_s", silent, 0.25)):
        errors = [abs(row[column] / base - 1) for row in counted if row["kind"] == kind]
        assert statistics.median(errors) < aim


def study(tmp_path: Path, exposed: dict[int, float], hook: str = "none", of_anchor: Any = MappingProxyType({}), **keys: Any) -> Analysis:
    """Cells of 1, 2 and 4 nodes of two series: plain, and with an anchor of the largest one. `exposed`: nodes -> share of the step."""
    cells = [make_cell(nodes=nodes, comm_hook=hook) for nodes in exposed]
    records = []
    for cell in cells:
        for repeat in (1, 2, 3):
            no_exposed = 0.101 * (1 - exposed[cell["nodes"]]) * (1 + 0.002 * repeat)
            records.append(make_record(cell, repeat, **{"performance.what_if.no_exposed_s": no_exposed, **keys}))
    anchor = make_cell(nodes=max(exposed), comm_hook="noop")
    own = (PARTS["step"] - PARTS["exposed"] - PARTS["skew"]) / PARTS["step"] / (1 - exposed[max(exposed)])
    for repeat in (1, 2, 3):  # its ranks do not wait; a step in which they did would take 60 ms
        step_s = own * (0.06 + 0.0001 * repeat) / (1 + 0.002 * repeat)
        records.append(make_record(anchor, repeat, step_s=step_s, **of_anchor))
    return collected(tmp_path / "results" / "s", records)


def test_cells_of_a_study_with_an_anchor_that_its_keys_find(tmp_path: Path) -> None:
    analysis = study(tmp_path, {1: 0.02, 2: 0.18, 4: 0.4})
    found = {(cell.cell.nodes, cell.cell.comm_hook): bound for cell, bound in judged(analysis)}
    assert [found[nodes, "none"].verdict for nodes in (1, 2, 4)] == ["compute", "communication", "communication"]
    assert not found[2, "none"].gains["communication"].is_anchor
    anchored = found[4, "none"].gains["communication"]
    assert anchored.is_anchor
    assert anchored.factor.value == pytest.approx(0.1 / 0.0602, rel=0.01)
    assert (found[4, "noop"].verdict, dict(found[4, "noop"].gains)) == ("not known", {}), "its ranks do not wait for each other"
    table = bounds(analysis)
    rows = [{column.key: value for column, value in zip(table.columns, row, strict=True)} for row in table.rows]
    assert rows[2]["basis"].text == "anchor (communication), else estimate"
    assert rows[2]["rate_without_per_s"].raw == pytest.approx(128 / 0.0602, rel=0.01)


def test_where_the_parts_of_an_anchor_are_not_known_its_rate_is_the_measure(tmp_path: Path) -> None:
    found = judged(study(tmp_path, {1: 0.02, 2: 0.4}, of_anchor={"performance.parts": None}))
    (gain,) = [bound.gains["communication"].factor for cell, bound in found if cell.cell.nodes == 2 and cell.cell.comm_hook == "none"]
    assert gain.value == pytest.approx(0.6 * 1.01 / 0.89 * 0.1 / 0.0602, rel=0.01)


def test_one_process_has_no_anchor_of_communication(tmp_path: Path) -> None:
    """DistributedDataParallel of one process exchanges with itself: without that it is faster, and no network would bring that."""
    found = judged(study(tmp_path, {1: 0.02}))
    assert [(cell.cell.comm_hook, bound.verdict) for cell, bound in found] == [("none", "compute"), ("noop", "not known")]


def test_an_anchor_is_marked_as_one_and_not_as_ranks_that_came_apart(tmp_path: Path) -> None:
    cells = [make_cell(nodes=2), make_cell(nodes=2, comm_hook="noop")]
    apart = {"training.replicas": {"checksum": "ef" * 32, "ranks": 2, "apart": [1]}}
    plain, anchor = collected(tmp_path / "s", [make_record(cell, **apart) for cell in cells]).cells
    assert [{"replicas", "unreduced"} & one.marks for one in (plain, anchor)] == [{"replicas"}, {"unreduced"}]


def test_what_a_faster_network_brings_is_said_whatever_bounds_the_largest_size(tmp_path: Path) -> None:
    (sentence,) = advice(study(tmp_path, {1: 0.02, 2: 0.1}, **{"performance.what_if.no_input_s": 0.05}))
    assert ": at 2 processes it is bound by input (" in sentence
    assert ", a faster network at most +66 % [65, 67] (measured)." in sentence


def test_how_long_the_network_takes_at_least_is_said_where_it_bounds(tmp_path: Path) -> None:
    """LeNet's 61,706 gradients of 4 bytes on 4 nodes: 1.5 times of them at 100 Mbit/s."""
    analysis = study(tmp_path, {1: 0.02, 4: 0.4}, **{"preflight": {"seconds": 1.0, "rate_mbit_median": 100.0}})
    (sentence,) = advice(analysis)
    least = "Each process sends 0.370 MB in a step, which take 29.6 ms or more at the 100 Mbit/s between nodes that the preflight measured"
    assert f"{least}; 10.0 ms of the exchange are exposed." in sentence
    assert "preflight" not in advice(study(tmp_path / "none", {1: 0.02, 4: 0.4}))[0]


def test_what_a_node_sends_stands_beside_what_its_processes_send(tmp_path: Path) -> None:
    """2 nodes of 2 processes: 1.5 times the 0.247 MB of gradients each, and 0.247 MB between the nodes, which take 19.7 ms."""
    cell = make_cell(nodes=2, gpus_per_node=2)
    changes: dict[str, Any] = {"performance.what_if.no_exposed_s": 0.06, "preflight": {"seconds": 1.0, "rate_mbit_median": 100.0}}
    (sentence,) = advice(collected(tmp_path / "s", [make_record(cell, repeat, **changes) for repeat in (1, 2, 3)]))
    assert "Each process sends 0.370 MB in a step, and a node 0.247 MB or more to others, which take 19.7 ms or more at the 100" in sentence


def test_what_compression_takes_is_not_promised_of_a_network(tmp_path: Path) -> None:
    (sentence,) = advice(study(tmp_path, {1: 0.02, 4: 0.4}, "onebit"))
    assert "An exchange that takes no time, nor its compression, would bring at most +66 % [65, 67] (measured)." in sentence
    assert "faster network" not in sentence


def test_one_sentence_for_each_line_and_a_chapter(tmp_path: Path) -> None:
    analysis = study(tmp_path, {1: 0.02, 2: 0.18, 4: 0.4})
    (sentence,) = advice(analysis)
    assert sentence.startswith("lenet \N{MIDDLE DOT} no hook \N{MIDDLE DOT} batch 32: at 4 processes it is bound by communication (")
    assert "A faster network would bring at most +66 % [65, 67] (measured)." in sentence
    assert "The bound changes: compute from 1 process on, communication from 2 processes on." in sentence
    assert "What bounds it" in page(analysis, {})


def test_records_of_earlier_versions_have_no_chapter(tmp_path: Path) -> None:
    cells = [make_cell(nodes=nodes) for nodes in (1, 2)]
    records = [make_record(cell, repeat, **{"performance.what_if": None}) for cell in cells for repeat in (1, 2, 3)]
    analysis = collected(tmp_path / "s", records)
    assert bounds(analysis).num_rows == 0
    assert advice(analysis) == []
    assert "What bounds it" not in page(analysis, {})
