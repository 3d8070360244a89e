"""Define the networks for images, each a function that adds its layers to a list."""

from collections.abc import Callable
from typing import Final

from containers.models.layers import LayerList


def lenet(net: LayerList, num_classes: int) -> None:
    """Build Caffe's MNIST example: two convolutions of 5x5, each followed by max pooling and no ReLU, then 500 hidden units."""
    net.conv("conv1", 20, 5)
    net.pool("pool1", 2, 2)
    net.conv("conv2", 50, 5)
    net.pool("pool2", 2, 2)
    net.flatten("flatten")
    net.linear("fc1", 500)
    net.relu("relu1")
    net.linear("fc2", num_classes)


def alexnet(net: LayerList, num_classes: int) -> None:
    """Add the layers of "One weird trick" (Krizhevsky 2014), which is torchvision's.

    Its adaptive pooling, the identity at 224x224, is left out."""
    net.conv("conv1", 64, 11, stride=4, padding=2)
    net.relu("relu1")
    net.pool("pool1", 3, 2)
    net.conv("conv2", 192, 5, padding=2)
    net.relu("relu2")
    net.pool("pool2", 3, 2)
    _convolutions(net, groups=1, channels=(384, 256, 256))
    net.flatten("flatten")
    for number in (6, 7):
        net.dropout(f"drop{number}")
        net.linear(f"fc{number}", 4096)
        net.relu(f"relu{number}")
    net.linear("fc8", num_classes)


def alexnet_caffe(net: LayerList, num_classes: int, groups: int = 2) -> None:
    """Build caffe's bvlc_alexnet (Krizhevsky 2012): convolutions 2, 4, 5 in two groups, normalisation before pooling; made for 227x227."""
    net.conv("conv1", 96, 11, stride=4)
    net.relu("relu1")
    net.lrn("norm1", size=5, alpha=1e-4, beta=0.75)
    net.pool("pool1", 3, 2)
    net.conv("conv2", 256, 5, padding=2, groups=groups)
    net.relu("relu2")
    net.lrn("norm2", size=5, alpha=1e-4, beta=0.75)
    net.pool("pool2", 3, 2)
    _convolutions(net, groups=groups, channels=(384, 384, 256))
    fully_connected(net, num_classes)


def fully_connected(net: LayerList, num_classes: int) -> None:
    """Build the end of the paper's AlexNet, and of VGG: two hidden layers of 4096, then the classes."""
    net.flatten("flatten")
    for number in (6, 7):
        net.linear(f"fc{number}", 4096)
        net.relu(f"relu{number}")
        net.dropout(f"drop{number}")
    net.linear("fc8", num_classes)


def _convolutions(net: LayerList, groups: int, channels: tuple[int, int, int]) -> None:
    for number, width in zip((3, 4, 5), channels, strict=True):
        net.conv(f"conv{number}", width, 3, padding=1, groups=1 if number == 3 else groups)
        net.relu(f"relu{number}")
    net.pool("pool5", 3, 2)


# VGG (Simonyan and Zisserman 2014): convolutions of 3x3 alone, in five stages that each end by halving the image.


_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def vgg16(net: LayerList, num_classes: int) -> None:
    """Build configuration D; torchvision's adaptive pooling, the identity at 224x224, is left out."""
    for stage, (channels, count) in enumerate(_STAGES, start=1):
        for number in range(1, count + 1):
            net.conv(f"conv{stage}_{number}", channels, 3, padding=1)
            net.relu(f"relu{stage}_{number}")
        net.pool(f"pool{stage}", 2, 2)
    fully_connected(net, num_classes)


# Fully connected networks, as the comparison dlbench (Shi et al. 2016) has them; with ReLU where it has sigmoids.


def fully_connected_network(*widths: int) -> Callable[[LayerList, int], None]:
    """Build hidden layers of these widths between input and output."""

    def build(net: LayerList, num_classes: int) -> None:
        net.flatten("flatten")
        for number, width in enumerate(widths, start=1):
            net.linear(f"fc{number}", width)
            net.relu(f"relu{number}")
        net.linear(f"fc{len(widths) + 1}", num_classes)

    return build


# Residual networks (He et al. 2015): one loop for every depth.


def resnet(blocks: tuple[int, int, int, int], *, bottleneck: bool, first_version: bool = False) -> Callable[[LayerList, int], None]:
    """Return a network of four stages with so many blocks each. Where a stage begins, a bottleneck block halves the image in its 3x3
    convolution (v1.5, torchvision's) or, with `first_version`, in its first 1x1 (v1, the paper's).
    """

    def build(net: LayerList, num_classes: int) -> None:
        net.conv("conv1", 64, 7, stride=2, padding=3, bias=False)
        net.bn("bn1")
        net.relu("relu1")
        net.pool("pool1", 3, 2, padding=1)
        for stage, count in enumerate(blocks):
            for block in range(count):
                name = f"stage{stage + 1}.block{block + 1}"
                stride = 2 if stage > 0 and block == 0 else 1
                if bottleneck:
                    strides = (stride, 1, 1) if first_version else (1, stride, 1)
                    _block(net, name, (1, 3, 1), (64 << stage, 64 << stage, 256 << stage), strides)
                else:
                    _block(net, name, (3, 3), (64 << stage, 64 << stage), (stride, 1))
        net.global_pool("pool5")
        net.flatten("flatten")
        net.linear("fc", num_classes)

    return build


def resnet_cifar(blocks: int) -> Callable[[LayerList, int], None]:
    """Return the paper's network for images of 32x32: three stages of 16, 32 and 64 channels with so many blocks each. Its shortcuts have
    1x1 convolutions where the shape changes (the paper's option B).
    """

    def build(net: LayerList, num_classes: int) -> None:
        net.conv("conv1", 16, 3, padding=1, bias=False)
        net.bn("bn1")
        net.relu("relu1")
        for stage in range(3):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                _block(net, f"stage{stage + 1}.block{block + 1}", (3, 3), (16 << stage, 16 << stage), (stride, 1))
        net.global_pool("pool")
        net.flatten("flatten")
        net.linear("fc", num_classes)

    return build


def _block(net: LayerList, name: str, kernels: tuple[int, ...], channels: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """Build convolutions with batch normalisation around a shortcut, which is a 1x1 convolution where the shape changes."""
    before = net.layers[-1]["name"]
    shape = net.shape()
    main = ""
    for number, (kernel, width, stride) in enumerate(zip(kernels, channels, strides, strict=True), start=1):
        net.conv(f"{name}.conv{number}", width, kernel, stride=stride, padding=kernel // 2, bias=False)
        main = net.bn(f"{name}.bn{number}")
        if number < len(kernels):
            net.relu(f"{name}.relu{number}")
    shortcut = before
    if net.shape() != shape:
        net.continue_from(before)
        net.conv(f"{name}.shortcut.conv", channels[-1], 1, stride=max(strides), bias=False)
        shortcut = net.bn(f"{name}.shortcut.bn")
    net.add(f"{name}.add", main, shortcut)
    net.relu(f"{name}.relu")


# GoogLeNet (Szegedy et al. 2014), which is also called Inception v1: nine modules of four branches each, without its auxiliary heads.


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
