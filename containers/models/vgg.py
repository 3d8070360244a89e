"""VGG (Simonyan and Zisserman 2014): convolutions of 3x3 alone, in five stages that each end by halving the image."""

from __future__ import annotations

from containers.models.alexnet import fully_connected
from containers.models.layers import LayerList

_STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


def vgg16(net: LayerList, num_classes: int) -> None:
    """Build configuration D; torchvision's adaptive pooling, the identity at 224x224, is left out."""
    for stage, (channels, count) in enumerate(_STAGES, start=1):
        for number in range(1, count + 1):
            net.conv(f"conv{stage}_{number}", channels, 3, padding=1)
            net.relu(f"relu{stage}_{number}")
        net.pool(f"pool{stage}", 2, 2)
    fully_connected(net, num_classes)
