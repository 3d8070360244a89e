"""From events to the record, in numbers that can be checked by hand."""

import json
import math
import random
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from base.errors import RecordError
from base.seal import sealed_text
from tests.workflow.run.cells import cell
from tests.workflow.run.record.test_machine_load import node
from tests.workflow.run.valid import validate_record
from workflow.run.record.events import RankEvents, RunStart, RunStop, Step
from workflow.run.record.model import File, Performance, Steps, StepSeconds
from workflow.run.record.outcome import Ending, RankEnd
from workflow.run.record.rate import performance, summarise, thinned, training
from workflow.run.record.reading import read_record
from workflow.run.record.run_record import Measurements, RunFacts, RunTimes, build_record, disagreements, measured


def rank_events(seconds: list[float], warmup: int = 0, **start: Any) -> RankEvents:
    steps = {
        number: Step(
            step=number,
            seconds=took,
            input_s=took / 10,
            measured=number >= warmup,
            samples=2,
            loss=1.0 / (number + 1),
            monotonic_ns=int(1e9 * sum(seconds[: number + 1])),
        )
        for number, took in enumerate(seconds)
    }
    return RankEvents(start=RunStart(parameters=7, **start), steps=steps, stop=RunStop(norm=1.5, checksum="a"))


def test_a_step_is_as_long_as_the_slowest_rank_s_and_warm_up_does_not_count() -> None:
    events = {0: rank_events([5.0, 0.1, 0.3, 0.1, 0.1], 1), 1: rank_events([6.0, 0.2, 0.2, 0.2, 0.2], 1)}
    found = performance(events, 2, 4)
    assert found.first_step_s == 6.0
    assert found.num_warmup_steps == 1
    assert found.step_s.n == 4
    assert (found.step_s.min, found.step_s.p50, found.step_s.max) == (0.2, 0.2, 0.3)
    assert (found.samples, found.window_s) == (16, pytest.approx(0.8))
    assert found.samples_per_s == pytest.approx(20)
    assert found.drift_ratio == pytest.approx(0.2 / 0.25)


def test_the_order_of_ranks_and_the_unit_change_nothing_else() -> None:
    dice = random.Random(3)
    table = [[dice.uniform(0.1, 0.2) * (1.4 if rank == 2 else 1) for _ in range(40)] for rank in range(4)]
    one = performance({rank: rank_events(row) for rank, row in enumerate(table)}, 4, 8, "infer")
    other = performance({rank: rank_events(row) for rank, row in enumerate(reversed(table))}, 4, 8, "infer")
    slow = performance({rank: rank_events([10 * took for took in row]) for rank, row in enumerate(table)}, 4, 8, "infer")
    assert one.step_s == other.step_s
    assert (one.straggler_rank, other.straggler_rank) == (2, 1)
    assert slow.samples_per_s == pytest.approx(one.samples_per_s / 10)
    assert slow.rank_skew_p95_ratio == pytest.approx(one.rank_skew_p95_ratio)


def test_a_rank_s_steps_are_compared_with_its_own_window() -> None:
    """With ranks that are slow in turn, the steps of the slowest are longer than every window: no clock is wrong."""
    events = {0: rank_events([0.1, 0.2] * 50), 1: rank_events([0.2, 0.1] * 50)}
    assert performance(events, 2, 4).window_steps_ratio is None  # type: ignore[union-attr]
    for entry in events.values():
        entry.stop = RunStop(window_steps_s=15.0, window_wall_s=15.0)
    found = performance(events, 2, 4)
    assert found.step_s.n * found.step_s.mean == pytest.approx(20)
    assert (found.window_s, found.window_steps_ratio) == (pytest.approx(15), 1.0)
    events[1].stop = RunStop(window_steps_s=14.0, window_wall_s=15.0)
    assert performance(events, 2, 4).window_steps_ratio == pytest.approx(14 / 15)  # type: ignore[union-attr]
    events[0].stop = RunStop(window_steps_s=15.0)
    assert performance(events, 2, 4).window_steps_ratio is None  # type: ignore[union-attr]


def test_statistics_are_those_of_the_books() -> None:
    values = [random.Random(5).gauss(1, 0.1) for _ in range(101)]
    found = summarise(values)
    assert found.p50 == pytest.approx(statistics.median(values))
    assert found.mean == pytest.approx(statistics.fmean(values))
    assert found.stdev == pytest.approx(statistics.stdev(values))
    assert found.mad == pytest.approx(statistics.median(abs(value - found.p50) for value in values))
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    assert (found.p90, found.p95, found.p99) == pytest.approx((cuts[89], cuts[94], cuts[98]))
    same = dict.fromkeys(("p50", "p90", "p95", "p99", "mean", "min", "max"), 2.0)
    assert summarise([2.0]) == StepSeconds(n=1, stdev=None, mad=0.0, **same)


@pytest.mark.parametrize(
    "events",
    [
        {},
        {0: rank_events([0.1] * 3)},  # a rank is missing
        {0: rank_events([0.1] * 3, 3), 1: rank_events([0.1] * 3, 3)},  # nothing measured
        {0: rank_events([0.1]), 1: rank_events([])},
    ],
)
def test_without_a_common_window_there_is_no_number(events: dict[int, RankEvents]) -> None:
    assert performance(events, 2, 4) is None


def test_one_rank_has_no_skew_and_one_step_no_drift() -> None:
    found = performance({0: rank_events([0.5])}, 1, 2)
    assert (found.rank_skew_p95_ratio, found.straggler_rank, found.drift_ratio, found.step_s.stdev) == (None,) * 4


def test_only_steps_that_every_rank_has_count() -> None:
    found = performance({0: rank_events([0.1] * 9), 1: rank_events([0.1] * 7)}, 2, 4)
    assert found.num_measured_steps == 7


def test_losses_are_means_over_ranks_and_at_most_200() -> None:
    events = {rank: rank_events([0.1] * 1000) for rank in range(2)}
    events[1].steps[999] = events[1].steps[999]._replace(loss=0.003)
    found = training(events, 2)
    assert found.first_loss == 1.0
    assert found.final_loss == pytest.approx((0.001 + 0.003) / 2)
    assert len(found.losses) == 200
    assert (found.losses[0][0], found.losses[-1][0]) == (0, 999)
    assert found.parameters == 7
    assert found.parameter_norm == 1.5
    assert found.peak_memory_bytes is None
    assert thinned([(0, 1.0)]) == ((0, 1.0),)


def test_without_rank_0_there_is_no_training() -> None:
    assert training({1: rank_events([0.1])}, 2) is None
    assert training({0: RankEvents()}, 1) is None


def test_ranks_that_disagree_are_a_warning() -> None:
    start = RunStart(framework="f", framework_version="1", parameters=7, provenance={"torch_version": "2", "cpu_cores": [0]})
    other = start._replace(provenance={"torch_version": "3", "cpu_cores": [1]})
    assert disagreements({0: start, 1: start}) == []
    assert disagreements({0: start, 1: other, 2: other}) == ["ranks disagree on torch_version: '2' on rank 0, '3' on ranks 1, 2"]
    assert disagreements({0: start, 1: start._replace(parameters=8)}) == ["ranks disagree on parameters: 7 on rank 0, 8 on rank 1"]


FACTS: dict[str, Any] = {
    **{"run_id": "one-r1", "study": "s", "site": "here", "engine": "bare", "repeat": 1, "attempt": 2, "result_number": 1},
    "cell": cell(batch_size=2, nodes=2, gpus_per_node=2, steps={"warmup": 0, "measured": 5}).to_json(),
    "allocation": {
        **{"scheduler": "local", "scheduler_version": None, "job_id": "1", "restart_count": 0},
        **{"oversubscribed": False, "device": "cpu"},
    },
    "nodes": [{"name": name, "hostname": "h", "cores": [0], "gpus": []} for name in "ab"],
    "threads_per_rank": 1,
    "exclusive": True,
    "earlier": None,
    "preflight": None,
    "dataset": {"name": "d", "digest": "0" * 64, "samples": 4, "bytes": 8},
    "model_macs": None,
    "provenance": {"git_sha": None, "python": "3"},
}
TIMES = RunTimes(
    start="2026-01-01T00:00:00+00:00",
    end="2026-01-01T00:00:13+00:00",
    run_s=4.0,
    steps_s=Steps(assign=9.0, stage=1.0, train=2.0, result=0.5, push=0.25, release=0.25),
)


def record(ending: Ending | None = None, facts: Mapping[str, Any] | None = None, found: Measurements | None = None) -> dict[str, Any]:
    events = {rank: rank_events([0.1] * 5, framework="f") for rank in range(4)}
    run = msgspec.convert({**FACTS, **(facts or {})}, RunFacts)
    files = [File(path=name, bytes=1, blake3="a" * 64) for name in ("b", "a")]
    return build_record(run, ending or Ending(status="ok"), TIMES, found or measured(events, 4, 8), files).to_json()


def test_multiply_adds_are_those_of_the_tokens_that_were_trained() -> None:
    """7 of a token in a sequence of 4, and 17 in one of 9. 3 tokens in such of 4 and 1 in such of 9: 38 / 4, rounded to even."""
    before = {"model_macs": 17, "macs_by_length": [[4, 7], [9, 17]]}
    performed = msgspec.convert(record()["performance"], Performance)

    def macs(told: Any, **known: Any) -> object:
        tokens = None if told is None else tuple(map(tuple, told))
        found = Measurements(performance=replace(performed, tokens_by_length=tokens))
        return record(facts={**before, **known}, found=found)["model_macs"]

    assert macs([[4, 3], [9, 1]]) == 10
    assert macs([[9, 5]]) == 17
    assert macs([[4, 5]]) == 7
    assert [macs(told) for told in (None, [], [[4, 0]], [[5, 3]])] == [None] * 4
    assert macs([[4, 3]], macs_by_length=[]) == 17  # one length, or images
    assert record(facts=before, found=Measurements())["model_macs"] is None


@pytest.mark.parametrize(
    "ending",
    [
        Ending(status="ok"),
        Ending(status="error", reason="r", rank_end=RankEnd(ranks=(1,), host="a", exit_code=-11, time=1.0)),
        Ending(status="killed", reason="r"),
    ],
)
def test_a_record_is_valid_and_survives_json(ending: Ending) -> None:
    value = json.loads(json.dumps(record(ending), allow_nan=False))
    checked = validate_record(value)
    assert checked.result_number == (1 if ending.kind == "result" else None)
    assert [file.path for file in checked.files] == ["a", "b"]
    assert checked.provenance.framework == "f"


def test_a_run_that_came_to_nothing_has_a_record_too() -> None:
    checked = validate_record(record(Ending(status="cancelled", reason="r"), found=Measurements()))
    assert checked.performance is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"run_s": 4.1}, "add up to 4 s"),
        ({"kind": "prevented"}, "its status ok needs kind 'result' with a result_number, found kind 'prevented'"),
        ({"result_number": None}, "result_number"),
        ({"status_reason": "why"}, "status_reason"),
        ({"world_size": 3}, "world_size 3"),
        ({"surprise": 1}, "surprise"),
        ({"run_s": math.nan}, "not a valid record"),
        ({"status": "failed"}, "status"),
        ({"attempt": 0}, "attempt"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RecordError, match=words):
        validate_record({**record(), **changes})


def test_a_window_that_is_not_the_one_asked_for_is_warned_of() -> None:
    """Also of a resumed run, whose window may be that of the attempt before."""
    cell_asks = "and the cell asks for 5"
    for count, words in (
        (5, None),
        (3, f"the window has 3 measured steps, {cell_asks}"),
        (0, f"no step was told as measured by every rank, {cell_asks}"),
    ):
        events = {rank: rank_events([0.1] * 5, 5 - count, framework="f") for rank in range(4)}
        found = measured(events, 4, 8)
        warnings = validate_record(record(found=found)).warnings
        assert [warning.split(":")[0] for warning in warnings] == ([words] if words else [])
        assert validate_record(record(Ending(status="timeout", reason="r"), found=found)).warnings == (), "its end says why"


def test_other_steps_than_those_after_the_warm_up_are_warned_of() -> None:
    """As many, but the first, which compile, or only those that the program likes."""
    events = {rank: rank_events([0.1] * 9, framework="f") for rank in range(4)}
    for chosen, words in (
        (range(5), []),
        (range(2, 7), ["the 5 measured steps are from 2 to 6, and the cell asks for 0 to 4"]),
        (range(0, 9, 2), ["the 5 measured steps are from 0 to 8, and the cell asks for 0 to 4"]),
    ):
        for entry in events.values():
            entry.steps = {number: step._replace(measured=number in chosen) for number, step in entry.steps.items()}
        assert list(validate_record(record(found=measured(events, 4, 8))).warnings or ()) == words


def test_times_that_cannot_be_are_warned_of_in_the_record() -> None:
    events = {rank: rank_events([0.1] * 5, framework="f") for rank in range(4)}
    found = measured(events, 4, 8)
    assert found.training is not None
    found = replace(found, training=replace(found.training, train_s=900.0))
    (said,) = validate_record(record(found=found)).warnings
    assert said == "the ranks tell of 900 s for all steps, and ran for 2 s: a clock of theirs is wrong"


def test_what_made_a_machine_busy_is_said_after_however_many_warnings() -> None:
    found = measured({rank: rank_events([0.1] * 5, framework="f") for rank in range(4)}, 4, 8)
    value = record(found=replace(found, warnings=tuple(map(str, range(25))), loads=((1, node(others_cores=1.25).load),)))
    validate_record(value)
    assert list(value["warnings"]) == [*map(str, range(20)), *value["busy"]]
    assert value["busy"] == ("b: others used 1.2 of 4 cores while it measured",)
    assert value["exclusive"] is False


def test_ranks_that_measure_different_steps_are_warned_of() -> None:
    events = {rank: rank_events([0.1] * (7 if rank == 2 else 5), framework="f") for rank in range(4)}
    (warning,) = validate_record(record(found=measured(events, 4, 8))).warnings
    assert warning == ("ranks measure different steps: 5 (0 to 4) on ranks 0, 1, 3, 7 (0 to 6) on rank 2")


CAPTURED = Path(__file__).parents[3] / "captured"


@pytest.mark.parametrize("path", sorted([*CAPTURED.glob("*records/*.json"), *CAPTURED.glob("moved-project/**/record.json")]), ids=str)
def test_records_of_earlier_versions_are_believed(path: Path) -> None:
    value = json.loads(path.read_bytes())
    found = validate_record(value)  # their seals do not fit: directories and times in them were changed
    assert (found.run_id, found.run_s, found.seal) == (value["run_id"], value["run_s"], value.get("seal"))
    assert [node.hostname for node in found.nodes] == [node["hostname"] for node in value["nodes"]]


def test_keys_of_a_later_version_are_passed_over() -> None:
    value = {**record(), "later": {"a": [1]}}
    value["cell"] = {**value["cell"], "later": 1}
    value["nodes"] = [{**one, "later": None} for one in value["nodes"]]
    now, later = read_record(sealed_text(record())), read_record(sealed_text(value))
    assert msgspec.structs.replace(later, seal=None) == msgspec.structs.replace(now, seal=None)
