"""A network from a layer list, as a layer of Paddle. Parameters keep their canonical names; activations are in NCHW."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import paddle
from paddle.nn import functional
from paddle.nn.initializer import Constant
from slipway_program.parameters import RUNNING, Layer

Tensors = Mapping[str, paddle.Tensor]


def times(x: Any, weight: Any) -> Any:
    """Multiply [..., in] by (out, in)."""
    return paddle.matmul(x, weight, transpose_y=True)


class Lstm(paddle.nn.LSTM):
    """An LSTM with one bias: the other of the two that Paddle adds up stays 0, since no optimizer is told of it. Its kernel wants a
    gradient of both.
    """

    def __init__(self, features_in: int, features: int) -> None:
        super().__init__(features_in, features, bias_hh_attr=paddle.ParamAttr(initializer=Constant(0.0)))
        self.named = {"weight_ih": self.weight_ih_l0, "weight_hh": self.weight_hh_l0, "bias": self.bias_ih_l0}

    def forward(self, x: Any) -> Any:
        return super().forward(x)[0]


def _attention(layer: Layer, _: Tensors, x: Any) -> Any:
    """Compute attention in the shape [batch, heads, tokens, features of a head]."""
    batch, tokens, features = x.shape[0], x.shape[1], x.shape[2] // 3
    shape = (batch, tokens, layer["heads"], features // layer["heads"])
    queries, keys, values = (part.reshape(shape).transpose((0, 2, 1, 3)) for part in x.chunk(3, 2))
    scores = times(queries, keys) * (features // layer["heads"]) ** -0.5
    after = paddle.triu(paddle.full((tokens, tokens), -float("inf")), 1)
    return paddle.matmul(functional.softmax(scores + after), values).transpose((0, 2, 1, 3)).reshape((batch, tokens, features))


TOKEN_KINDS: dict[str, Callable[..., Any]] = {
    "embedding": lambda _, own, tokens: functional.embedding(tokens, own["weight"]),
    "positions": lambda _, own, x: x + own["weight"][: x.shape[1]],
    "layer_norm": lambda layer, own, x: functional.layer_norm(x, x.shape[2:], own["weight"], own["bias"], layer["epsilon"]),
    "gelu": lambda _, __, x: functional.gelu(x, approximate=True),
    "attention": _attention,
    "tied": lambda _, own, x: times(x, own["weight"]),
}


class Network(paddle.nn.Layer):
    """The layers in their order. `tensors`: parameters and running statistics by name, which whoever made it sets."""

    def __init__(self, layers: Sequence[Layer], arrays: Mapping[str, np.ndarray]) -> None:
        super().__init__()
        self._layers = layers
        shapes = {layer["name"]: layer["shape_out"] for layer in layers}
        self._lstms = {
            layer["name"]: Lstm(shapes[layer["inputs"][0]][-1], layer["shape_out"][-1]) for layer in layers if layer["kind"] == "lstm"
        }
        of_lstms = {f"{layer}.{name}": tensor for layer, lstm in self._lstms.items() for name, tensor in lstm.named.items()}
        self.tensors: dict[str, paddle.Tensor] = {}
        for name, array in arrays.items():
            if name.endswith(RUNNING):
                self.tensors[name] = paddle.zeros(array.shape)
                continue
            made = of_lstms.get(name)
            self.tensors[name] = self.create_parameter(array.shape, default_initializer=Constant(0.0)) if made is None else made
            self.add_parameter(name.replace(".", "/"), self.tensors[name])  # Paddle allows no dots in names

    def forward(self, images: Any) -> Any:
        """Return [batch, classes] of float32 images [batch, channels, height, width]; or [batch, tokens, vocabulary] of token ids [batch,
        tokens].
        """
        values = {self._layers[0]["name"]: images}
        for layer in self._layers[1:]:
            name = layer["name"]
            whose = layer.get("embedding", name)
            own = {what: self.tensors[key] for what in _NAMES if (key := f"{whose}.{what}") in self.tensors}
            inputs = [values[read] for read in layer["inputs"]]
            if layer["kind"] == "bn" and self.training:
                values[name] = _bn_in_training(layer, own, inputs[0])
            elif layer["kind"] == "lstm":
                values[name] = self._lstms[name](inputs[0])
            elif layer["kind"] == "dropout" and self.training:
                values[name] = functional.dropout(inputs[0], layer["ratio"])
            else:
                values[name] = _KINDS[layer["kind"]](layer, own, *inputs)
        return values[self._layers[-1]["name"]]


def _linear(layer: Layer, own: Tensors, x: Any) -> Any:
    x = times(x, own["weight"])
    return x + own["bias"] if layer["bias"] else x


def _conv(layer: Layer, own: Tensors, x: Any) -> Any:
    return functional.conv2d(x, own["weight"], own.get("bias"), layer["stride"], layer["padding"], groups=layer["groups"])


def _pool(layer: Layer, _: Tensors, x: Any) -> Any:
    if layer["mode"] == "max":
        return functional.max_pool2d(x, layer["kernel"], layer["stride"], layer["padding"], ceil_mode=layer.get("ceil", False))
    return functional.avg_pool2d(x, layer["kernel"], layer["stride"], layer["padding"], exclusive=False)


def _bn(layer: Layer, own: Tensors, x: Any) -> Any:
    running = own["running_mean"], own["running_var"]
    return functional.batch_norm(x, *running, own["weight"], own["bias"], epsilon=layer["epsilon"])


def _bn_in_training(layer: Layer, own: Tensors, x: Any) -> Any:
    """Normalise by the statistics of this rank's batch, as PyTorch does it; the running variance is that of a sample (n - 1). Paddle's own
    is that of the batch, so it is asked for the batch alone, by a momentum of 0.
    """
    mean, variance = (paddle.zeros_like(own[name]) for name in ("running_mean", "running_var"))
    result = functional.batch_norm(x, mean, variance, own["weight"], own["bias"], True, 0.0, layer["epsilon"])
    count = x.size // x.shape[1]
    momentum = layer["momentum"]
    for running, found in ((own["running_mean"], mean), (own["running_var"], variance * (count / max(count - 1, 1)))):
        running.set_value((1 - momentum) * running + momentum * found)
    return result


def _lrn(layer: Layer, _: Tensors, x: Any) -> Any:
    return functional.local_response_norm(x, layer["size"], layer["alpha"], layer["beta"], layer["k"])


_NAMES = ("weight", "bias", "running_mean", "running_var")
_KINDS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "pool": _pool,
    "linear": _linear,
    "flatten": lambda _, __, x: x.flatten(1),
    "bn": _bn,
    "global_pool": lambda _, __, x: x.mean((2, 3), keepdim=True),
    "lrn": _lrn,
    "concat": lambda _, __, *inputs: paddle.concat(inputs, 1),
    "dropout": lambda _, __, x: x,
    "relu": lambda _, __, x: functional.relu(x),
    "add": lambda _, __, first, second: first + second,
    **TOKEN_KINDS,
}
