"""The kinds of layers that networks of token ids have: containers/models/tokens.py says what each is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

Layer = Mapping[str, Any]
Arrays = Mapping[str, Any]


def linear(layer: Layer, own: Arrays, x: Any) -> Any:
    """Of the features of each sample, or each token."""
    x = _times(x, own["weight"])
    return x + own["bias"] if layer["bias"] else x


def _times(x: Any, weight: Any) -> Any:
    """[..., in] by (out, in). As one product of matrices: a batch of them would make a gradient of the weights for each sample."""
    flat = tf.matmul(tf.reshape(x, (-1, x.shape[-1])), weight, transpose_b=True)
    return tf.reshape(flat, (*x.shape[:-1], weight.shape[0]))


def _layer_norm(layer: Layer, own: Arrays, x: Any) -> Any:
    mean, variance = tf.nn.moments(x, (2,), keepdims=True)
    return tf.nn.batch_normalization(x, mean, variance, own["bias"], own["weight"], layer["epsilon"])


def _attention(layer: Layer, _: Arrays, x: Any) -> Any:
    """In the shape [batch, heads, tokens, features of a head]."""
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


KINDS: dict[str, Callable[[Layer, Arrays, Any], Any]] = {
    "embedding": lambda _, own, tokens: tf.gather(own["weight"], tokens),
    "positions": lambda _, own, x: x + own["weight"][: x.shape[1]],
    "layer_norm": _layer_norm,
    "gelu": lambda _, __, x: tf.nn.gelu(x, approximate=True),
    "attention": _attention,
    "lstm": _lstm,
    "tied": lambda _, own, x: _times(x, own["weight"]),
}
