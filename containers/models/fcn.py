"""Fully connected networks, as the comparison dlbench (Shi et al. 2016) has them."""

from __future__ import annotations

from containers.models.layers import LayerList


def fcn5(net: LayerList, num_classes: int) -> None:
    """FCN-5: three hidden layers of 2048, 4096 and 1024 units between input and output."""
    net.flatten("flatten")
    for number, width in enumerate((2048, 4096, 1024), start=1):
        net.linear(f"fc{number}", width)
        net.relu(f"relu{number}")
    net.linear("fc4", num_classes)
