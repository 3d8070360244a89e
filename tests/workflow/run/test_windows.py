"""Short windows from the program to the record: what Slipway's own clock confirms, what it does not, and what it refuses."""

from typing import Any

import pytest

from data_prep.build.dataset import build_dataset
from data_prep.spec import parse_spec
from tests.workflow.run.test_runs import ended
from tests.workflow.run.world import World
from workflow.run.record.events import parse_line
from workflow.run.record.window_check import CONFIRMED, STAGGERED_RATIO, STAGGERED_S

pytestmark = pytest.mark.slow
TRIES = 5


def test_a_window_that_was_three_times_as_long_is_an_error(world: World) -> None:
    record = ended(world, world.cell(measured=50, step_s=0.06, clock=1 / 3, tells=1 / 3))
    assert record["status"] == "error"
    reason = str(record["status_reason"])
    assert reason.startswith("rank 0 on local-0 tells of ")
    assert "went by between these lines by Slipway's clock" in reason


@pytest.mark.parametrize("clock", [{"clock": 1 / 2}, {"stamps": False}])
def test_half_a_second_or_one_without_stamps_is_a_warning_and_not_confirmed(world: World, clock: dict[str, Any]) -> None:
    """What it does between its steps it need not tell: its clock may be right, and its rate is not. On a machine that stands still
    meanwhile, its second is several, which no clock may be wrong by, or nobody looks at it: that run is forgotten."""
    for _ in range(TRIES):
        record = ended(world, world.cell(measured=50, step_s=0.02, tells=1 / 2, **clock))
        seen = record["window_seen"]
        if seen["window_s"] < 0.8 and seen["most_s"] - seen["least_s"] < 0.3:
            break
    assert record["status"] == "ok", record["status_reason"]
    assert seen["least_s"] > seen["window_s"] * (1 + CONFIRMED)
    assert any("its rate looks too high" in warning for warning in record["warnings"])


def test_a_file_of_events_that_was_written_anew_is_not_confirmed(world: World) -> None:
    """What was pushed tells of another window than what was watched."""
    record = ended(world, world.cell(measured=50, step_s=0.03, last="tell anew"))
    assert record["status"] == "ok"
    assert record["window_seen"]["least_s"] > record["window_seen"]["window_s"] * (1 + CONFIRMED)
    assert any("its rate looks too high" in warning for warning in record["warnings"])


@pytest.mark.parametrize("sync", [True, False])
def test_ranks_that_measured_at_other_times_are_seen(world: World, sync: bool) -> None:
    record = ended(world, world.cell(2, measured=100, step_s=0.01, sync=sync, late={"1": 3.0}))
    assert record["status"] == "ok"
    window_s, together_s = record["performance"]["window_s"], record["window_seen"]["together_s"]
    assert (together_s > window_s * (1 + STAGGERED_RATIO) + STAGGERED_S) == (not sync)


def test_evaluations_between_epochs_are_in_no_rate(world: World) -> None:
    """LeNet on digits in two processes, three epochs: window and rate are those of the steps, by lines from which only the time between
    the phases is taken out."""
    datasets = world.storage / "datasets"
    spec = parse_spec({"source": "sklearn-digits", "size": 32, "splits": {"test": 0.2}}, datasets)
    world.dataset = datasets / build_dataset(spec, "tiny", datasets, jobs=1).path
    run_id = world.cell(1, 2)
    optimizer = {"name": "sgd", "learning_rate": 0.02, "momentum": 0.9, "weight_decay": 0}
    keys = {"framework": "pytorch", "batch_size": 16, "global_batch_size": 32, "steps": None, "epochs": 3, "evaluate_every": 1}
    world.cells[-1].update({**keys, "optimizer": optimizer, "threads": 1})
    world.write()
    record = ended(world, run_id)
    assert record["status"] == "ok"
    assert [warning for warning in record["warnings"] if "others used" not in warning] == []
    found, evaluations = record["performance"], record["training"]["evaluations"]
    per_epoch = record["dataset"]["train_samples"] // 32
    assert [(one["split"], one["step"], one["epoch"]) for one in evaluations] == [("test", epoch * per_epoch, epoch) for epoch in (1, 2, 3)]
    accuracies = [one["accuracy"] for one in evaluations]
    assert accuracies[0] < accuracies[-1] == record["training"]["eval"]["accuracy"]
    times = [one["training_s"] for one in evaluations]
    assert times == sorted(times)
    walls, between = zip(*(window_by_hand(world, run_id, rank) for rank in (0, 1)), strict=True)
    assert found["window_s"] == pytest.approx(max(walls), abs=1e-3)
    assert found["evaluation_s"] == pytest.approx(max(between), abs=1e-3)
    assert found["samples_per_s"] == pytest.approx(32 * found["num_measured_steps"] / found["window_s"])
    assert record["training"]["train_s"] == pytest.approx(evaluations[-1]["training_s"], rel=0.1)
    assert record["training"]["eval_s"] == pytest.approx(sum(one["seconds"] for one in evaluations))


def window_by_hand(world: World, run_id: str, rank: int) -> tuple[float, float]:
    """The seconds from the begin of the first measured step of a rank to the end of the last, without its phases `eval`; and these."""
    lines = (world.run_dir(run_id) / "attempts" / "1" / f"events-{rank}.jsonl").read_bytes().splitlines()
    begin_s, end_s, evaluated_s, since_s = None, 0.0, 0.0, None
    pending_s = 0.0
    for event in map(parse_line, lines):
        now_s = event["monotonic_ns"] / 1e9
        if event["event"] == "step" and event["measured"]:
            begin_s, end_s = now_s - event["seconds"] if begin_s is None else begin_s, now_s
            evaluated_s, pending_s = evaluated_s + pending_s, 0.0
        elif event["event"] == "phase":
            if event["phase"] != "eval" and since_s is not None and begin_s is not None:
                pending_s += now_s - since_s
            since_s = (now_s if since_s is None else since_s) if event["phase"] == "eval" else None
    assert begin_s is not None
    return end_s - begin_s - evaluated_s, evaluated_s
