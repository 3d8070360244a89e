"""A network from a layer list, as a graph of DyNet, which is built anew in each step. Activations are (height, width, channels)."""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

import dynet
import numpy as np

Layer = Mapping[str, Any]
Tensors = Mapping[str, Any]


def to_dynet(array: np.ndarray) -> np.ndarray:
    """From the canonical layout: convolutions have (height, width, in, out), the others are as they are."""
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array


def to_canonical(array: np.ndarray) -> np.ndarray:
    """And back."""
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array


def check(layers: Sequence[Layer]) -> None:
    """Raise ValueError for what its convolutions and pools cannot do."""
    for layer in layers:
        if layer["kind"] not in _KINDS or layer.get("mode") == "avg" or layer.get("groups", 1) > 1 or any(layer.get("padding", ())):
            raise ValueError("layer %r is none that DyNet has: %s" % (layer["name"], layer))


def forward(layers: Sequence[Layer], tensors: Tensors, images: np.ndarray) -> Any:
    """Images [batch, channels, height, width], float32 -> an expression of `batch` vectors of classes."""
    values = {layers[0]["name"]: dynet.inputTensor(images.transpose(2, 3, 1, 0), batched=True)}
    for layer in layers[1:]:
        own = [tensors[name] for what in ("weight", "bias") if (name := f"{layer['name']}.{what}") in tensors]
        values[layer["name"]] = _KINDS[layer["kind"]](layer, own, *(values[read] for read in layer["inputs"]))
    return values[layers[-1]["name"]]


def _conv(layer: Layer, own: Sequence[Any], x: Any) -> Any:
    convolution = dynet.conv2d_bias if layer["bias"] else dynet.conv2d
    return convolution(x, *own, layer["stride"], is_valid=True)


def _linear(_: Layer, own: Sequence[Any], x: Any) -> Any:
    weight, bias = own
    return dynet.affine_transform([bias, weight, x])


def _flatten(layer: Layer, _: Sequence[Any], x: Any) -> Any:
    """DyNet counts the first dimension fastest: (width, height, channels) is channels, rows, columns in memory."""
    return dynet.reshape(dynet.transpose(x, [1, 0, 2]), tuple(layer["shape_out"]))


_KINDS: dict[str, Callable[..., Any]] = {
    "input": lambda *_: None,
    "conv": _conv,
    "pool": lambda layer, _, x: dynet.maxpooling2d(x, layer["kernel"], layer["stride"], is_valid=True),
    "linear": _linear,
    "flatten": _flatten,
    "relu": lambda _, __, x: dynet.rectify(x),
    "add": lambda _, __, first, second: first + second,
}
