"""A network from a layer list, as a Keras model. Images and activations are [batch, height, width, channels], token ids [batch, tokens]."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import layers as kl
from keras import ops
from slipway_program.parameters import Arrays, Cell, Layer
from slipway_program.trainer import padding_of


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


class Layouts:
    """The layouts of the weights of one network, by their canonical names."""

    def __init__(self, layers: Sequence[Layer]) -> None:
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


class DropoutSeed:
    """The seed of dropout in a step. `seed` is set while the step is traced, so that it is an input of the compiled one."""

    seed: Any = None


class _Seeded(keras.random.SeedGenerator):
    """A generator of numbers by this seed alone: Keras' own generator counts in a variable, which a resumed run would have to carry."""

    def __init__(self, *seed: Any) -> None:
        self._seed = self._initial_seed = seed  # Keras on PyTorch asks whether the second is None

    def next(self, ordered: bool = True) -> Any:  # noqa: ARG002, FBT001, FBT002 - as Keras calls it
        return ops.stack([ops.cast(part, "uint32") for part in self._seed])


class Dropout(kl.Layer):
    """Dropout, in training only."""

    def __init__(self, ratio: float, number: int, seed: DropoutSeed) -> None:
        super().__init__()
        self._ratio, self._number, self._seed = ratio, number, seed

    def call(self, x: Any, training: bool = False) -> Any:  # noqa: FBT001, FBT002 - as Keras calls it
        return keras.random.dropout(x, self._ratio, seed=_Seeded(self._seed.seed, self._number)) if training else x


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


def build(layers: Sequence[Layer], seed: DropoutSeed) -> keras.Model:
    """Build the model; its layers with weights are called as in the list. `seed`: that of its dropout."""
    values = {layers[0]["name"]: _input(layers[0]["shape_out"])}
    embeddings = {layer["name"]: embedding(layer) for layer in layers if layer["kind"] == "embedding"}
    for number, layer in enumerate(layers[1:]):
        inputs = [values[name] for name in layer["inputs"]]
        if layer["kind"] == "dropout":
            values[layer["name"]] = Dropout(layer["ratio"], number, seed)(inputs[0])
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


def named_variables(model: keras.Model) -> dict[str, keras.Variable]:
    """Return what is trained, by its canonical name, in the order of the model."""
    return {
        f"{canonical_name(layer.name)}.{name}": variable
        for layer in model.layers
        for name, variable in zip(_LSTM if isinstance(layer, kl.LSTM) else _NAMES, layer.trainable_variables, strict=False)
    }


def named_running(model: keras.Model) -> dict[str, keras.Variable]:
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
"""The weights in the order of Keras."""
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
    "positions": lambda layer, x: Positions(layer)(x),
    "layer_norm": lambda layer, x: kl.LayerNormalization(epsilon=layer["epsilon"], name=keras_name(layer))(x),
    "gelu": lambda _, x: ops.gelu(x, approximate=True),
    "attention": _attention,
    "lstm": lambda layer, x: kl.LSTM(layer["shape_out"][1], return_sequences=True, name=keras_name(layer))(x),
}


class KerasModel:
    """The model and the optimizer of a rank, whatever the backend."""

    framework = "keras"
    version = keras.__version__

    def _make(self, cell: Cell) -> None:
        constants: Mapping[str, float] = cell["optimizer"]
        self._rate, self._decay = constants["learning_rate"], constants["weight_decay"]
        self._dropout_seed, self._layouts = DropoutSeed(), Layouts(cell["model_layers"])
        self._model = build(cell["model_layers"], self._dropout_seed)
        self._optimizer = keras.optimizers.SGD(self._rate, momentum=constants["momentum"])
        self._optimizer.build(self._model.trainable_variables)
        self._variables, self._running = named_variables(self._model), named_running(self._model)

    @property
    def _all(self) -> dict[str, keras.Variable]:
        return {**self._variables, **self._running}

    def _momentums(self) -> dict[str, keras.Variable]:
        return dict(zip(self._variables, self._optimizer.momentums, strict=True))

    def _as_others_keep(self, momentums: Mapping[str, np.ndarray]) -> Arrays:
        """Convert the momentum: Keras keeps v = momentum v - rate gradient, others v = momentum v + gradient. In 64 bits, so that nothing
        is rounded.
        """
        return {name: self._layouts.to_canonical(name, array.astype(np.float64)) / -self._rate for name, array in momentums.items()}

    def _as_keras_keeps(self, name: str, momentum: np.ndarray) -> np.ndarray:
        return (-self._rate * self._layouts.to_keras(name, momentum)).astype(np.float32)
