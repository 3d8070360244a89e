"""A network from a layer list, as a Keras model. Images and activations are [batch, height, width, channels]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import layers as kl

Layer = Mapping[str, Any]


def build(layers: Sequence[Layer]) -> keras.Model:
    """The model; its layers with weights are called as in the list."""
    channels, height, width = layers[0]["shape_out"]
    values = {layers[0]["name"]: keras.Input((height, width, channels))}
    for layer in layers[1:]:
        values[layer["name"]] = _KINDS[layer["kind"]](layer, *(values[name] for name in layer["inputs"]))
    return keras.Model(values[layers[0]["name"]], values[layers[-1]["name"]])


def _conv(layer: Layer, x: Any) -> Any:
    x = kl.ZeroPadding2D(tuple(layer["padding"]))(x) if any(layer["padding"]) else x
    features, stride = layer["shape_out"][0], tuple(layer["stride"])
    return kl.Conv2D(features, tuple(layer["kernel"]), stride, groups=layer["groups"], use_bias=layer["bias"], name=layer["name"])(x)


def _pool(layer: Layer, x: Any) -> Any:
    if any(layer["padding"]):
        raise ValueError(f"layer {layer['name']!r}: Keras pools without padding, or with one that is not symmetric")
    kind = kl.MaxPooling2D if layer["mode"] == "max" else kl.AveragePooling2D
    return kind(tuple(layer["kernel"]), tuple(layer["stride"]))(x)


def _flatten(_: Layer, x: Any) -> Any:
    """Channels first, as the weights behind it want them."""
    return kl.Flatten()(kl.Permute((3, 1, 2))(x) if len(x.shape) == 4 else x)


_KINDS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "pool": _pool,
    "flatten": _flatten,
    "linear": lambda layer, x: kl.Dense(layer["shape_out"][0], use_bias=layer["bias"], name=layer["name"])(x),
    "relu": lambda _, x: kl.ReLU()(x),
    "add": lambda _, first, second: kl.Add()([first, second]),
    "global_pool": lambda _, x: kl.GlobalAveragePooling2D(keepdims=True)(x),
}
