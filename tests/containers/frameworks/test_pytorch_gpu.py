"""The PyTorch program on a GPU: what it computes, what it waits for, what it goes on from, what it says when the card is full."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.gpus.listing import query_gpus
from containers.frameworks import load_framework
from tests.containers.frameworks.programs import checkpoint_of, stop_at
from tests.gpu import CUDA, NEEDS_GPU

pytestmark = [pytest.mark.slow, NEEDS_GPU]
Run = Callable[..., Any]
CHANGED = """
import torch

set_device = torch.cuda.set_device

def changed(device):
    set_device(device)
    {change}

torch.cuda.set_device = changed
"""
"""A sitecustomize for the program: something more is done as soon as it has its GPU."""
WAITED = "called a synchronizing CUDA operation"
WAY_1, WAY_2 = {"warmup": 2, "measured": 6}, {"warmup": 2, "measured": 26}


def with_change(place: Path, lib: Path, change: str) -> dict[str, str]:
    """Variables of a program that does so."""
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(CHANGED.format(change=change))
    return {"PYTHONPATH": f"{place}:{lib}", "PYTHONWARNINGS": "always"}


@pytest.mark.parametrize(
    ("data", "keys", "rel"),
    [
        ("digits", {"precision": "fp32"}, 1e-4),
        ("digits", {"precision": "tf32"}, 2e-2),
        ("digits", {"precision": "bf16"}, 5e-2),
        ("digits", {"precision": "fp16"}, 2e-2),
        ("digits", {"strategy": "fsdp2"}, 1e-4),
        ("digits", {"comm_hook": "fp16"}, 1e-2),
        ("digits", {"comm_hook": "bf16"}, 1e-2),
        ("digits", {"comm_hook": "powersgd"}, 1e-2),
        ("digits", {"mode": "infer"}, 1e-4),
        (
            "digits",
            {"optimizer": {"name": "adamw", "learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0}},
            1e-3,
        ),
        ("digits", {"optimizer": {"name": "sgd", "learning_rate": 1e-3, "momentum": 0.9, "weight_decay": 0, "clip_norm": 0.5}}, 1e-4),
        ("photos", {"model": "resnet18", "global_batch_size": 8}, 1e-3),
        ("photos", {"model": "resnet18", "global_batch_size": 8, "layout": "nhwc", "precision": "bf16"}, 5e-2),
        ("text", {"model": "gpt2-tiny", "global_batch_size": 8}, 1e-4),
        ("text", {"model": "lstm", "global_batch_size": 8}, 1e-4),
        ("lines", {"model": "gpt2-tiny", "global_batch_size": 8, "strategy": "fsdp2"}, 1e-4),
    ],
    ids=lambda value: (
        "-".join(str(one) for one in value.values() if isinstance(one, str)) or "clipped" if isinstance(value, dict) else None
    ),
)
def test_the_first_losses_are_those_of_the_cpu(run_program: Run, data: str, keys: dict[str, Any], rel: float) -> None:
    steps = {"warmup": 0, "measured": 3}
    plain = {name: value for name, value in keys.items() if name not in ("precision", "comm_hook", "strategy")}
    cpu, gpu = run_program(1, data, steps=steps, **plain), run_program(1, data, steps=steps, **CUDA | keys)
    assert gpu.exit_codes == [0], gpu.stderr
    same = 1 if keys.get("precision") == "fp16" else 3  # the loss scaler leaves the first updates out, until its factor fits
    assert gpu.losses()[:same] == pytest.approx(cpu.losses()[:same], rel=rel)
    (start,) = gpu.of("run_start")
    assert (start["device"], start["provenance"]["backend"]) == ("cuda:0", "nccl")
    assert start["provenance"]["tf32"] == (keys.get("precision") == "tf32")


@pytest.mark.parametrize("keys", [{}, {"precision": "fp16"}, {"precision": "bf16", "model": "alexnet", "data": "photos"}], ids=str)
def test_no_step_waits_for_the_gpu(run_program: Run, tmp_path: Path, lib: Path, keys: dict[str, Any]) -> None:
    """PyTorch tells of each wait for the GPU that an operation makes, such as `.item()`: a longer run has no more of them."""
    variables = with_change(tmp_path / "told", lib, "torch.cuda.set_sync_debug_mode('warn')")
    counts = []
    for steps in (WAY_1, WAY_2):
        done = run_program(1, variables=variables, steps=steps, **CUDA | keys)
        assert done.exit_codes == [0], done.stderr
        counts.append(done.stderr[0].count(WAITED))
    assert counts[0] == counts[1] > 0, "the evaluation and the parameters are waited for"


@pytest.mark.parametrize("keys", [{}, {"precision": "fp16"}, {"strategy": "fsdp2"}], ids=lambda keys: "-".join(keys.values()) or "plain")
def test_a_run_that_is_cut_off_on_a_gpu_goes_on_there(run_program: Run, tmp_path: Path, lib: Path, keys: dict[str, Any]) -> None:
    variables = with_change(tmp_path / "exact", lib, "torch.use_deterministic_algorithms(True, warn_only=True)")
    variables["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    keys = CUDA | {"steps": {"warmup": 1, "measured": 100_000}} | keys

    def stopped(step: int, checkpoint: str = "") -> Any:
        stop = tmp_path / f"out-{len(list(tmp_path.iterdir()))}" / "stop"
        found = {"SLIPWAY_STOP": str(stop), "SLIPWAY_CHECKPOINT": checkpoint}
        done = run_program(1, variables={**variables, **found}, watch=stop_at(step), **keys)
        assert done.exit_codes == [43], done.stderr
        return done

    first = stopped(1)
    path, metadata, _ = checkpoint_of(first)
    rest = stopped(int(metadata["step"]) + 8, str(path))
    losses = first.losses() + rest.losses()
    assert stopped(len(losses) - 1).losses()[: len(losses)] == losses


def test_a_card_without_room_is_named(run_program: Run, tmp_path: Path, lib: Path) -> None:
    variables = with_change(tmp_path / "little", lib, "torch.cuda.set_per_process_memory_fraction(0.0002)")
    done = run_program(1, "photos", variables=variables, model="resnet18", global_batch_size=64, **CUDA)
    assert done.exit_codes == [41], done.stderr
    (error,) = done.of("error")
    assert error["kind"] == "oom"
    assert "CUDA out of memory" in error["message"]


@pytest.mark.parametrize("framework", ["pytorch", "jax"])
def test_training_and_inference_on_a_gpu_start_from_given_parameters(run_program: Run, framework: str) -> None:
    """And in bf16, where the weights stay in 32 bits."""
    kind = {"framework": framework, "layout": load_framework(framework).supports.layout[0]}
    optimizer = {"name": "sgd", "learning_rate": 0.005, "momentum": 0.9, "weight_decay": 0.0}
    uuid = {"CUDA_VISIBLE_DEVICES": query_gpus()[0].uuid, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    first = run_program(1, optimizer=optimizer, steps={"warmup": 0, "measured": 225}, variables=uuid, **kind | CUDA)
    assert first.exit_codes == [0], first.stderr
    given = {"SLIPWAY_PARAMETERS": str(first.out / "parameters.safetensors")}
    steps = {"warmup": 0, "measured": 3}
    cpu = run_program(1, variables=given, steps=steps, **kind)
    for precision, rel in [("fp32", 1e-4), ("bf16", 5e-2)][: 2 if framework == "pytorch" else 1]:
        second = run_program(1, variables=given | uuid, steps=steps, precision=precision, **kind | CUDA)
        assert second.exit_codes == [0], second.stderr
        assert second.losses() == pytest.approx(cpu.losses(), rel=rel, abs=1e-3)
        assert second.losses()[0] < 0.5 < 2 < first.losses()[0]
    infer = run_program(1, mode="infer", variables=given | uuid, steps=steps, **kind | CUDA)
    assert infer.exit_codes == [0], infer.stderr
    assert infer.of("eval")[0]["accuracy"] == pytest.approx(first.of("eval")[0]["accuracy"], abs=0.01)
