"""A network from a layer list, as functions of TensorFlow. Activations are [batch, height, width, channels]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from slipway_program.windows import padding_of

from .token_network import KINDS, linear

Layer = Mapping[str, Any]
Arrays = Mapping[str, Any]
Moments = dict[str, Any]
"""Running statistics as they shall be after the step, by name."""


def forward(layers: Sequence[Layer], state: Arrays, images: Any, *, training: bool, seed: Any = None) -> tuple[Any, Moments]:
    """Images [batch, height, width, channels], float32 -> ([batch, classes], the new running statistics of `bn` layers); or token ids
    [batch, tokens] -> [batch, tokens, vocabulary]. `seed`: a number that decides what dropout drops; None: nothing is dropped."""
    values = {layers[0]["name"]: images}
    running: Moments = {}
    for number, layer in enumerate(layers[1:]):
        name = layer["name"]
        whose = layer.get("embedding", name)
        own = {what: state[key] for what in _NAMES if (key := f"{whose}.{what}") in state}
        inputs = [values[read] for read in layer["inputs"]]
        if layer["kind"] == "bn" and training:
            values[name], found = _bn_in_training(layer, own, inputs[0])
            running |= {f"{name}.{what}": value for what, value in found.items()}
        elif layer["kind"] == "dropout" and seed is not None:
            values[name] = tf.nn.experimental.stateless_dropout(inputs[0], layer["ratio"], tf.stack([seed, number]))
        else:
            values[name] = _KINDS[layer["kind"]](layer, own, *inputs)
    return values[layers[-1]["name"]], running


def _conv(layer: Layer, own: Arrays, x: Any) -> Any:
    """Padding is written out: SAME is not symmetric where the stride is 2. Groups one by one: on CPUs TensorFlow has no gradient of several
    in one."""
    padding = [[0, 0], *([size, size] for size in layer["padding"]), [0, 0]]
    parts = zip(tf.split(x, layer["groups"], 3), tf.split(own["weight"], layer["groups"], 3), strict=True)
    found = [tf.nn.conv2d(part, weight, layer["stride"], padding) for part, weight in parts]
    x = found[0] if len(found) == 1 else tf.concat(found, 3)
    return x + own["bias"] if layer["bias"] else x


def _pool(layer: Layer, _: Arrays, x: Any) -> Any:
    padding = [[0, 0], *map(list, padding_of(layer, x.shape[1:3])), [0, 0]]
    if layer["mode"] == "max":
        return tf.nn.max_pool2d(x, layer["kernel"], layer["stride"], padding)
    return tf.nn.avg_pool2d(tf.pad(x, padding), layer["kernel"], layer["stride"], "VALID")


def _flatten(layer: Layer, _: Arrays, x: Any) -> Any:
    """Channels first, as the weights behind it want them."""
    return tf.reshape(tf.transpose(x, (0, 3, 1, 2)) if len(x.shape) == 4 else x, (-1, *layer["shape_out"]))


def _bn(layer: Layer, own: Arrays, x: Any) -> Any:
    return _normalised(layer, own, x, own["running_mean"], own["running_var"])


def _bn_in_training(layer: Layer, own: Arrays, x: Any) -> tuple[Any, Moments]:
    """By the statistics of this rank's batch, as PyTorch does it; the running variance is that of a sample (n - 1)."""
    mean, variance = tf.nn.moments(x, (0, 1, 2))
    count = x.shape[0] * x.shape[1] * x.shape[2]
    new = {"running_mean": mean, "running_var": variance * (count / max(count - 1, 1))}
    momentum = layer["momentum"]
    running = {what: (1 - momentum) * own[what] + momentum * tf.stop_gradient(value) for what, value in new.items()}
    return _normalised(layer, own, x, mean, variance), running


def _normalised(layer: Layer, own: Arrays, x: Any, mean: Any, variance: Any) -> Any:
    return tf.nn.batch_normalization(x, mean, variance, own["bias"], own["weight"], layer["epsilon"])


def _lrn(layer: Layer, _: Arrays, x: Any) -> Any:
    """TensorFlow's alpha is for each channel, and not divided by their number."""
    alpha = layer["alpha"] / layer["size"]
    return tf.nn.local_response_normalization(x, layer["size"] // 2, layer["k"], alpha, layer["beta"])


_NAMES = ("weight", "bias", "running_mean", "running_var", "weight_ih", "weight_hh")
_KINDS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "pool": _pool,
    "linear": linear,
    "flatten": _flatten,
    "bn": _bn,
    "global_pool": lambda _, __, x: tf.reduce_mean(x, (1, 2), keepdims=True),
    "lrn": _lrn,
    "concat": lambda _, __, *inputs: tf.concat(inputs, 3),
    "dropout": lambda _, __, x: x,
    "relu": lambda _, __, x: tf.nn.relu(x),
    "add": lambda _, __, first, second: first + second,
    **KINDS,
}
