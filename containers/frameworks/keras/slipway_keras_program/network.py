"""A network from a layer list, as a Keras model. Images and activations are [batch, height, width, channels], token ids [batch, tokens]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import layers as kl
from keras import ops

from .layers import TOKEN_KINDS, BatchNormalization, Dice, Dropout, canonical_name, embedding, keras_name, lrn, pool

Layer = Mapping[str, Any]


def build(layers: Sequence[Layer], dice: Dice) -> keras.Model:
    """Build the model; its layers with weights are called as in the list. `dice`: what its dropout drops."""
    values = {layers[0]["name"]: _input(layers[0]["shape_out"])}
    embeddings = {layer["name"]: embedding(layer) for layer in layers if layer["kind"] == "embedding"}
    for number, layer in enumerate(layers[1:]):
        inputs = [values[name] for name in layer["inputs"]]
        if layer["kind"] == "dropout":
            values[layer["name"]] = Dropout(layer["ratio"], number, dice)(inputs[0])
        elif layer["kind"] in ("embedding", "tied"):
            reverse = layer["kind"] == "tied"
            values[layer["name"]] = embeddings[layer["embedding"] if reverse else layer["name"]](inputs[0], reverse=reverse)
        else:
            values[layer["name"]] = _KINDS[layer["kind"]](layer, *inputs)
    return keras.Model(values[layers[0]["name"]], values[layers[-1]["name"]])


def _input(shape: Sequence[int]) -> Any:
    """Make the input; sequences may have any length up to the longest."""
    if len(shape) == 1:
        return keras.Input((None,), dtype="int32")
    channels, height, width = shape
    return keras.Input((height, width, channels))


def named_variables(model: keras.Model) -> dict[str, Any]:
    """Return what is trained, by its canonical name, in the order of the model."""
    return {
        f"{canonical_name(layer.name)}.{name}": variable
        for layer in model.layers
        for name, variable in zip(_LSTM if isinstance(layer, kl.LSTM) else _NAMES, layer.trainable_variables, strict=False)
    }


def named_running(model: keras.Model) -> dict[str, Any]:
    """Return the running statistics, by canonical name."""
    return {
        f"{canonical_name(layer.name)}.{name}": variable
        for layer in model.layers
        if isinstance(layer, BatchNormalization)  # an LSTM has the seed of a dropout that it does not do
        for name, variable in zip(("running_mean", "running_var"), layer.non_trainable_variables, strict=True)
    }


def mean_loss(labels: Any, outputs: Any) -> Any:
    """Return the mean loss of all samples alike; that of a sequence is the mean over its tokens."""
    if len(labels.shape) == 1:
        return ops.mean(keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True))
    losses = keras.losses.sparse_categorical_crossentropy(ops.maximum(labels, 0), outputs, from_logits=True)
    told = ops.cast(labels >= 0, "float32")
    return ops.mean(ops.sum(losses * told, 1) / ops.sum(told, 1))


def _conv(layer: Layer, x: Any) -> Any:
    x = kl.ZeroPadding2D(tuple(layer["padding"]))(x) if any(layer["padding"]) else x
    features, stride = layer["shape_out"][0], tuple(layer["stride"])
    return kl.Conv2D(features, tuple(layer["kernel"]), stride, groups=layer["groups"], use_bias=layer["bias"], name=keras_name(layer))(x)


def _flatten(_: Layer, x: Any) -> Any:
    """Flatten channels first, as the weights behind it want them."""
    return kl.Flatten()(kl.Permute((3, 1, 2))(x) if len(x.shape) == 4 else x)


_NAMES = ("weight", "bias")
_LSTM = ("weight_ih", "weight_hh", "bias")
"""In the order in which Keras has them."""
_KINDS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "pool": pool,
    "lrn": lrn,
    "bn": lambda layer, x: BatchNormalization(layer)(x),
    "concat": lambda _, *inputs: kl.Concatenate()(inputs),
    "flatten": _flatten,
    "linear": lambda layer, x: kl.Dense(layer["shape_out"][-1], use_bias=layer["bias"], name=keras_name(layer))(x),
    "relu": lambda _, x: kl.ReLU()(x),
    "add": lambda _, first, second: kl.Add()([first, second]),
    "global_pool": lambda _, x: kl.GlobalAveragePooling2D(keepdims=True)(x),
    **TOKEN_KINDS,
}
