"""A network from a layer list, as a Link of Chainer. Parameters keep their canonical names and shapes; activations are in NCHW."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any, Callable, Mapping, Sequence

import chainer
import numpy as np
from chainer import functions
from slipway_program.parameters import RUNNING, Layer

Values = Mapping[str, "chainer.Variable"]


def _layer_norm(layer: Layer, own: Values, x: Any) -> Any:
    flat = functions.reshape(x, (-1, x.shape[2]))
    return functions.reshape(functions.layer_normalization(flat, own["weight"], own["bias"], layer["epsilon"]), x.shape)


def _attention(layer: Layer, _: Values, x: Any) -> Any:
    """Compute attention in the shape [batch, heads, tokens, features of a head]."""
    batch, tokens, features = x.shape[0], x.shape[1], x.shape[2] // 3
    shape = (batch, tokens, layer["heads"], features // layer["heads"])
    parts = functions.split_axis(x, 3, 2)
    queries, keys, values = (functions.transpose(functions.reshape(part, shape), (0, 2, 1, 3)) for part in parts)
    scores = functions.matmul(queries, keys, transb=True) * (features // layer["heads"]) ** -0.5
    after = np.triu(np.full((tokens, tokens), -np.inf, np.float32), 1)
    attended = functions.matmul(functions.softmax(scores + np.broadcast_to(after, scores.shape), axis=3), values)
    return functions.reshape(functions.transpose(attended, (0, 2, 1, 3)), (batch, tokens, features))


def _lstm(layer: Layer, own: Values, x: Any) -> Any:
    """Order the gates of a unit as Chainer's function wants them, one beside the other: cell, input, forget, output."""
    units = layer["shape_out"][1]
    order = np.arange(4 * units).reshape(4, units)[[2, 0, 1, 3]].T.ravel().astype(np.int32)
    of_input, of_hidden, bias = (functions.permutate(own[name], order) for name in ("weight_ih", "weight_hh", "bias"))
    cell = hidden = np.zeros((len(x), units), np.float32)
    outputs = []
    for given in functions.separate(functions.linear(x, of_input, bias, n_batch_axes=2), axis=1):
        cell, hidden = functions.lstm(cell, given + functions.linear(hidden, of_hidden))
        outputs.append(hidden)
    return functions.stack(outputs, axis=1)


TOKEN_KINDS: dict[str, Callable[..., Any]] = {
    "embedding": lambda _, own, tokens: functions.embed_id(tokens, own["weight"]),
    "positions": lambda _, own, x: x + functions.broadcast_to(own["weight"][: x.shape[1]], x.shape),
    "layer_norm": _layer_norm,
    "gelu": lambda _, __, x: 0.5 * x * (1 + functions.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))),
    "attention": _attention,
    "lstm": _lstm,
    "tied": lambda _, own, x: functions.linear(x, own["weight"], n_batch_axes=2),
}


class Network(chainer.Link):
    """The layers in their order. `parameters` and `running` (statistics of batch normalisation) by name."""

    def __init__(self, layers: Sequence[Layer], arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self._layers = layers
        self.running = {name: array.copy() for name, array in arrays.items() if name.endswith(RUNNING)}
        self.parameters = {name: chainer.Parameter(array.copy()) for name, array in arrays.items() if name not in self.running}
        with self.init_scope():
            for name, parameter in self.parameters.items():
                setattr(self, name, parameter)

    def forward(self, images: np.ndarray) -> Any:
        """Return [batch, classes] of float32 images [batch, channels, height, width]; or [batch, tokens, vocabulary] of token ids."""
        values, known = {self._layers[0]["name"]: chainer.Variable(images)}, {**self.running, **self.parameters}
        for layer in self._layers[1:]:
            whose = layer.get("embedding", layer["name"])
            own = {what: known[f"{whose}.{what}"] for what in _NAMES if f"{whose}.{what}" in known}
            values[layer["name"]] = _KINDS[layer["kind"]](layer, own, *(values[read] for read in layer["inputs"]))
        return values[self._layers[-1]["name"]]


def _conv(layer: Layer, own: Values, x: Any) -> Any:
    return functions.convolution_2d(x, own["weight"], own.get("bias"), layer["stride"], layer["padding"], groups=layer["groups"])


def _pool(layer: Layer, _: Values, x: Any) -> Any:
    if layer["mode"] == "max":
        return functions.max_pooling_2d(x, layer["kernel"], layer["stride"], layer["padding"], cover_all=layer.get("ceil", False))
    return functions.average_pooling_2d(x, layer["kernel"], layer["stride"], layer["padding"])


def _bn(layer: Layer, own: Values, x: Any) -> Any:
    """Normalise, in training by this rank's batch, and move the running ones: their variance is that of a sample (n - 1)."""
    scale, running = (own["weight"], own["bias"]), (own["running_mean"], own["running_var"])
    if not chainer.config.train:
        return functions.fixed_batch_normalization(x, *scale, *running, eps=layer["epsilon"])
    mean, var = running
    return functions.batch_normalization(x, *scale, eps=layer["epsilon"], running_mean=mean, running_var=var, decay=1 - layer["momentum"])


def _lrn(layer: Layer, _: Values, x: Any) -> Any:
    """Normalise over channels. Chainer's alpha is for each channel, and not divided by their number."""
    return functions.local_response_normalization(x, layer["size"], layer["k"], layer["alpha"] / layer["size"], layer["beta"])


_NAMES = ("weight", "bias", "running_mean", "running_var", "weight_ih", "weight_hh")
_KINDS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "pool": _pool,
    "linear": lambda _, own, x: functions.linear(x, own["weight"], own.get("bias"), n_batch_axes=x.ndim - 1),
    "flatten": lambda _, __, x: functions.reshape(x, (len(x), -1)),
    "bn": _bn,
    "global_pool": lambda _, __, x: functions.mean(x, axis=(2, 3), keepdims=True),
    "lrn": _lrn,
    "concat": lambda _, __, *inputs: functions.concat(inputs, axis=1),
    "dropout": lambda layer, _, x: functions.dropout(x, layer["ratio"]),
    "relu": lambda _, __, x: functions.relu(x),
    "add": lambda _, __, first, second: first + second,
    **TOKEN_KINDS,
}
