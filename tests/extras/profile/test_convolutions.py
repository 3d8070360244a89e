"""What convolutions cost by arithmetic beside what a trace measured of them, and which algorithm the library took."""

import json
from typing import Any

import msgspec
import pytest

from base.errors import ConfigError
from containers.models.facts import usual
from tests.extras.profile.test_captured import CAPTURED, profile
from workflow.commands import main
from workflow.report.formats import to_values
from workflow.report.layers_table import Use
from workflow.report.model_tables import convolutions_of_trace
from workflow.report.profile.profile import Layer, Profile, algorithm_of


def measured_convolutions(found: Profile, name: str, batch_size: int) -> list[dict[str, Any]]:
    return list(to_values(convolutions_of_trace(found, Use(model=usual(name), batch_size=batch_size)))["rows"])


def test_cudnn_multiplied_as_an_fft_what_has_windows_at_each_pixel() -> None:
    """And directly what has stride 4, as the arithmetic says. The rate of conv2 is above what the fp32 units of an H100 can do directly."""
    rows = {row["layer"]: row for row in measured_convolutions(profile("alexnet-fp32-nchw"), "alexnet", 128)}
    taken = {name: (row["measured_layer"], row["algorithm"]) for name, row in rows.items()}
    assert taken == {
        "conv1": ("features.0", "implicit gemm"),
        "conv2": ("features.3", "fft"),
        "conv3": ("features.6", "fft"),
        "conv4": ("features.8", "fft"),
        "conv5": ("features.10", "fft"),
    }
    assert all((row["fft_multiplications"] < row["direct_multiplications"]) == (row["algorithm"] == "fft") for row in rows.values())
    assert rows["conv2"]["forward_s"] == pytest.approx(0.356e-3, rel=0.01)
    assert rows["conv2"]["direct_per_s"] == pytest.approx(28.67e9 / 0.356e-3, rel=0.01)
    assert rows["conv2"]["direct_per_s"] > 67e12 / 2 > rows["conv2"]["fft_multiplications"] / rows["conv2"]["forward_s"]


def test_every_convolution_of_resnet50_has_its_layer() -> None:
    rows = measured_convolutions(profile("resnet50-bf16-nhwc"), "resnet50", 64)
    assert len(rows) == 53
    places = {row["layer"]: row["measured_layer"] for row in rows}
    assert places["stage2.block1.conv2"] == "layer2.0.conv2"
    assert places["stage2.block1.shortcut.conv"] == "layer2.0.downsample.0"
    assert places["stage4.block3.conv3"] == "layer4.2.conv3"
    by_kernel = {(row["shape"].split(", ")[1][:3], row["algorithm"]) for row in rows}
    assert ("3×3", "gemm") not in by_kernel
    assert {word for _, word in by_kernel} == {"gemm", "implicit gemm"}


@pytest.mark.parametrize("name", ["resnet18", "resnet152", "alexnet"])
def test_another_network_than_the_traced_one_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"the trace has no layer .*, but conv1, .* it has 54 layers with kernels"):
        measured_convolutions(profile("resnet50-bf16-nhwc"), name, 64)


def test_layers_that_are_called_as_ours_need_no_kernel_names() -> None:
    """As in a trace of Slipway's own on a processor."""
    layers: list[Layer] = [
        msgspec.structs.replace(
            profile("alexnet-fp32-nchw").layers[0], name=name, algorithm=None, forward_kernel=kernel, forward_ms=forward_ms
        )
        for name, kernel, forward_ms in (
            *(("relu1", None, 1.0), ("conv2", "aten::mkldnn_convolution", 0.0), ("conv1", None, 2.0)),
            *(("fc2", None, 1.0), ("fc1", None, 1.0)),
        )
    ]
    found = msgspec.structs.replace(profile("alexnet-fp32-nchw"), layers=tuple(layers))
    rows = measured_convolutions(found, "lenet", 8)
    assert [(row["layer"], row["forward_s"], row["algorithm"]) for row in rows] == [("conv1", 2e-3, ""), ("conv2", 0.0, "")]
    assert [row["direct_per_s"] for row in rows] == [8 * 24 * 24 * 20 * 25 / 2e-3, None]


@pytest.mark.parametrize(
    ("kernel", "algorithm"),
    [
        ("cudnn::winograd_nonfused::winogradForwardData9x9_5x5<float, float>", "winograd"),
        ("fft2d_r2c_32x32<float, false, 0u, false>", "fft"),
        ("sm80_xmma_gemm_cf32cf32_f32f32_cf32_tn_n_tilesize64x64x8_stage3", "fft"),
        ("implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, true>", "implicit gemm"),
        ("nvjet_sm90_tst_64x512_64x2_1x2_h_bz_coopB_TNT", "gemm"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nt_n_tilesize64x64x8_stage3", "gemm"),
        ("at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>", None),
        ("at::native::conv_depthwise2d_forward_kernel<3, float, int>", "direct"),
        ("brg_conv_fwd:avx512_core", "implicit gemm"),
        ("brgconv:avx512_core", "implicit gemm"),
        ("jit:avx512_core", "direct"),
        ("jit_dw:avx512_core", "direct"),
        ("jit_wino_2x3:avx512_core", "winograd"),
        ("gemm:jit", "gemm"),
        ("aten::mkldnn_convolution", None),
        ("something_new", None),
    ],
)
def test_what_the_name_of_a_kernel_tells(kernel: str, algorithm: str | None) -> None:
    assert algorithm_of(kernel) == algorithm


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["profile", "--trace", str(CAPTURED / "alexnet-fp32-nchw.json.gz"), "--model", "alexnet"]
    assert main.run(words) == 0
    told = capsys.readouterr().out
    assert "sm80_xmma_gemm_cf32cf32" in told
    assert "FLOP/s and bytes are of alexnet, 3×224×224, 1000 classes, batch 128, fp32" in told
    assert main.run([*words[:-2], "--batch-size", "64"]) == 2, "no network that it is of"
    assert "give --model NETWORK" in " ".join(capsys.readouterr().err.split())
    assert main.run([*words, "--batch-size", "64", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "slipway.profile/1"
    assert [row["batch_size"] for row in found["convolutions"]] == [64] * 5
    assert main.run([*words, "--image", "3x448x224", "--json"]) == 0
    (first, *_) = json.loads(capsys.readouterr().out)["convolutions"]
    assert first["shape"] == "3→64, 11×11 on 448×224, stride 4"
    assert main.run([*words, "--image", "224"]) == 2
    assert "such as 3x224x224; found '224'" in " ".join(capsys.readouterr().err.split())
    assert main.run([*words, "--image", "3x2x2"]) == 10
    assert "'alexnet' does not fit images of 2x2" in capsys.readouterr().err
    assert main.run([*words[:-1], "alexnt"]) == 10
    assert "'alexnt' is not known" in capsys.readouterr().err
