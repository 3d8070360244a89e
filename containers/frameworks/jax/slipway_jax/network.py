"""A network from a layer list, as functions of JAX. Parameters keep their canonical names and layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Layer = Mapping[str, Any]
Arrays = Mapping[str, jax.Array]


class Network:
    """The layers in their order. `nhwc`: how activations lie in memory; what comes in and goes out is the same."""

    def __init__(self, layers: Sequence[Layer], *, nhwc: bool) -> None:
        self._layers = layers
        self._axes = "NHWC" if nhwc else "NCHW"

    def __call__(self, state: Arrays, images: jax.Array, *, training: bool) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Images [batch, height, width, channels], float32 -> ([batch, classes], the new running statistics of `bn` layers)."""
        values = {self._layers[0]["name"]: images if self._axes == "NHWC" else images.transpose(0, 3, 1, 2)}
        running: dict[str, jax.Array] = {}
        for layer in self._layers[1:]:
            own = {name: state[key] for name in _NAMES if (key := f"{layer['name']}.{name}") in state}
            inputs = [values[name] for name in layer["inputs"]]
            if layer["kind"] == "bn":
                values[layer["name"]], found = self._bn(layer, own, inputs[0], training)
                running |= {f"{layer['name']}.{name}": value for name, value in found.items()}
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
        padding = [(size, size) for size in self._spatial(layer["padding"], 0)]
        if layer["mode"] == "max":
            return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding)
        return lax.reduce_window(x, 0.0, lax.add, window, strides, padding) / (layer["kernel"][0] * layer["kernel"][1])

    def linear(self, layer: Layer, own: Arrays, x: jax.Array) -> jax.Array:
        return x @ own["weight"].T + own["bias"] if layer["bias"] else x @ own["weight"].T

    def flatten(self, _: Layer, __: Arrays, x: jax.Array) -> jax.Array:
        """Channels first, whatever the layout."""
        return (x.transpose(0, 3, 1, 2) if x.ndim == 4 and self._axes == "NHWC" else x).reshape(len(x), -1)

    def global_pool(self, _: Layer, __: Arrays, x: jax.Array) -> jax.Array:
        return x.mean(axis=(1, 2) if self._axes == "NHWC" else (2, 3), keepdims=True)

    def _bn(self, layer: Layer, own: Arrays, x: jax.Array, training: bool) -> tuple[jax.Array, dict[str, jax.Array]]:
        """In training by the statistics of this rank's batch, as PyTorch does it; the running variance is that of a sample (n - 1)."""
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
        """A number per channel, as it is added to activations."""
        return values if self._axes == "NHWC" else values[:, None, None]

    def _spatial(self, pair: Sequence[int], other: int) -> tuple[int, ...]:
        return (other, *pair, other) if self._axes == "NHWC" else (other, other, *pair)


_NAMES = ("weight", "bias", "running_mean", "running_var")
_KINDS: dict[str, Callable[..., jax.Array]] = {
    "conv": Network.conv,
    "pool": Network.pool,
    "linear": Network.linear,
    "flatten": Network.flatten,
    "global_pool": Network.global_pool,
    "relu": lambda _, __, ___, x: jax.nn.relu(x),
    "add": lambda _, __, ___, first, second: first + second,
}
