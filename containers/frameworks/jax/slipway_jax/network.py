"""A network from a layer list, as functions of JAX. Parameters keep their canonical names and layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from slipway_program.parameters import Layer
from slipway_program.trainer import padding_of

Arrays = Mapping[str, jax.Array]


def _layer_norm(layer: Layer, own: Arrays, x: jax.Array) -> jax.Array:
    mean, variance = x.mean(2, keepdims=True), x.var(2, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + layer["epsilon"]) * own["weight"] + own["bias"]


def _attention(layer: Layer, _: Arrays, x: jax.Array) -> jax.Array:
    """Compute attention in the shape [batch, heads, tokens, features of a head]."""
    batch, tokens, features = x.shape[0], x.shape[1], x.shape[2] // 3
    queries, keys, values = (part.reshape(batch, tokens, layer["heads"], -1).transpose(0, 2, 1, 3) for part in jnp.split(x, 3, axis=2))
    scores = queries @ keys.transpose(0, 1, 3, 2) * (features // layer["heads"]) ** -0.5
    before = jnp.tril(jnp.ones((tokens, tokens), bool))
    attended = jax.nn.softmax(jnp.where(before, scores, -jnp.inf), axis=3) @ values
    return attended.transpose(0, 2, 1, 3).reshape(batch, tokens, features)


def _lstm(_: Layer, own: Arrays, x: jax.Array) -> jax.Array:
    zeros = jnp.zeros((x.shape[0], own["weight_hh"].shape[1]), x.dtype)

    def step(state: tuple[jax.Array, jax.Array], given: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        hidden, cell = state
        gates = given + hidden @ own["weight_hh"].T
        enter, forget, new, leave = jnp.split(gates, 4, axis=1)
        cell = jax.nn.sigmoid(forget) * cell + jax.nn.sigmoid(enter) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(leave) * jnp.tanh(cell)
        return (hidden, cell), hidden

    given = (x @ own["weight_ih"].T + own["bias"]).transpose(1, 0, 2)
    return lax.scan(step, (zeros, zeros), given)[1].transpose(1, 0, 2)


TOKEN_KINDS: dict[str, Callable[[Layer, Arrays, jax.Array], jax.Array]] = {
    "embedding": lambda _, own, tokens: own["weight"][tokens],
    "positions": lambda _, own, x: x + own["weight"][: x.shape[1]],
    "layer_norm": _layer_norm,
    "gelu": lambda _, __, x: jax.nn.gelu(x, approximate=True),
    "attention": _attention,
    "lstm": _lstm,
    "tied": lambda _, own, x: x @ own["weight"].T,
}


class Network:
    """The layers in their order. `nhwc`: how activations lie in memory; what comes in and goes out is the same."""

    def __init__(self, layers: Sequence[Layer], *, nhwc: bool) -> None:
        self._layers = layers
        self._axes = "NHWC" if nhwc else "NCHW"

    def __call__(
        self, state: Arrays, images: jax.Array, *, training: bool, key: jax.Array | None = None
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Return ([batch, classes], the new running statistics of `bn` layers) for float32 images [batch, height, width, channels]; or
        [batch, tokens, vocabulary] for token ids [batch, tokens]. `key`: the random key of dropout; None: nothing is dropped.
        """
        as_it_is = images.ndim == 2 or self._axes == "NHWC"
        values = {self._layers[0]["name"]: images if as_it_is else images.transpose(0, 3, 1, 2)}
        running: dict[str, jax.Array] = {}
        for number, layer in enumerate(self._layers[1:]):
            whose = layer.get("embedding", layer["name"])
            own = {name: state[full] for name in _NAMES if (full := f"{whose}.{name}") in state}
            inputs = [values[name] for name in layer["inputs"]]
            if layer["kind"] == "bn":
                values[layer["name"]], found = self._bn(layer, own, inputs[0], training)
                running |= {f"{layer['name']}.{name}": value for name, value in found.items()}
            elif layer["kind"] == "dropout":
                values[layer["name"]] = inputs[0] if key is None else _dropped(layer, jax.random.fold_in(key, number), inputs[0])
            else:
                values[layer["name"]] = _KINDS[layer["kind"]](self, layer, own, *inputs)
        return values[self._layers[-1]["name"]], running

    def conv(self, layer: Layer, own: Arrays, x: jax.Array) -> jax.Array:
        padding = [(size, size) for size in layer["padding"]]
        numbers = (self._axes, "OIHW", self._axes)
        x = lax.conv_general_dilated(
            x, own["weight"], layer["stride"], padding, dimension_numbers=numbers, feature_group_count=layer["groups"]
        )
        return x + self._channels(own["bias"]) if layer["bias"] else x

    def pool(self, layer: Layer, _: Arrays, x: jax.Array) -> jax.Array:
        window, strides = self._spatial(layer["kernel"], 1), self._spatial(layer["stride"], 1)
        padding = self._spatial(padding_of(layer, x.shape[1:3] if self._axes == "NHWC" else x.shape[2:]), (0, 0))
        if layer["mode"] == "max":
            return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)
        return lax.reduce_window(x, 0.0, lax.add, window, strides, padding) / (layer["kernel"][0] * layer["kernel"][1])

    def linear(self, layer: Layer, own: Arrays, x: jax.Array) -> jax.Array:
        return x @ own["weight"].T + own["bias"] if layer["bias"] else x @ own["weight"].T

    def flatten(self, _: Layer, __: Arrays, x: jax.Array) -> jax.Array:
        """Flatten channels first, whatever the layout."""
        return (x.transpose(0, 3, 1, 2) if x.ndim == 4 and self._axes == "NHWC" else x).reshape(len(x), -1)

    def global_pool(self, _: Layer, __: Arrays, x: jax.Array) -> jax.Array:
        return x.mean(axis=(1, 2) if self._axes == "NHWC" else (2, 3), keepdims=True)

    def _bn(self, layer: Layer, own: Arrays, x: jax.Array, training: bool) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Normalise, in training by this rank's batch, as PyTorch does it; the running variance is that of a sample (n - 1)."""
        if not training:
            return self._normalised(layer, own, x, own["running_mean"], own["running_var"]), {}
        axes = (0, 1, 2) if self._axes == "NHWC" else (0, 2, 3)
        mean, variance = x.mean(axes), x.var(axes)
        count = x.size // x.shape[3 if self._axes == "NHWC" else 1]
        new = {"running_mean": mean, "running_var": variance * (count / max(count - 1, 1))}
        momentum = layer["momentum"]
        running = {name: (1 - momentum) * own[name] + momentum * lax.stop_gradient(value) for name, value in new.items()}
        return self._normalised(layer, own, x, mean, variance), running

    def _normalised(self, layer: Layer, own: Arrays, x: jax.Array, mean: jax.Array, variance: jax.Array) -> jax.Array:
        scale = own["weight"] * lax.rsqrt(variance + layer["epsilon"])
        return (x - self._channels(mean)) * self._channels(scale) + self._channels(own["bias"])

    def _channels(self, values: jax.Array) -> jax.Array:
        return values if self._axes == "NHWC" else values[:, None, None]

    def lrn(self, layer: Layer, _: Arrays, x: jax.Array) -> jax.Array:
        axis, reach = 3 if self._axes == "NHWC" else 1, layer["size"] // 2
        window = [layer["size"] if number == axis else 1 for number in range(4)]
        padding = [(reach, reach) if number == axis else (0, 0) for number in range(4)]
        squares = lax.reduce_window(x * x, 0.0, lax.add, window, (1, 1, 1, 1), padding)
        return x / (layer["k"] + layer["alpha"] / layer["size"] * squares) ** layer["beta"]

    def concat(self, _: Layer, __: Arrays, *inputs: jax.Array) -> jax.Array:
        return jnp.concatenate(inputs, 3 if self._axes == "NHWC" else 1)

    def _spatial(self, pair: Sequence[Any], other: Any) -> tuple[Any, ...]:
        return (other, *pair, other) if self._axes == "NHWC" else (other, other, *pair)


def _dropped(layer: Layer, key: jax.Array, x: jax.Array) -> jax.Array:
    kept = 1 - layer["ratio"]
    return jnp.where(jax.random.bernoulli(key, kept, x.shape), x / kept, 0.0)


def _without_network(function: Callable[..., jax.Array], _: Network, *arguments: Any) -> jax.Array:
    return function(*arguments)


_NAMES = ("weight", "bias", "running_mean", "running_var", "weight_ih", "weight_hh")
_KINDS: dict[str, Callable[..., jax.Array]] = {
    "conv": Network.conv,
    "pool": Network.pool,
    "linear": Network.linear,
    "flatten": Network.flatten,
    "global_pool": Network.global_pool,
    "lrn": Network.lrn,
    "concat": Network.concat,
    "relu": lambda _, __, ___, x: jax.nn.relu(x),
    "add": lambda _, __, ___, first, second: first + second,
    **{kind: partial(_without_network, function) for kind, function in TOKEN_KINDS.items()},
}
