"""Update rules beside plain SGD: PyTorch and JAX make the same steps, and go on where they were stopped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.containers.frameworks.programs import distance, parameters, stopped_and_resumed

pytestmark = pytest.mark.slow
Run = Callable[..., Any]
ADAMW = {"name": "adamw", "learning_rate": 0.001, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
CLIPPED = {"name": "sgd", "learning_rate": 0.05, "momentum": 0.9, "weight_decay": 0.01, "clip_norm": 0.5}


@pytest.mark.parametrize(
    "optimizer",
    [pytest.param({**ADAMW, "clip_norm": 1.0}, id="adamw"), pytest.param(CLIPPED, id="sgd", marks=pytest.mark.long)],
)
@pytest.mark.parametrize(("model", "data"), [("lenet", "digits"), pytest.param("gpt2-tiny", "text", marks=pytest.mark.long)])
def test_jax_updates_as_pytorch_does(run_program: Run, model: str, data: str, optimizer: dict[str, Any]) -> None:
    keys = {"model": model, "optimizer": optimizer, "global_batch_size": 16, "steps": {"warmup": 0, "measured": 6}}
    ours, theirs = run_program(1, data, **keys), run_program(2, data, framework="jax", **keys)
    assert theirs.exit_codes == [0, 0], theirs.stderr
    assert theirs.losses()[:5] == pytest.approx(ours.losses()[:5], rel=1e-5)
    assert distance(parameters(theirs), parameters(ours)) < 1e-4
    free = {key: value for key, value in optimizer.items() if key != "clip_norm"}
    assert run_program(1, data, **{**keys, "optimizer": free}).losses() != pytest.approx(ours.losses(), rel=1e-5)


@pytest.mark.long
def test_adamw_in_parts_goes_on_from_a_checkpoint_of_all_ranks(run_program: Run, tmp_path: Path) -> None:
    keys = {"strategy": "fsdp2", "optimizer": {**ADAMW, "clip_norm": 1.0}, "steps": {"warmup": 1, "measured": 4}}
    whole = run_program(2, **keys)
    assert whole.exit_codes == [0, 0], whole.stderr
    stopped_and_resumed(run_program, tmp_path, whole, 2, 1, **keys)


@pytest.mark.long
@pytest.mark.parametrize("framework", ["pytorch", "jax"])
def test_adamw_goes_on_where_it_was_stopped(run_program: Run, tmp_path: Path, framework: str) -> None:
    keys = {"framework": framework, "optimizer": {**ADAMW, "clip_norm": 1.0}, "steps": {"warmup": 2, "measured": 58}}
    whole = run_program(1, **keys)
    stopped_and_resumed(run_program, tmp_path, whole, **keys)
