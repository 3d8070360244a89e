"""The historic frameworks train the network that PyTorch trains, by the tests of the others."""

from pathlib import Path

import numpy as np
import pytest

from containers.models.layers import without_dropout
from tests.containers.frameworks.test_same_network import (
    COMPARED,
    OTHERS,
    Run,
    cases,
    distance,
    network,
    parameters,
    pytest_generate_tests,
    test_a_run_that_was_stopped_goes_on_as_if_nothing_had_been,
    test_every_kind_of_layer_is_that_of_pytorch,
    test_lenet_is_the_network_of_pytorch,
    test_the_first_losses_of_a_large_network_are_those_of_pytorch,
)

__all__ = [
    "pytest_generate_tests",
    "test_a_run_that_was_stopped_goes_on_as_if_nothing_had_been",
    "test_every_kind_of_layer_is_that_of_pytorch",
    "test_lenet_is_the_network_of_pytorch",
    "test_the_first_losses_of_a_large_network_are_those_of_pytorch",
]
pytestmark = pytest.mark.slow
CASES = cases([name for name in COMPARED if name not in OTHERS], ["caffe", "caffe2", "cntk", "dynet"])
"""bigdl, in two processes, is tested in test_bigdl.py."""


@pytest.mark.long
def test_every_kind_of_layer_of_bigdl_is_that_of_pytorch(run_program: Run, tmp_path: Path) -> None:
    """It chooses its own order of the samples: with a batch that holds all of them, each step is the same all the same."""
    optimizer = {"name": "sgd", "learning_rate": 0.001, "momentum": 0.9, "weight_decay": 0.01}
    plain = network(3, 72, 3)
    keys = {**plain, "model_layers": list(without_dropout(plain["model_layers"])), "optimizer": optimizer, "layout": "nchw"}
    keys |= {"global_batch_size": 17, "steps": {"warmup": 0, "measured": 5}}
    done = run_program(1, "one-batch", framework="bigdl", variables={"TMPDIR": str(tmp_path)}, **keys)
    like = run_program(1, "one-batch", **keys)
    assert done.exit_codes == [0], done.stderr
    assert done.losses() == pytest.approx(like.losses(), rel=1e-5)
    assert done.of("eval")[0]["loss"] == pytest.approx(like.of("eval")[0]["loss"], rel=1e-4)
    ours, theirs = parameters(done), parameters(like)
    assert distance(ours, theirs) < 1e-5
    for what in ("running_mean", "running_var"):
        np.testing.assert_allclose(ours[f"left.bn.{what}"], theirs[f"left.bn.{what}"], rtol=1e-4, atol=1e-6)
