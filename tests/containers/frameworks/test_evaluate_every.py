"""Programs that evaluate between epochs: their training stays what it is, and all ranks share each evaluation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.containers.frameworks.programs import cut, resumed
from workflow.run.record.events import read_events
from workflow.run.record.run_record import join_measurements, measured

pytestmark = pytest.mark.slow
Run = Callable[..., Any]
OPTIMIZER = {"name": "sgd", "learning_rate": 0.02, "momentum": 0.9, "weight_decay": 0.0}
KEYS: dict[str, Any] = {"steps": None, "epochs": 3, "optimizer": OPTIMIZER, "global_batch_size": 64}


def told(done: Any) -> list[tuple[int, float, float, float, int]]:
    return [tuple(event[name] for name in ("step", "epoch", "loss", "accuracy", "samples")) for event in done.of("eval")]


@pytest.mark.parametrize(
    ("world", "keys"),
    [
        (2, {"data": "one-batch", "strategy": "fsdp2", "global_batch_size": 8}),
        (2, {"data": "one-batch", "model": "resnet18", "global_batch_size": 8}),
        *((1, {"framework": name}) for name in ("jax", "keras")),
        *(pytest.param(1, {"framework": name}, marks=pytest.mark.long) for name in ("tensorflow", "paddle")),
    ],
)
def test_steps_are_those_of_a_training_that_is_evaluated_at_its_end(run_program: Run, world: int, keys: dict[str, Any]) -> None:
    plain = run_program(world, **{**KEYS, **keys})
    done = run_program(world, **{**KEYS, **keys}, evaluate_every=1)
    assert done.exit_codes == [0] * world, done.stderr
    assert done.losses() == plain.losses()
    found, (last,) = told(done), told(plain)
    per_epoch = len(plain.losses()) // 3
    assert [(step, epoch) for step, epoch, *_ in found] == [(per_epoch, 1), (2 * per_epoch, 2), (3 * per_epoch, 3)]
    assert found[-1] == last
    for rank in range(world):
        kinds = [(event["event"], event.get("phase")) for event in done.events[rank] if event["event"] in ("phase", "step")]
        spans = [index for index, kind in enumerate(kinds) if kind == ("phase", "eval") and kinds[index - 1] != kind]
        assert len(spans) == 3
    stop = done.of("run_stop")[0]
    assert stop["eval_s"] == pytest.approx(sum(event["eval_s"] for event in done.of("eval")))
    assert 0 < stop["window_steps_s"] <= stop["window_wall_s"] * 1.001, "steps lie in the window"
    assert stop["window_wall_s"] <= stop["train_s"], "neither holds an evaluation"


def test_a_run_that_goes_on_evaluates_what_is_left(run_program: Run, tmp_path: Path) -> None:
    keys = {**KEYS, "global_batch_size": 32}
    whole = run_program(1, **keys, evaluate_every=1)
    per_epoch = len(whole.losses()) // 3
    first = cut(run_program, tmp_path, per_epoch + 2, 1, **keys, evaluate_every=1)
    path = next(first.out.glob("checkpoint.safetensors"))
    done = first.of("checkpoint")[0]["step"]
    rest = resumed(run_program, path, 1, **keys, evaluate_every=1)
    assert rest.exit_codes == [0], rest.stderr
    assert [one for one in told(first) if one[0] < done] + told(rest) == told(whole)
    before, after, unbroken = (measured(read_events(run.out, 1), 1, 32) for run in (first, rest, whole))
    joined = join_measurements(after, None, before.training, done).training
    assert joined is not None
    assert unbroken.training is not None
    found, expected = joined.evaluations or (), unbroken.training.evaluations or ()
    assert [(one.step, one.loss, one.accuracy) for one in found] == [(one.step, one.loss, one.accuracy) for one in expected]
    times = [one.training_s or 0.0 for one in found]
    assert times == sorted(times)
