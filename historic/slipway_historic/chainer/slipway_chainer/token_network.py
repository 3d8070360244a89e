"""The kinds of layers that networks of token ids have: containers/models/tokens.py says what each is."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any, Callable, Mapping

import numpy as np
from chainer import functions

Layer = Mapping[str, Any]
Values = Mapping[str, Any]


def _layer_norm(layer: Layer, own: Values, x: Any) -> Any:
    flat = functions.reshape(x, (-1, x.shape[2]))
    return functions.reshape(functions.layer_normalization(flat, own["weight"], own["bias"], layer["epsilon"]), x.shape)


def _attention(layer: Layer, _: Values, x: Any) -> Any:
    """In the shape [batch, heads, tokens, features of a head]."""
    batch, tokens, features = x.shape[0], x.shape[1], x.shape[2] // 3
    shape = (batch, tokens, layer["heads"], features // layer["heads"])
    parts = functions.split_axis(x, 3, 2)
    queries, keys, values = (functions.transpose(functions.reshape(part, shape), (0, 2, 1, 3)) for part in parts)
    scores = functions.matmul(queries, keys, transb=True) * (features // layer["heads"]) ** -0.5
    after = np.triu(np.full((tokens, tokens), -np.inf, np.float32), 1)
    attended = functions.matmul(functions.softmax(scores + np.broadcast_to(after, scores.shape), axis=3), values)
    return functions.reshape(functions.transpose(attended, (0, 2, 1, 3)), (batch, tokens, features))


def _lstm(layer: Layer, own: Values, x: Any) -> Any:
    """Chainer's function wants the gates of a unit one beside the other: cell, input, forget, output."""
    units = layer["shape_out"][1]
    order = np.arange(4 * units).reshape(4, units)[[2, 0, 1, 3]].T.ravel().astype(np.int32)
    of_input, of_hidden, bias = (functions.permutate(own[name], order) for name in ("weight_ih", "weight_hh", "bias"))
    cell = hidden = np.zeros((len(x), units), np.float32)
    outputs = []
    for given in functions.separate(functions.linear(x, of_input, bias, n_batch_axes=2), axis=1):
        cell, hidden = functions.lstm(cell, given + functions.linear(hidden, of_hidden))
        outputs.append(hidden)
    return functions.stack(outputs, axis=1)


def _gelu(_: Layer, __: Values, x: Any) -> Any:
    return 0.5 * x * (1 + functions.tanh(sqrt(2 / pi) * (x + 0.044715 * x**3)))


KINDS: dict[str, Callable[..., Any]] = {
    "embedding": lambda _, own, tokens: functions.embed_id(tokens, own["weight"]),
    "positions": lambda _, own, x: x + functions.broadcast_to(own["weight"][: x.shape[1]], x.shape),
    "layer_norm": _layer_norm,
    "gelu": _gelu,
    "attention": _attention,
    "lstm": _lstm,
    "tied": lambda _, own, x: functions.linear(x, own["weight"], n_batch_axes=2),
}
