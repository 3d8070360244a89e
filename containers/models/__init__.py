"""Define the networks: layer lists with shapes, parameters and multiply-adds. Pure, standard library only.

The plan, the size check and the table of model facts read them; the list of a cell travels in `cell.json` as `model_layers`, and every
program builds from it. There is no second list.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

from base.errors import ConfigError
from base.humanize import choices
from containers.models.image_networks import (
    alexnet,
    alexnet_caffe,
    fully_connected_network,
    googlenet,
    inception_v1,
    lenet,
    resnet,
    resnet_cifar,
    vgg16,
)
from containers.models.layers import Layer, LayerList, ShapeTooSmall, first_macs, with_initial_limits
from containers.models.tokens import TokenLayers, gpt2, lstm

LARGEST_SMALLEST = 1024


class Network(NamedTuple):
    """A row of MODELS: what exactly the name means, and the function that adds its layers."""

    variant: str
    add_layers: Callable[[LayerList, int], None]


class TokenNetwork(NamedTuple):
    """What the name of a network that reads token ids means, and the function that adds its layers."""

    variant: str
    add_layers: Callable[[TokenLayers], None]


@dataclass(frozen=True, kw_only=True)
class Model:
    """A network for images of one shape and a number of classes, or for sequences of tokens. Counts: trainable parameters; multiply-adds
    forward, of one image or of one token in a sequence of full length."""

    name: str
    variant: str
    layers: tuple[Layer, ...]
    parameters: int
    macs: int
    first_macs: int
    """The part of `macs` in layers whose input has no gradient: see layers.first_macs."""


MODELS: Final[dict[str, Network | TokenNetwork]] = {
    "lenet": Network("Caffe's MNIST example, no ReLU after convolutions", lenet),
    "alexnet": Network("one weird trick, no groups, as torchvision", alexnet),
    "alexnet-caffe": Network("Caffe's bvlc_alexnet, two groups, LRN", alexnet_caffe),
    "resnet18": Network("as torchvision", resnet((2, 2, 2, 2), bottleneck=False)),
    "resnet34": Network("as torchvision", resnet((3, 4, 6, 3), bottleneck=False)),
    "resnet50": Network("v1.5, stride in the 3x3, as torchvision", resnet((3, 4, 6, 3), bottleneck=True)),
    "resnet50-v1": Network("v1, stride in the first 1x1, as the paper", resnet((3, 4, 6, 3), bottleneck=True, first_version=True)),
    "resnet101": Network("v1.5, stride in the 3x3, as torchvision", resnet((3, 4, 23, 3), bottleneck=True)),
    "resnet152": Network("v1.5, stride in the 3x3, as torchvision", resnet((3, 8, 36, 3), bottleneck=True)),
    "resnet56-cifar": Network("the paper's for 32x32, shortcuts by 1x1 convolutions (option B)", resnet_cifar(9)),
    "vgg16": Network("configuration D, without batch normalisation, as torchvision", vgg16),
    "googlenet": Network("Inception v1 as Caffe's bvlc_googlenet: LRN, 5x5, no auxiliary heads", googlenet),
    "inception-v1": Network(
        "Inception v1 as torchvision's googlenet: batch normalisation, 3x3 for the 5x5, no auxiliary heads", inception_v1
    ),
    "fcn5": Network("dlbench's FCN-5: hidden layers of 2048, 4096, 1024, ReLU", fully_connected_network(2048, 4096, 1024)),
    "fcn5-synthetic": Network("dlbench's FCN-5 for made-up data: three hidden layers of 2048, ReLU", fully_connected_network(*[2048] * 3)),
    "fcn8": Network("dlbench's FCN-8 for made-up data: six hidden layers of 2048, ReLU", fully_connected_network(*[2048] * 6)),
    "lstm": TokenNetwork("dlbench's: 2 layers of 256, embedding of 256, no dropout, each sequence by itself", lstm),
    "gpt2-small": TokenNetwork("GPT-2 of 12 blocks, 768 features, 12 heads, no dropout", gpt2(12, 768, 12)),
    "gpt2-tiny": TokenNetwork("GPT-2 of 4 blocks, 128 features, 4 heads, no dropout", gpt2(4, 128, 4)),
}


def build(name: str, channels: int, size: tuple[int, int], num_classes: int) -> Model:
    """Build the network `name` for images of `channels` x `size` (height, width). Raises ConfigError: unknown name, no channels or classes,
    image too small (with the smallest size that fits).
    """
    return build_network(name, image_network(name), channels, size, num_classes)


def build_network(name: str, network: Network, channels: int, size: tuple[int, int], num_classes: int) -> Model:
    """Build the network, which messages call `name`, as `build` does. Raises ConfigError."""
    if num_classes < 1 or channels < 1:
        raise ConfigError(f"model {name!r} for {channels} channels and {num_classes} classes: both must be at least 1")
    net = LayerList(channels, size)
    try:
        network.add_layers(net, num_classes)
    except ShapeTooSmall as error:
        smallest = _smallest(name, network)
        raise ConfigError(
            f"model {name!r} does not fit images of {size[0]}x{size[1]} ({error}): the smallest that fits is {smallest}x{smallest}; "
            f"give the dataset `size: {smallest}` or more, or choose another model"
        ) from error
    return _model(name, network.variant, with_initial_limits(net.layers), 1)


def build_for_tokens(name: str, vocabulary: int, length: int) -> Model:
    """Build the network `name` for sequences of `length` tokens out of so many. Raises ConfigError: unknown name, sequence too long."""
    network = _network(name)
    if not isinstance(network, TokenNetwork):
        raise ConfigError(f"model {name!r} is for images, not for token ids; valid: {', '.join(of_tokens())}")
    net = TokenLayers(vocabulary, length)
    try:
        network.add_layers(net)
    except ShapeTooSmall as error:
        raise ConfigError(f"model {name!r} does not fit sequences of {length} tokens ({error}): give the dataset shorter ones") from error
    return _model(name, network.variant, tuple(net.layers), length)


def _model(name: str, variant: str, layers: tuple[Layer, ...], length: int) -> Model:
    return Model(
        name=name,
        variant=variant,
        layers=layers,
        parameters=sum(layer["parameters"] for layer in layers),
        macs=sum(layer["macs"] for layer in layers) // length,
        first_macs=first_macs(layers) // length,
    )


def of_tokens() -> list[str]:
    """Return the names of the networks that read token ids."""
    return [name for name, network in MODELS.items() if isinstance(network, TokenNetwork)]


def reads_tokens(name: str) -> bool:
    """Return True if it is one of these; others are for images."""
    return isinstance(MODELS.get(name), TokenNetwork)


def smallest_size(name: str) -> int:
    """Return the side of the smallest square image for which every layer of `name` has an output of at least one pixel."""
    return _smallest(name, image_network(name))


@cache
def _smallest(name: str, network: Network) -> int:
    for side in range(1, LARGEST_SMALLEST):
        try:
            network.add_layers(LayerList(1, (side, side)), 1)
        except ShapeTooSmall:
            continue
        return side
    raise AssertionError(f"{name} fits no image below {LARGEST_SMALLEST}x{LARGEST_SMALLEST}")


@cache
def has_dropout(name: str) -> bool:
    """Return True if layers of `name` drop by chance; each framework draws its own numbers for that."""
    if reads_tokens(name):
        return False
    side = smallest_size(name)
    net = LayerList(1, (side, side))
    image_network(name).add_layers(net, 1)
    return any(layer["kind"] == "dropout" for layer in net.layers)


def image_network(name: str) -> Network:
    """Return the network for images that is called so. Raises ConfigError for an unknown name, and one that reads tokens."""
    network = _network(name)
    if not isinstance(network, Network):
        valid = ", ".join(other for other in MODELS if not reads_tokens(other))
        raise ConfigError(f"model {name!r} reads token ids, and these are images; valid: {valid}")
    return network


def _network(name: str) -> Network | TokenNetwork:
    if name not in MODELS:
        raise ConfigError(f"model {name!r} is not known; {choices(name, MODELS)}")
    return MODELS[name]
