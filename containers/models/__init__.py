"""The networks: layer lists with shapes, parameters and multiply-adds. Pure, standard library only.

The plan, the size check and the table of model facts read them; the list of a cell travels in `cell.json` as `model_layers`, and every
program builds from it. There is no second list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

from base.errors import ConfigError
from base.names import choices
from containers.models.alexnet import alexnet, alexnet_caffe
from containers.models.fcn import fcn5
from containers.models.layers import Layer, LayerList, ShapeTooSmall, with_initial_limits
from containers.models.lenet import lenet
from containers.models.resnet import resnet, resnet_cifar
from containers.models.vgg import vgg16

LARGEST_SMALLEST = 1024


@dataclass(frozen=True, kw_only=True)
class Network:
    """A row of MODELS: what exactly the name means, and the function that adds its layers."""

    variant: str
    add_layers: Callable[[LayerList, int], None]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network for images of one shape and a number of classes. Counts: trainable parameters; multiply-adds of one sample forward."""

    name: str
    variant: str
    layers: tuple[Layer, ...]
    parameters: int
    macs: int
    smallest_size: int


MODELS: Final[dict[str, Network]] = {
    "lenet": Network(variant="Caffe's MNIST example, no ReLU after convolutions", add_layers=lenet),
    "alexnet": Network(variant="one weird trick, no groups, as torchvision", add_layers=alexnet),
    "alexnet-caffe": Network(variant="Caffe's bvlc_alexnet, two groups, LRN", add_layers=alexnet_caffe),
    "resnet18": Network(variant="as torchvision", add_layers=resnet((2, 2, 2, 2), bottleneck=False)),
    "resnet34": Network(variant="as torchvision", add_layers=resnet((3, 4, 6, 3), bottleneck=False)),
    "resnet50": Network(variant="v1.5, stride in the 3x3, as torchvision", add_layers=resnet((3, 4, 6, 3), bottleneck=True)),
    "resnet50-v1": Network(
        variant="v1, stride in the first 1x1, as the paper", add_layers=resnet((3, 4, 6, 3), bottleneck=True, first_version=True)
    ),
    "resnet101": Network(variant="v1.5, stride in the 3x3, as torchvision", add_layers=resnet((3, 4, 23, 3), bottleneck=True)),
    "resnet152": Network(variant="v1.5, stride in the 3x3, as torchvision", add_layers=resnet((3, 8, 36, 3), bottleneck=True)),
    "resnet56-cifar": Network(variant="the paper's for 32x32, shortcuts by 1x1 convolutions (option B)", add_layers=resnet_cifar(9)),
    "vgg16": Network(variant="configuration D, without batch normalisation, as torchvision", add_layers=vgg16),
    "fcn5": Network(variant="dlbench's FCN-5: hidden layers of 2048, 4096, 1024, ReLU", add_layers=fcn5),
}


def build(name: str, channels: int, size: tuple[int, int], num_classes: int) -> Model:
    """The network `name` for images of `channels` x `size` (height, width).

    Raises ConfigError: unknown name, no channels or classes, image too small (with the smallest size that fits).
    """
    if num_classes < 1 or channels < 1:
        raise ConfigError(f"model {name!r} for {channels} channels and {num_classes} classes: both must be at least 1")
    network = _network(name)
    net = LayerList(channels, size)
    try:
        network.add_layers(net, num_classes)
    except ShapeTooSmall as error:
        smallest = smallest_size(name)
        raise ConfigError(
            f"model {name!r} does not fit images of {size[0]}x{size[1]} ({error}): the smallest that fits is {smallest}x{smallest}; "
            f"give the dataset `size: {smallest}` or more, or choose another model"
        ) from error
    return Model(
        name=name,
        variant=network.variant,
        layers=with_initial_limits(net.layers),
        parameters=sum(layer["parameters"] for layer in net.layers),
        macs=sum(layer["macs"] for layer in net.layers),
        smallest_size=smallest_size(name),
    )


@cache
def smallest_size(name: str) -> int:
    """The side of the smallest square image for which every layer of `name` has an output of at least one pixel."""
    network = _network(name)
    for side in range(1, LARGEST_SMALLEST):
        try:
            network.add_layers(LayerList(1, (side, side)), 1)
        except ShapeTooSmall:
            continue
        return side
    raise AssertionError(f"{name} fits no image below {LARGEST_SMALLEST}x{LARGEST_SMALLEST}")


def _network(name: str) -> Network:
    if name not in MODELS:
        raise ConfigError(f"model {name!r} is not known; {choices(name, MODELS)}")
    return MODELS[name]
