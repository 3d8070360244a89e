"""JAX, and Keras on JAX and on PyTorch, on a GPU. JAX would compute products of matrices in tf32 if nobody said otherwise."""

from collections.abc import Callable
from typing import Any

import pytest

from cluster.gpus.listing import query_gpus
from containers.frameworks import load_framework
from tests.gpu import CUDA, NEEDS_GPU

pytestmark = [pytest.mark.slow, NEEDS_GPU]


@pytest.mark.parametrize(("framework", "backend"), [("jax", "auto"), ("keras", "jax"), ("keras", "torch")])
@pytest.mark.parametrize(("precision", "rel"), [("fp32", 1e-4), ("tf32", 2e-2)])
@pytest.mark.parametrize(
    ("data", "keys"),
    [("digits", {}), ("photos", {"model": "resnet18", "global_batch_size": 8}), ("text", {"model": "gpt2-tiny", "global_batch_size": 8})],
    ids=["lenet", "resnet18", "gpt2-tiny"],
)
def test_the_first_losses_are_those_of_pytorch_on_the_cpu(
    run_program: Callable[..., Any], framework: str, backend: str, data: str, keys: dict[str, Any], precision: str, rel: float
) -> None:
    kind = {"framework": framework, "backend": backend, "layout": load_framework(framework).supports.layout[0]}
    steps = {"warmup": 1, "measured": 3}
    uuid = query_gpus()[0].uuid
    variables = {"CUDA_VISIBLE_DEVICES": uuid, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # other tests compute there too
    cpu = run_program(1, data, steps=steps, **keys)
    gpu = run_program(1, data, steps=steps, precision=precision, variables=variables, **kind | CUDA | keys)
    assert gpu.exit_codes == [0], gpu.stderr
    assert gpu.losses() == pytest.approx(cpu.losses(), rel=rel)
    (start,), (stop,) = gpu.of("run_start"), gpu.of("run_stop")
    told = start["provenance"]
    assert (start["device"], told["gpu_uuid"], told["tf32"]) == ("cuda:0", uuid, precision == "tf32")
    assert stop["memory_source"] == "cuda_allocator"
    assert stop["max_memory_allocated_bytes"] > 1 << 20
    assert stop["window_wall_s"] == pytest.approx(stop["window_steps_s"], rel=0.2)
