"""Traces from a GPU: what a profile by hand says of them."""

from functools import cache
from pathlib import Path

import pytest

from workflow.report.layers_table import rest_of
from workflow.report.profile.profile import Profile, profile_of
from workflow.report.profile.trace import read_trace

CAPTURED = Path(__file__).parents[2] / "captured" / "gpu"


@cache
def profile(name: str) -> Profile:
    return profile_of(read_trace(CAPTURED / f"{name}.json.gz"))


@pytest.mark.parametrize(
    ("layer", "forward_ms", "backward_ms"),
    [
        ("features.0", 0.914, 0.915),
        ("features.3", 0.356, 0.621),
        ("features.6", 0.418, 1.297),
        ("features.8", 0.496, 1.720),
        ("features.10", 0.354, 1.172),
        ("classifier.1", 0.296, 0.476),
        ("classifier.4", 0.168, 0.207),
        ("classifier.6", 0.088, 0.064),
    ],
)
def test_layers_of_alexnet(layer: str, forward_ms: float, backward_ms: float) -> None:
    (found,) = (one for one in profile("alexnet-fp32-nchw").layers if one.name == layer)
    assert found.forward_ms == pytest.approx(forward_ms, rel=0.01)
    assert found.backward_ms == pytest.approx(backward_ms, rel=0.01)


@pytest.mark.parametrize(
    ("name", "kernel_ms", "layers_ms", "optimizer_ms", "functional_ms"),
    [("alexnet-fp32-nchw", 11.67, 10.95, 0.706, 0.001), ("resnet50-bf16-nhwc", 17.68, 16.66, 0.354, 0.650)],
)
def test_sums(name: str, kernel_ms: float, layers_ms: float, optimizer_ms: float, functional_ms: float) -> None:
    found = profile(name)
    assert found.kernel_ms == pytest.approx(kernel_ms, rel=0.001)
    layers = sum(one.forward_ms + one.backward_ms for one in found.layers)
    assert layers == pytest.approx(layers_ms, rel=0.001)
    assert found.other["optimizer"] == pytest.approx(optimizer_ms, rel=0.01)
    assert found.other["functional"] == pytest.approx(functional_ms, abs=0.001)
    assert layers + sum(found.other.values()) == pytest.approx(found.kernel_ms, rel=0.001)
    assert set(found.other) <= {"optimizer", "loss", "functional", "copies"}  # nothing is left that belongs to nothing
    assert found.worked_ms - found.overlap_ms + found.idle.ms == pytest.approx(found.step_ms, rel=1e-6)


@pytest.mark.parametrize(("name", "pinned", "gb_per_s"), [("alexnet-h2d-pageable", False, 7.1), ("alexnet-h2d-pinned", True, 55.2)])
def test_copies(name: str, pinned: bool, gb_per_s: float) -> None:
    back, there = profile(name).copies
    kind = f"Memcpy HtoD ({'Pinned' if pinned else 'Pageable'} -> Device)"
    assert (back.kind, back.bytes, back.pinned) == ("Memcpy DtoH (Device -> Pinned)", 4, True)
    assert (there.kind, there.pinned, there.invocations, there.bytes) == (kind, pinned, 1, 36.75 * 2**20)
    assert there.gb_per_s == pytest.approx(gb_per_s, rel=0.01)
    assert there.bytes is not None
    assert there.bytes / there.ms / 1e6 == pytest.approx(there.gb_per_s, rel=1e-4)


def test_bytes_that_a_trace_does_not_tell_are_null() -> None:
    (copy,) = profile("hta-amd-mi250").copies
    assert (copy.bytes, copy.gb_per_s, copy.ms > 0) == (None, None, True)


def test_the_processor_is_late_in_a_profiled_step_of_resnet() -> None:
    found = profile("resnet50-bf16-nhwc")
    assert found.idle.host_wait_share == pytest.approx(0.945, rel=0.001)
    idle = found.idle
    assert idle.ms == pytest.approx(sum(one or 0 for one in (idle.host_wait_ms, idle.kernel_wait_ms, idle.other_ms, idle.edges_ms)))


def test_a_measured_step_decides_what_is_not_computing() -> None:
    found = profile("resnet50-bf16-nhwc")
    assert rest_of(found, 18.96)["not computing"] == pytest.approx(18.96 - found.kernel_ms + found.overlap_ms, abs=0.01)
    assert found.worked_ms + sum(rest_of(found, 18.96).values()) - sum(found.other.values()) == pytest.approx(18.96, rel=1e-6)
    assert rest_of(found, 10)["not computing"] < -7, "of a step that is shorter than the work in it"


def test_algorithms_are_those_that_the_kernels_name() -> None:
    layers = {one.name: one for one in profile("resnet50-bf16-nhwc").layers}
    assert layers["layer1.0.conv2"].algorithm == "implicit gemm"
    assert layers["layer1.0.conv2"].backward_data_ms == pytest.approx(0.0430, rel=0.01)
    assert layers["layer1.0.conv2"].backward_weights_ms == pytest.approx(0.0502, rel=0.01)
    assert layers["fc"].backward_data_ms is None
    assert layers["fc"].algorithm == "gemm"
    assert layers["relu"].algorithm is None
    assert {one.algorithm for one in profile("alexnet-fp32-nchw").layers if one.name in ("features.3", "features.6")} == {"fft"}
