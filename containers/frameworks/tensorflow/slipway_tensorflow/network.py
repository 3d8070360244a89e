"""A network from a layer list, as functions of TensorFlow. Activations are [batch, height, width, channels]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from slipway_program.parameters import Layer
from slipway_program.trainer import padding_of

Arrays = Mapping[str, tf.Tensor]


def linear(layer: Layer, own: Arrays, x: Any) -> Any:
    """Multiply the features of each sample, or of each token."""
    x = _times(x, own["weight"])
    return x + own["bias"] if layer["bias"] else x


def _times(x: Any, weight: Any) -> Any:
    """Multiply [..., in] by (out, in) as one product of matrices: a batch of them would make a gradient of the weights for each sample."""
    flat = tf.matmul(tf.reshape(x, (-1, x.shape[-1])), weight, transpose_b=True)
    return tf.reshape(flat, (*x.shape[:-1], weight.shape[0]))


def _layer_norm(layer: Layer, own: Arrays, x: Any) -> Any:
    mean, variance = tf.nn.moments(x, (2,), keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, own["bias"], own["weight"], layer["epsilon"])


def _attention(layer: Layer, _: Arrays, x: Any) -> Any:
    """Compute attention in the shape [batch, heads, tokens, features of a head]."""
    batch, tokens, features = x.shape[0], x.shape[1], x.shape[2] // 3
    shape = batch, tokens, layer["heads"], features // layer["heads"]
    queries, keys, values = (tf.transpose(tf.reshape(part, shape), (0, 2, 1, 3)) for part in tf.split(x, 3, 2))
    scores = tf.matmul(queries, keys, transpose_b=True) * (features // layer["heads"]) ** -0.5
    before = tf.linalg.band_part(tf.ones((tokens, tokens), tf.bool), -1, 0)
    attended = tf.matmul(tf.nn.softmax(tf.where(before, scores, -float("inf"))), values)
    return tf.reshape(tf.transpose(attended, (0, 2, 1, 3)), (batch, tokens, features))


def _lstm(_: Layer, own: Arrays, x: Any) -> Any:
    zeros = tf.zeros((x.shape[0], own["weight_hh"].shape[1]))

    def step(state: tuple[Any, Any], given: Any) -> tuple[Any, Any]:
        hidden, cell = state
        enter, forget, new, leave = tf.split(given + tf.matmul(hidden, own["weight_hh"], transpose_b=True), 4, 1)
        cell = tf.sigmoid(forget) * cell + tf.sigmoid(enter) * tf.tanh(new)
        return tf.sigmoid(leave) * tf.tanh(cell), cell

    given = _times(x, own["weight_ih"]) + own["bias"]
    return tf.transpose(tf.scan(step, tf.transpose(given, (1, 0, 2)), (zeros, zeros))[0], (1, 0, 2))


TOKEN_KINDS: dict[str, Callable[[Layer, Arrays, Any], Any]] = {
    "embedding": lambda _, own, tokens: tf.gather(own["weight"], tokens),
    "positions": lambda _, own, x: x + own["weight"][: x.shape[1]],
    "layer_norm": _layer_norm,
    "gelu": lambda _, __, x: tf.nn.gelu(x, approximate=True),
    "attention": _attention,
    "lstm": _lstm,
    "tied": lambda _, own, x: _times(x, own["weight"]),
}


def to_tensorflow(array: np.ndarray) -> np.ndarray:
    """Convert from the canonical layout."""
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array


def to_canonical(array: np.ndarray) -> np.ndarray:
    """Convert to the canonical layout."""
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array


Moments = dict[str, tf.Tensor]
"""Running statistics as they shall be after the step, by name."""


def forward(layers: Sequence[Layer], state: Arrays, images: Any, *, training: bool, seed: Any = None) -> tuple[Any, Moments]:
    """Return ([batch, classes], the new running statistics of `bn` layers) for float32 images [batch, height, width, channels]; or [batch,
    tokens, vocabulary] for token ids [batch, tokens]. `seed`: a number that decides what dropout drops; None: nothing is dropped.
    """
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
    """Convolve with padding written out: SAME is not symmetric where the stride is 2. Groups go one by one: on CPUs TensorFlow has no
    gradient of several in one.
    """
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
    """Flatten channels first, as the weights behind it want them."""
    return tf.reshape(tf.transpose(x, (0, 3, 1, 2)) if len(x.shape) == 4 else x, (-1, *layer["shape_out"]))


def _bn(layer: Layer, own: Arrays, x: Any) -> Any:
    return _normalised(layer, own, x, own["running_mean"], own["running_var"])


def _bn_in_training(layer: Layer, own: Arrays, x: Any) -> tuple[Any, Moments]:
    """Normalise by the statistics of this rank's batch, as PyTorch does it; the running variance is that of a sample (n - 1)."""
    mean, variance = tf.nn.moments(x, (0, 1, 2))
    count = x.shape[0] * x.shape[1] * x.shape[2]
    new = {"running_mean": mean, "running_var": variance * (count / max(count - 1, 1))}
    momentum = layer["momentum"]
    running = {what: (1 - momentum) * own[what] + momentum * tf.stop_gradient(value) for what, value in new.items()}
    return _normalised(layer, own, x, mean, variance), running


def _normalised(layer: Layer, own: Arrays, x: Any, mean: Any, variance: Any) -> Any:
    return tf.nn.batch_normalization(x, mean, variance, own["bias"], own["weight"], layer["epsilon"])


def _lrn(layer: Layer, _: Arrays, x: Any) -> Any:
    """Scale alpha: TensorFlow's is for each channel, and not divided by their number."""
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
    **TOKEN_KINDS,
}
