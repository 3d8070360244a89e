"""Fully connected networks, as the comparison dlbench (Shi et al. 2016) has them; with ReLU where it has sigmoids."""

from __future__ import annotations

from collections.abc import Callable

from containers.models.layers import LayerList


def fully_connected_network(*widths: int) -> Callable[[LayerList, int], None]:
    """Build hidden layers of these widths between input and output."""

    def build(net: LayerList, num_classes: int) -> None:
        net.flatten("flatten")
        for number, width in enumerate(widths, start=1):
            net.linear(f"fc{number}", width)
            net.relu(f"relu{number}")
        net.linear(f"fc{len(widths) + 1}", num_classes)

    return build
