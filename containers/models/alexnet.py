"""AlexNet in its two common shapes: one column without groups, and Caffe's with two groups and normalisation."""

from __future__ import annotations

from containers.models.layers import LayerList


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


def alexnet_caffe(net: LayerList, num_classes: int) -> None:
    """Build caffe's bvlc_alexnet (Krizhevsky 2012): convolutions 2, 4, 5 in two groups, normalisation before pooling; made for 227x227."""
    net.conv("conv1", 96, 11, stride=4)
    net.relu("relu1")
    net.lrn("norm1", size=5, alpha=1e-4, beta=0.75)
    net.pool("pool1", 3, 2)
    net.conv("conv2", 256, 5, padding=2, groups=2)
    net.relu("relu2")
    net.lrn("norm2", size=5, alpha=1e-4, beta=0.75)
    net.pool("pool2", 3, 2)
    _convolutions(net, groups=2, channels=(384, 384, 256))
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
