"""The kinds of layers that networks of token ids have: containers/models/tokens.py says what each is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Layer = Mapping[str, Any]
Arrays = Mapping[str, jax.Array]


def _layer_norm(layer: Layer, own: Arrays, x: jax.Array) -> jax.Array:
    mean, variance = x.mean(2, keepdims=True), x.var(2, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + layer["epsilon"]) * own["weight"] + own["bias"]


def _attention(layer: Layer, _: Arrays, x: jax.Array) -> jax.Array:
    """In the shape [batch, heads, tokens, features of a head]."""
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


KINDS: dict[str, Callable[[Layer, Arrays, jax.Array], jax.Array]] = {
    "embedding": lambda _, own, tokens: own["weight"][tokens],
    "positions": lambda _, own, x: x + own["weight"][: x.shape[1]],
    "layer_norm": _layer_norm,
    "gelu": lambda _, __, x: jax.nn.gelu(x, approximate=True),
    "attention": _attention,
    "lstm": _lstm,
    "tied": lambda _, own, x: x @ own["weight"].T,
}
