"""The kinds of layers that networks of token ids have: containers/models/tokens.py says what each is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import layers as kl
from keras import ops

from .layers import keras_name

Layer = Mapping[str, Any]


class Positions(kl.Layer):
    """Adds a vector for each place in the sequence."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(name=keras_name(layer))
        self._places = self.add_weight((layer["most"], layer["shape_out"][1]), "zeros")

    def call(self, x: Any) -> Any:
        return x + self._places[: x.shape[1]]

    def compute_output_shape(self, shape: Any) -> Any:
        """Told, so that Keras does not try `call` on a length that JAX knows by name only."""
        return shape


def embedding(layer: Layer) -> keras.layers.Layer:
    """Which makes the logits too, where a layer `tied` asks for that."""
    return kl.ReversibleEmbedding(layer["vocabulary"], layer["shape_out"][1], name=keras_name(layer))


def _attention(layer: Layer, x: Any) -> Any:
    """In the shape [batch, tokens, heads, features of a head]."""
    features = layer["shape_out"][1]
    shape = (-1, layer["heads"], features // layer["heads"])
    queries, keys, values = (kl.Reshape(shape)(part) for part in ops.split(x, 3, -1))
    return kl.Reshape((-1, features))(ops.dot_product_attention(queries, keys, values, is_causal=True))


KINDS: dict[str, Callable[[Layer, Any], Any]] = {
    "positions": lambda layer, x: Positions(layer)(x),
    "layer_norm": lambda layer, x: kl.LayerNormalization(epsilon=layer["epsilon"], name=keras_name(layer))(x),
    "gelu": lambda _, x: ops.gelu(x, approximate=True),
    "attention": _attention,
    "lstm": lambda layer, x: kl.LSTM(layer["shape_out"][1], return_sequences=True, name=keras_name(layer))(x),
}
