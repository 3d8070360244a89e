"""Count what a convolution costs by each algorithm: multiplications and workspace of the forward pass, by arithmetic. Pure.

* direct: a multiply-add for each weight and output; implicit GEMM does the same without a workspace.
* gemm: the same, on a matrix that holds each input once for each window that it is in (im2col), here of the whole batch at once.
* fft (Mathieu et al. 2014): the image is cut into square tiles of 16 or 32 with the windows' overlap, whichever needs fewer, as cuDNN's
  kernels have them; each tile of an input, an output and a filter is transformed once, with 2 N log2 N multiplications for N = T x T real
  values, and the products of the half spectrum (T x (T/2 + 1) complex values) cost 3 multiplications each. It computes every output as if
  the stride were 1.
* winograd2, winograd4 (Lavin and Gray 2016, F(m x m, r x r) with m = 2 or 4): (m + r - 1)^2 products for m x m outputs; the transforms are
  additions and multiplications by constants, and are not counted. Only for stride 1 and windows that are square and larger than 1.

Fewer multiplications are not less time: transforms move memory, and a GPU's matrix units do not multiply complex numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Final

from containers.models.layers import Layer

REAL: Final = 4
"""Bytes of a number: fp32."""
FFT_TILES: Final = (16, 32)
WINOGRAD_OUTPUTS: Final = {"winograd2": 2, "winograd4": 4}
ALGORITHMS: Final = ("direct", "gemm", "fft", *WINOGRAD_OUTPUTS)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Multiplications, and bytes beside input, weights and output, of one forward pass."""

    multiplications: int
    workspace_bytes: int


@dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution of a network; pairs are (height, width)."""

    name: str
    channels_in: int
    channels_out: int
    size_in: tuple[int, int]
    size_out: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    groups: int


def convolutions_of(layers: Sequence[Layer]) -> list[Convolution]:
    """Return the convolutions in the order of the layer list."""
    shapes = {layer["name"]: layer["shape_out"] for layer in layers}

    def convolution(layer: Layer) -> Convolution:
        (channels_in, *size_in), (channels_out, *size_out) = shapes[layer["inputs"][0]], layer["shape_out"]
        return Convolution(
            name=layer["name"],
            channels_in=channels_in,
            channels_out=channels_out,
            size_in=(size_in[0], size_in[1]),
            size_out=(size_out[0], size_out[1]),
            **{key: (layer[key][0], layer[key][1]) for key in ("kernel", "stride", "padding")},
            groups=layer["groups"],
        )

    return [convolution(layer) for layer in layers if layer["kind"] == "conv"]


def onednn_name(one: Convolution, batch_size: int) -> str:
    """Return how the log of oneDNN describes a convolution of a batch."""
    groups = f"g{one.groups}" if one.groups > 1 else ""
    sides = (
        f"i{side}{one.size_in[place]}o{side}{one.size_out[place]}k{side}{one.kernel[place]}s{side}{one.stride[place]}d{side}0"
        f"p{side}{one.padding[place]}"
        for place, side in enumerate("hw")
    )
    return f"mb{batch_size}_{groups}ic{one.channels_in}oc{one.channels_out}_{'_'.join(sides)}"


def cost(convolution: Convolution, batch_size: int, algorithm: str) -> Cost | None:
    """Return what the forward pass of a batch costs by one of ALGORITHMS, None where that cannot compute it."""
    if algorithm == "fft":
        found = [fft for tile in FFT_TILES if (fft := _fft(convolution, batch_size, tile)) is not None]
        return min(found, key=lambda one: one.multiplications, default=None)
    if algorithm in WINOGRAD_OUTPUTS:
        return _winograd(convolution, batch_size, WINOGRAD_OUTPUTS[algorithm])
    window = convolution.kernel[0] * convolution.kernel[1]
    outputs = batch_size * convolution.size_out[0] * convolution.size_out[1]
    columns = REAL * outputs * convolution.channels_in * window if algorithm == "gemm" else 0
    return Cost(multiplications=outputs * _num_channel_pairs(convolution) * window, workspace_bytes=columns)


def _num_channel_pairs(convolution: Convolution) -> int:
    """Count the pairs of an input and an output channel with a filter."""
    return convolution.channels_in // convolution.groups * convolution.channels_out


def _fft(convolution: Convolution, batch_size: int, tile: int) -> Cost | None:
    if max(convolution.kernel) > tile:
        return None
    tiles = batch_size
    for size, padding, kernel in zip(convolution.size_in, convolution.padding, convolution.kernel, strict=True):
        tiles *= ceil((size + 2 * padding - kernel + 1) / (tile - kernel + 1))
    spectrum = tile * (tile // 2 + 1)
    transforms = tiles * (convolution.channels_in + convolution.channels_out) + _num_channel_pairs(convolution)
    products = tiles * _num_channel_pairs(convolution) * spectrum
    return Cost(
        multiplications=round(3 * products + transforms * 2 * tile**2 * log2(tile**2)),
        workspace_bytes=2 * REAL * spectrum * transforms,
    )


def _winograd(convolution: Convolution, batch_size: int, outputs: int) -> Cost | None:
    height, width = convolution.kernel
    if convolution.stride != (1, 1) or height != width or height == 1:
        return None
    tiles = batch_size * ceil(convolution.size_out[0] / outputs) * ceil(convolution.size_out[1] / outputs)
    products = (outputs + height - 1) ** 2
    values = tiles * (convolution.channels_in + convolution.channels_out) + _num_channel_pairs(convolution)
    return Cost(multiplications=tiles * _num_channel_pairs(convolution) * products, workspace_bytes=REAL * products * values)
