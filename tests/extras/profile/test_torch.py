"""Traces of torch's profiler on a processor: every layer has its times, and the rows are the step."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.extras.profile.traces import layers
from workflow.report.profile.profile import Profile, profile_of
from workflow.report.profile.trace import read_trace

pytestmark = pytest.mark.slow


def with_ranges(model: Any) -> Any:
    from torch.profiler import record_function

    def ranged(forward: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*inputs: Any) -> Any:
            with record_function(f"layer:{name}"):
                return forward(*inputs)

        return call

    for name, module in model.named_modules():
        if name:
            module.forward = ranged(module.forward, name)
    return model


def traced(
    directory: Path, model: Any, forward: Callable[[Any], Any], inputs: Any, *, optimizers: int = 1, backward: bool = True
) -> Profile:
    """Return the profile of three steps after one without range."""
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    parameters = list(model.parameters())
    updates = [torch.optim.SGD(parameters[number::optimizers], lr=0.01, momentum=0.9) for number in range(optimizers)]

    def step() -> None:
        for update in updates:
            update.zero_grad()
        output = forward(inputs)
        if backward:
            torch.nn.functional.cross_entropy(output, torch.zeros(len(output), dtype=torch.long)).backward()
            for update in updates:
                update.step()

    with profile(activities=[ProfilerActivity.CPU]) as found:
        step()
        for number in range(3):
            with record_function(f"step:{number}"), torch.set_grad_enabled(backward):
                step()
    found.export_chrome_trace(str(directory / "trace.json.gz"))
    return profile_of(read_trace(directory / "trace.json.gz"))


def convolutions() -> Any:
    from torch import nn

    body = [nn.Conv2d(1, 20, 5), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 500)]
    return with_ranges(nn.Sequential(*body, nn.ReLU(inplace=True), nn.Linear(500, 10)))


def check(found: Profile, *, backward: bool = True) -> None:
    assert (found.steps, found.device) == (3, "cpu")
    assert found.other.get("unattributed", 0.0) == 0
    assert found.worked_ms - found.overlap_ms + found.idle.ms == pytest.approx(found.step_ms, abs=1e-5)
    assert (found.other["optimizer"] > 0) == (found.other["loss"] > 0) == backward or not backward
    for layer in found.layers:
        assert layer.forward_ms > 0
        assert (layer.backward_ms > 0) == backward


def test_convolutions_with_several_optimizers(tmp_path: Path) -> None:
    import torch

    model = convolutions()
    found = traced(tmp_path, model, model, torch.randn(64, 1, 28, 28), optimizers=3)
    check(found)
    assert [one.name for one in found.layers] == [str(number) for number in range(8)]
    assert layers(found)["2"].forward_kernel == "aten::mkldnn_convolution"
    assert sum(one.forward_ms + one.backward_ms for one in found.layers) > found.other["optimizer"] + found.other["loss"]


def test_inference(tmp_path: Path) -> None:
    import torch

    model = convolutions()
    check(traced(tmp_path, model, model, torch.randn(64, 1, 28, 28), backward=False), backward=False)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing(tmp_path: Path, reentrant: bool) -> None:
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    model = with_ranges(nn.ModuleDict({"a": nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256)), "b": nn.Linear(256, 10)}))
    inputs = torch.randn(64, 256, requires_grad=True)
    found = traced(tmp_path, model, lambda x: model["b"](checkpoint(model["a"], x, use_reentrant=reentrant)), inputs)
    assert found.other.get("unattributed", 0.0) == 0
    assert all(layer.forward_ms > 0 and layer.backward_ms > 0 for layer in found.layers)
    (products,) = (one for one in found.kernels if one.name == "aten::addmm")
    assert products.calls == 5, "those of the part that is computed again twice"
