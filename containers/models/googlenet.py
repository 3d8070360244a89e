"""GoogLeNet (Szegedy et al. 2014), which is also called Inception v1: nine modules of four branches each, without its auxiliary heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from containers.models.layers import LayerList

# Module: channels of the 1x1; of the 1x1 and the window behind it, twice; of the 1x1 behind the pooling.
_MODULES: Final = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
_Convolution = Callable[[LayerList, str, int, int, int], str]
"""(net, name, channels, kernel, stride): with all that follows it; padded so that stride 1 keeps the size."""


def googlenet(net: LayerList, num_classes: int) -> None:
    """Build caffe's bvlc_googlenet, which is the paper's: local response normalisation, windows of 5x5."""
    _conv(net, "conv1", 64, 7, 2)
    net.ceil_pool("pool1", 3, 2)
    net.lrn("norm1", size=5, alpha=1e-4, beta=0.75)
    _conv(net, "conv2_reduce", 64, 1, 1)
    _conv(net, "conv2", 192, 3, 1)
    net.lrn("norm2", size=5, alpha=1e-4, beta=0.75)
    net.ceil_pool("pool2", 3, 2)
    _modules(net, _conv, largest=5, last_pool=3)
    _end(net, num_classes, dropped=0.4)


def inception_v1(net: LayerList, num_classes: int) -> None:
    """Add the layers of torchvision's `googlenet`: batch normalisation behind each convolution, and 3x3 where the paper has 5x5."""
    _conv_bn(net, "conv1", 64, 7, 2)
    net.ceil_pool("pool1", 3, 2)
    _conv_bn(net, "conv2_reduce", 64, 1, 1)
    _conv_bn(net, "conv2", 192, 3, 1)
    net.ceil_pool("pool2", 3, 2)
    _modules(net, _conv_bn, largest=3, last_pool=2)
    _end(net, num_classes, dropped=0.2)


def _modules(net: LayerList, convolution: _Convolution, *, largest: int, last_pool: int) -> None:
    """Build the modules. `largest`: the window of the third branch; `last_pool`: that of the last pooling."""
    for name, widths in _MODULES.items():
        if name in ("4a", "5a"):
            net.ceil_pool(f"pool{int(name[0]) - 1}", 3 if name == "4a" else last_pool, 2)
        _module(net, f"inception{name}", widths, convolution, largest)


def _module(net: LayerList, name: str, widths: tuple[int, ...], convolution: _Convolution, largest: int) -> None:
    before = net.layers[-1]["name"]
    branches = [convolution(net, f"{name}.1x1", widths[0], 1, 1)]
    for kernel, called, reduced, width in ((3, "3x3", widths[1], widths[2]), (largest, "5x5", widths[3], widths[4])):
        net.continue_from(before)
        convolution(net, f"{name}.{called}_reduce", reduced, 1, 1)
        branches.append(convolution(net, f"{name}.{called}", width, kernel, 1))
    net.continue_from(before)
    net.pool(f"{name}.pool", 3, 1, padding=1)
    branches.append(convolution(net, f"{name}.pool_proj", widths[5], 1, 1))
    net.concat(f"{name}.concat", *branches)


def _end(net: LayerList, num_classes: int, *, dropped: float) -> None:
    net.global_pool("pool5")
    net.flatten("flatten")
    net.dropout("drop", dropped)
    net.linear("fc", num_classes)


def _conv(net: LayerList, name: str, channels: int, kernel: int, stride: int) -> str:  # noqa: PLR0913 - those of a _Convolution
    net.conv(name, channels, kernel, stride=stride, padding=kernel // 2)
    return net.relu(f"{name}.relu")


def _conv_bn(net: LayerList, name: str, channels: int, kernel: int, stride: int) -> str:
    net.conv(name, channels, kernel, stride=stride, padding=kernel // 2, bias=False)
    net.bn(f"{name}.bn", epsilon=1e-3)
    return net.relu(f"{name}.relu")
