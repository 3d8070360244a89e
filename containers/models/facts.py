"""Count the facts of a network for the table of model facts, with what others have published of it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Final

from containers.models import MODELS, Model, Network, build_for_tokens, build_network, image_network, image_networks, memory, reads_tokens
from containers.models.layers import Layer


@dataclass(frozen=True, kw_only=True)
class Published:
    """Figures of a publication; None where it has none. `macs`: multiply-adds forward of one image."""

    source: str
    parameters: float
    macs: float
    conv: int | None = None
    conv_depth: int | None = None
    linear: int | None = None


_SZE: Final = "Sze et al. 2017, table II"
_TORCHVISION: Final = "torchvision's documentation of the weights (GFLOPS: multiply-adds)"
_PAPER: Final = "He et al. 2015, table 1 (FLOPs: multiply-adds)"

PUBLISHED: Final = {
    "alexnet": Published(source=_TORCHVISION, parameters=61_100_840, macs=0.71e9),
    "alexnet-caffe": Published(source=_SZE, parameters=61e6, macs=724e6, conv=5, conv_depth=5, linear=3),
    "vgg16": Published(source=_SZE, parameters=138e6, macs=15.5e9, conv=13, conv_depth=13, linear=3),
    "googlenet": Published(source=_SZE, parameters=7e6, macs=1.43e9, conv=57, conv_depth=21, linear=1),
    "inception-v1": Published(source=_TORCHVISION, parameters=6_624_904, macs=1.50e9),
    "resnet18": Published(source=_TORCHVISION, parameters=11_689_512, macs=1.81e9),
    "resnet34": Published(source=_TORCHVISION, parameters=21_797_672, macs=3.66e9),
    "resnet50": Published(source=_TORCHVISION, parameters=25_557_032, macs=4.09e9),
    "resnet50-v1": Published(source=_SZE, parameters=25.5e6, macs=3.9e9, conv=53, conv_depth=49, linear=1),
    "resnet101": Published(source=_TORCHVISION, parameters=44_549_160, macs=7.8e9),
    "resnet152": Published(source=_TORCHVISION, parameters=60_192_808, macs=11.51e9),
    "resnet152-v1": Published(source=_PAPER, parameters=60.2e6, macs=11.3e9),
}

COUNTED_ONLY: Final = {
    "alexnet-caffe-ungrouped": Network(
        "as alexnet-caffe without groups; counted, not trained here", partial(image_networks.alexnet_caffe, groups=1)
    ),
    "resnet152-v1": Network(
        "v1, stride in the first 1x1, as the paper; counted, not trained here",
        image_networks.resnet((3, 8, 36, 3), bottleneck=True, first_version=True),
    ),
}
"""Networks of publications that no framework of Slipway trains."""
NETWORKS: Final = (*MODELS, *COUNTED_ONLY)

_IMAGENET: Final = ((3, 224, 224), 1000)
_INPUTS: Final = {
    **dict.fromkeys(("lenet", "fcn5", "fcn5-synthetic", "fcn8"), ((1, 28, 28), 10)),
    **dict.fromkeys(("alexnet-caffe", "alexnet-caffe-ungrouped"), ((3, 227, 227), 1000)),
    "resnet56-cifar": ((3, 32, 32), 10),
}
_SEQUENCES: Final = {"gpt2-small": (50257, 1024), "gpt2-tiny": (65, 64), "lstm": (10_000, 32)}
"""Vocabulary and length."""


def usual(name: str, image: tuple[int, int, int] | None = None) -> Model:
    """Build the network for the input that it is published for, or for another `image` of (channels, height, width). Raises ConfigError:
    unknown name, an image that is too small."""
    if reads_tokens(name):
        return build_for_tokens(name, *_SEQUENCES[name])
    shape, classes = _INPUTS.get(name, _IMAGENET)
    channels, *size = image or shape
    return build_network(name, COUNTED_ONLY.get(name) or image_network(name), channels, (size[0], size[1]), classes)


def count(layers: Sequence[Layer], kind: str) -> int:
    """Return how many layers are of this kind."""
    return sum(layer["kind"] == kind for layer in layers)


def depth(layers: Sequence[Layer], kind: str = "conv") -> int:
    """Return the most layers of this kind that lie one behind the other between input and output: what lies beside them, as the other
    branches of a module or the convolution of a shortcut, is not in the depth."""
    most: dict[str, int] = {}
    for layer in layers:
        most[layer["name"]] = (layer["kind"] == kind) + max((most[name] for name in layer["inputs"]), default=0)
    return most[layers[-1]["name"]]


FLOP_PER_MAC: Final = 2
VIEWS: Final = frozenset({"input", "flatten"})
"""The kinds of layers that move no bytes."""


@dataclass(frozen=True, kw_only=True)
class LayerCost:
    """What a layer costs in a step, by arithmetic. FLOP are those of its multiply-adds. Bytes are what each pass reads and writes once:
    activations or their gradients, what the backward reads of the forward, and parameters or their gradients."""

    forward_flop: int
    backward_data_flop: int
    backward_weights_flop: int
    forward_bytes: int
    backward_bytes: int

    @property
    def backward_flop(self) -> int:
        return self.backward_data_flop + self.backward_weights_flop


def layer_costs(
    layers: Sequence[Layer], batch_size: int, *, mode: str = "train", precision: str = "fp32", input_gradient: bool = False
) -> dict[str, LayerCost]:
    """Return by name what each layer costs in a step of `batch_size` samples, of numbers with this precision. A layer without parameters
    before it computes no gradient of its input, unless `input_gradient` asks for it."""
    sizes = {layer["name"]: prod(layer["shape_out"]) for layer in layers}
    after_parameters: set[str] = set()
    found = {}
    for layer in layers:
        after = any(name in after_parameters for name in layer["inputs"])
        if after or layer["parameters"]:
            after_parameters.add(layer["name"])
        flop = FLOP_PER_MAC * batch_size * layer["macs"]
        weights_flop = flop if layer["kind"] != "attention" else 0  # both factors of its products are data
        data_flop = 2 * flop - weights_flop if after or input_gradient else 0
        read, written = batch_size * sum(sizes[name] for name in layer["inputs"]), batch_size * sizes[layer["name"]]
        parameters = min(layer["parameters"], written) if layer["kind"] in ("embedding", "positions") else layer["parameters"]
        of_weights = read + written + parameters if layer["parameters"] else 0
        of_data = read + written + (parameters or read) if after or input_gradient else 0
        width = 0 if layer["kind"] in VIEWS else memory.ACTIVATION_BYTES[precision]
        is_trained = mode == "train"
        found[layer["name"]] = LayerCost(
            forward_flop=flop,
            backward_data_flop=data_flop * is_trained,
            backward_weights_flop=weights_flop * is_trained,
            forward_bytes=width * (read + written + parameters),
            backward_bytes=width * (of_weights + of_data) * is_trained,
        )
    return found
