"""Layers that Keras has otherwise, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers as kl
from keras import ops
from slipway_program.trainer import padding_of

Layer = Mapping[str, Any]


class Positions(kl.Layer):
    """A layer that adds a vector for each place in the sequence."""

    def __init__(self, layer: Layer) -> None:
        super().__init__(name=keras_name(layer))
        self._places = self.add_weight((layer["most"], layer["shape_out"][1]), "zeros")

    def call(self, x: Any) -> Any:
        return x + self._places[: x.shape[1]]

    def compute_output_shape(self, shape: Any) -> Any:
        """Return the shape, so that Keras does not try `call` on a length that JAX knows by name only."""
        return shape


def embedding(layer: Layer) -> keras.layers.Layer:
    """Return the embedding, which makes the logits too where a layer `tied` asks for that."""
    return kl.ReversibleEmbedding(layer["vocabulary"], layer["shape_out"][1], name=keras_name(layer))


def _attention(layer: Layer, x: Any) -> Any:
    """Compute attention in the shape [batch, tokens, heads, features of a head]."""
    features = layer["shape_out"][1]
    shape = (-1, layer["heads"], features // layer["heads"])
    queries, keys, values = (kl.Reshape(shape)(part) for part in ops.split(x, 3, -1))
    return kl.Reshape((-1, features))(ops.dot_product_attention(queries, keys, values, is_causal=True))


TOKEN_KINDS: dict[str, Callable[[Layer, Any], Any]] = {
    "positions": lambda layer, x: Positions(layer)(x),
    "layer_norm": lambda layer, x: kl.LayerNormalization(epsilon=layer["epsilon"], name=keras_name(layer))(x),
    "gelu": lambda _, x: ops.gelu(x, approximate=True),
    "attention": _attention,
    "lstm": lambda layer, x: kl.LSTM(layer["shape_out"][1], return_sequences=True, name=keras_name(layer))(x),
}


class Layouts:
    """The layouts of the weights of one network, by their canonical names."""

    def __init__(self, layers: Sequence[Mapping[str, Any]]) -> None:
        self._alike = {f"{layer['name']}.weight" for layer in layers if layer["kind"] in ("embedding", "positions")}

    def to_keras(self, name: str, array: np.ndarray) -> np.ndarray:
        if name in self._alike:
            return array
        return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T

    def to_canonical(self, name: str, array: np.ndarray) -> np.ndarray:
        if name in self._alike:
            return array
        return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T


def keras_name(layer: Layer) -> str:
    """Return what Keras calls it: on PyTorch a name may have no dot. No name in a list of layers has a dash."""
    name: str = layer["name"]
    return name.replace(".", "-")


def canonical_name(name: str) -> str:
    """Return the name that the list of layers has."""
    return name.replace("-", ".")


class Dice:
    """What dropout drops in a step. `seed` is set while the step is traced, so that it is an input of the compiled one."""

    seed: Any = None


class _Seeded(keras.random.SeedGenerator):
    """A generator of numbers by this seed alone: Keras' own generator counts in a variable, which a resumed run would have to carry."""

    def __init__(self, *seed: Any) -> None:
        self._seed = self._initial_seed = seed  # Keras on PyTorch asks whether the second is None

    def next(self, ordered: bool = True) -> Any:  # noqa: ARG002, FBT001, FBT002 - as Keras calls it
        return ops.stack([ops.cast(part, "uint32") for part in self._seed])


class Dropout(kl.Layer):
    """Dropout, in training only."""

    def __init__(self, ratio: float, number: int, dice: Dice) -> None:
        super().__init__()
        self._ratio, self._number, self._dice = ratio, number, dice

    def call(self, x: Any, training: bool = False) -> Any:  # noqa: FBT001, FBT002 - as Keras calls it
        return keras.random.dropout(x, self._ratio, seed=_Seeded(self._dice.seed, self._number)) if training else x


class BatchNormalization(kl.Layer):
    """Batch normalisation by the statistics of this rank's batch, as PyTorch does it; the running variance is that of a sample (n - 1),
    where Keras' own is that of the batch. Each rank has its own; the trainer takes those of rank 0.
    """

    def __init__(self, layer: Layer) -> None:
        super().__init__(name=keras_name(layer))
        self._epsilon, self._weight_of_new = layer["epsilon"], layer["momentum"]
        own = {"trainable": False, "aggregation": "only_first_replica"}  # without an aggregation a strategy refuses to change it
        shape = (layer["shape_out"][0],)
        self._scale, self._shift = self.add_weight(shape, "ones"), self.add_weight(shape, "zeros")
        self._mean, self._variance = self.add_weight(shape, "zeros", **own), self.add_weight(shape, "ones", **own)

    def call(self, x: Any, training: bool = False) -> Any:  # noqa: FBT001, FBT002 - as Keras calls it
        mean, variance = self._mean, self._variance
        if training:
            mean, variance = ops.moments(x, (0, 1, 2))
            count = ops.cast(ops.prod(ops.shape(x)[:3]), "float32")
            for running, found in ((self._mean, mean), (self._variance, variance * (count / ops.maximum(count - 1, 1)))):
                running.assign((1 - self._weight_of_new) * running + self._weight_of_new * ops.stop_gradient(found))
        return ops.batch_normalization(x, mean, variance, 3, self._shift, self._scale, self._epsilon)


def pool(layer: Layer, x: Any) -> Any:
    """Pool with padding that is written out: Keras' own is not symmetric."""
    padding = ((0, 0), *padding_of(layer, x.shape[1:3]), (0, 0))
    largest = layer["mode"] == "max"
    if any(map(any, padding)):
        x = ops.pad(x, padding, constant_values=float("-inf") if largest else 0.0)
    return (kl.MaxPooling2D if largest else kl.AveragePooling2D)(tuple(layer["kernel"]), tuple(layer["stride"]))(x)


def lrn(layer: Layer, x: Any) -> Any:
    """Normalise by the squares of the neighbours in the row of channels."""
    reach, channels = layer["size"] // 2, x.shape[3]
    squares = ops.pad(ops.square(x), ((0, 0), (0, 0), (0, 0), (reach, reach)))
    total = sum((squares[..., first : first + channels] for first in range(1, layer["size"])), squares[..., :channels])
    return x / (layer["k"] + layer["alpha"] / layer["size"] * total) ** layer["beta"]
