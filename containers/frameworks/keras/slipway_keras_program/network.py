"""A network from a layer list, as a Keras model. Images and activations are [batch, height, width, channels]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import layers as kl

from .layers import BatchNormalization, Dice, Dropout, canonical_name, keras_name, lrn, pool

Layer = Mapping[str, Any]


def build(layers: Sequence[Layer], dice: Dice) -> keras.Model:
    """The model; its layers with weights are called as in the list. `dice`: what its dropout drops."""
    channels, height, width = layers[0]["shape_out"]
    values = {layers[0]["name"]: keras.Input((height, width, channels))}
    for number, layer in enumerate(layers[1:]):
        inputs = [values[name] for name in layer["inputs"]]
        dropout = layer["kind"] == "dropout"
        values[layer["name"]] = Dropout(layer["ratio"], number, dice)(inputs[0]) if dropout else _KINDS[layer["kind"]](layer, *inputs)
    return keras.Model(values[layers[0]["name"]], values[layers[-1]["name"]])


def named_variables(model: keras.Model) -> dict[str, Any]:
    """What is trained, by its canonical name, in the order of the model."""
    return {
        f"{canonical_name(layer.name)}.{name}": variable
        for layer in model.layers
        for name, variable in zip(("weight", "bias"), layer.trainable_variables, strict=False)
    }


def named_running(model: keras.Model) -> dict[str, Any]:
    """Running statistics, likewise."""
    return {
        f"{canonical_name(layer.name)}.{name}": variable
        for layer in model.layers
        for name, variable in zip(("running_mean", "running_var"), layer.non_trainable_variables, strict=False)
    }


def _conv(layer: Layer, x: Any) -> Any:
    x = kl.ZeroPadding2D(tuple(layer["padding"]))(x) if any(layer["padding"]) else x
    features, stride = layer["shape_out"][0], tuple(layer["stride"])
    return kl.Conv2D(features, tuple(layer["kernel"]), stride, groups=layer["groups"], use_bias=layer["bias"], name=keras_name(layer))(x)


def _flatten(_: Layer, x: Any) -> Any:
    """Channels first, as the weights behind it want them."""
    return kl.Flatten()(kl.Permute((3, 1, 2))(x) if len(x.shape) == 4 else x)


_KINDS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "pool": pool,
    "lrn": lrn,
    "bn": lambda layer, x: BatchNormalization(layer)(x),
    "concat": lambda _, *inputs: kl.Concatenate()(inputs),
    "flatten": _flatten,
    "linear": lambda layer, x: kl.Dense(layer["shape_out"][0], use_bias=layer["bias"], name=keras_name(layer))(x),
    "relu": lambda _, x: kl.ReLU()(x),
    "add": lambda _, first, second: kl.Add()([first, second]),
    "global_pool": lambda _, x: kl.GlobalAveragePooling2D(keepdims=True)(x),
}
