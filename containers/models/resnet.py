"""Residual networks (He et al. 2015): one loop for every depth."""

from __future__ import annotations

from collections.abc import Callable

from containers.models.layers import LayerList


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
