"""The kinds of layers that networks of token ids have: containers/models/tokens.py says what each is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import paddle
from paddle.nn import functional
from paddle.nn.initializer import Constant

Layer = Mapping[str, Any]
Tensors = Mapping[str, Any]


def times(x: Any, weight: Any) -> Any:
    """[..., in] by (out, in)."""
    return paddle.matmul(x, weight, transpose_y=True)


class Lstm(paddle.nn.LSTM):
    """With one bias: the other of the two that Paddle adds up stays 0, since no optimizer is told of it. Its kernel wants a gradient of
    both."""

    def __init__(self, features_in: int, features: int) -> None:
        super().__init__(features_in, features, bias_hh_attr=paddle.ParamAttr(initializer=Constant(0.0)))
        self.named = {"weight_ih": self.weight_ih_l0, "weight_hh": self.weight_hh_l0, "bias": self.bias_ih_l0}

    def forward(self, x: Any) -> Any:
        return super().forward(x)[0]


def _attention(layer: Layer, _: Tensors, x: Any) -> Any:
    """In the shape [batch, heads, tokens, features of a head]."""
    batch, tokens, features = x.shape[0], x.shape[1], x.shape[2] // 3
    shape = (batch, tokens, layer["heads"], features // layer["heads"])
    queries, keys, values = (part.reshape(shape).transpose((0, 2, 1, 3)) for part in x.chunk(3, 2))
    scores = times(queries, keys) * (features // layer["heads"]) ** -0.5
    after = paddle.triu(paddle.full((tokens, tokens), -float("inf")), 1)
    return paddle.matmul(functional.softmax(scores + after), values).transpose((0, 2, 1, 3)).reshape((batch, tokens, features))


KINDS: dict[str, Callable[..., Any]] = {
    "embedding": lambda _, own, tokens: functional.embedding(tokens, own["weight"]),
    "positions": lambda _, own, x: x + own["weight"][: x.shape[1]],
    "layer_norm": lambda layer, own, x: functional.layer_norm(x, x.shape[2:], own["weight"], own["bias"], layer["epsilon"]),
    "gelu": lambda _, __, x: functional.gelu(x, approximate=True),
    "attention": _attention,
    "tied": lambda _, own, x: times(x, own["weight"]),
}
