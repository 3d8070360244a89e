"""Strategies of the framework pytorch other than DDP: the same losses and parameters, and checkpoints that are whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.containers.frameworks.programs import checkpoint_of, checksum_of_file, stopped_and_resumed

pytestmark = pytest.mark.slow
Run = Callable[..., Any]
KEYS = {"model": "resnet18", "global_batch_size": 8, "steps": {"warmup": 1, "measured": 4}}
"""Of the dataset photos: 19 images to evaluate on, which are more batches for one rank than for the other."""


def test_fsdp2_trains_as_ddp_does_and_resumes_from_a_checkpoint_of_all_ranks(run_program: Run, tmp_path: Path) -> None:
    optimizer = {"name": "sgd", "learning_rate": 0.002, "momentum": 0.9, "weight_decay": 0.01}
    keys = {**KEYS, "data": "photos", "optimizer": optimizer}
    like = run_program(2, **keys)
    whole = run_program(2, strategy="fsdp2", **keys)
    assert whole.exit_codes == [0, 0], whole.stderr
    assert whole.losses() == pytest.approx(like.losses(), rel=1e-6)
    expected, found = (load_file(run.out / "parameters.safetensors") for run in (like, whole))
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-6)
    (evaluated,), (as_it_should_be,) = (run.of("eval") for run in (whole, like))
    assert (evaluated["samples"], evaluated["accuracy"]) == (as_it_should_be["samples"], as_it_should_be["accuracy"])
    assert evaluated["loss"] == pytest.approx(as_it_should_be["loss"], rel=1e-5)
    (stop,), (other), (expected_stop,) = whole.of("run_stop"), whole.of("run_stop", 1)[0], like.of("run_stop")
    assert stop["norm"] == other["norm"] == pytest.approx(expected_stop["norm"], rel=1e-7)
    assert stop["parameters"] == expected_stop["parameters"]
    assert stop["checksum"] == other["checksum"] == checksum_of_file(whole.out / "parameters.safetensors")

    given = {"SLIPWAY_PARAMETERS": str(whole.out / "parameters.safetensors")}
    (further, as_ddp), infer = (
        [run_program(2, strategy=one, variables=given, **keys) for one in ("fsdp2", "ddp")],
        {**keys, "mode": "infer"},
    )
    assert further.losses() == pytest.approx(as_ddp.losses(), rel=1e-6), further.stderr
    assert further.losses()[0] != pytest.approx(whole.losses()[0], rel=1e-3)
    loaded = run_program(2, strategy="fsdp2", variables=given, **{**infer, "steps": {"warmup": 0, "measured": 1}})
    assert loaded.of("run_stop")[0]["checksum"] == stop["checksum"], loaded.stderr
    assert loaded.of("eval")[0]["loss"] == pytest.approx(evaluated["loss"], rel=1e-6), "a training evaluates as inference does"

    first, rest = stopped_and_resumed(run_program, tmp_path, whole, 2, 1, strategy="fsdp2", **keys)
    path, *_ = checkpoint_of(first)
    assert set(load_file(path)) >= {"net.conv1.weight", "momentum.conv1.weight", "net.bn1.running_mean"}
    assert rest.of("run_stop")[0]["checksum"] == stop["checksum"]


def test_horovod_trains_as_ddp_does_bit_for_bit(run_program: Run) -> None:
    """Sums of two numbers do not depend on their order."""
    optimizer = {"name": "sgd", "learning_rate": 0.002, "momentum": 0.9, "weight_decay": 0.01}
    keys = {**KEYS, "data": "photos", "optimizer": optimizer}
    done = run_program(2, strategy="horovod", **keys)
    assert done.exit_codes == [0, 0], done.stderr
    like = run_program(2, **keys)
    assert done.losses() == like.losses()
    expected, found = (load_file(run.out / "parameters.safetensors") for run in (like, done))
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    assert done.of("eval")[0]["loss"] == like.of("eval")[0]["loss"]
    assert done.of("run_stop")[0]["norm"] == done.of("run_stop", 1)[0]["norm"]
