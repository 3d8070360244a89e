"""LeNet as Caffe's MNIST example has it: no ReLU after the convolutions."""

from __future__ import annotations

from containers.models.layers import LayerList


def lenet(net: LayerList, num_classes: int) -> None:
    """Build two convolutions of 5x5, each followed by max pooling, then 500 hidden units."""
    net.conv("conv1", 20, 5)
    net.pool("pool1", 2, 2)
    net.conv("conv2", 50, 5)
    net.pool("pool2", 2, 2)
    net.flatten("flatten")
    net.linear("fc1", 500)
    net.relu("relu1")
    net.linear("fc2", num_classes)
