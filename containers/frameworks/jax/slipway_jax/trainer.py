"""Training in JAX: one compiled step over the mesh, in which each rank has its own part of the global batch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from slipway_program.jax_rank import JaxRank
from slipway_program.parameters import Arrays, Cell, Optimizer, trained

from .network import Network

VARIANCE = ".variance"
"""The suffix of the mean square of the gradient of a parameter."""
UPDATES = "updates"
EPSILON = 1e-6
"""Added to the norm of the gradients, as PyTorch does, so that nothing is divided by zero."""
Values = dict[str, jax.Array]


def first_memory(constants: Optimizer, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the memory before the first step: of each parameter, and of AdamW how many updates there were."""
    memory = {name: np.zeros_like(array) for name, array in weights.items()}
    if constants["name"] == "adamw":
        memory.update({name + VARIANCE: np.zeros_like(array) for name, array in weights.items()})
        memory[UPDATES] = np.zeros(1, np.float32)
    return memory


def update(constants: Optimizer, weights: Values, gradients: Values, memory: Values) -> tuple[Values, Values]:
    """Return weights and memory after a step. Weight decay goes to weights only, not to biases and batch normalisation."""
    if "clip_norm" in constants:
        norm = jnp.sqrt(sum(jnp.square(gradient).sum() for gradient in gradients.values()))
        factor = jnp.minimum(1.0, constants["clip_norm"] / (norm + EPSILON))
        gradients = jax.tree.map(lambda gradient: factor * gradient, gradients)
    return (_adamw if constants["name"] == "adamw" else _sgd)(constants, weights, gradients, memory)


def _sgd(constants: Optimizer, weights: Values, gradients: Values, memory: Values) -> tuple[Values, Values]:
    for name, weight in weights.items():
        decay = constants["weight_decay"] if weight.ndim > 1 else 0.0
        memory[name] = constants["momentum"] * memory[name] + gradients[name] + decay * weight
    return {name: weight - constants["learning_rate"] * memory[name] for name, weight in weights.items()}, memory


def _adamw(constants: Optimizer, weights: Values, gradients: Values, memory: Values) -> tuple[Values, Values]:
    """Update as Loshchilov and Hutter (2019). 1 - beta^n by expm1: in float32 the difference of two numbers near 1 has few digits."""
    memory[UPDATES] = memory[UPDATES] + 1
    rate, betas = constants["learning_rate"], (constants["beta1"], constants["beta2"])
    of_mean, of_square = (-jnp.expm1(memory[UPDATES][0] * math.log(beta)) if beta else 1.0 for beta in betas)
    updated = {}
    for name, weight in weights.items():
        gradient = gradients[name]
        memory[name] = betas[0] * memory[name] + (1 - betas[0]) * gradient
        memory[name + VARIANCE] = betas[1] * memory[name + VARIANCE] + (1 - betas[1]) * jnp.square(gradient)
        decayed = weight * (1 - rate * constants["weight_decay"]) if weight.ndim > 1 else weight
        updated[name] = decayed - rate / of_mean * memory[name] / (jnp.sqrt(memory[name + VARIANCE] / of_square) + constants["epsilon"])
    return updated, memory


class JaxTrainer(JaxRank):
    """One rank. State is on all ranks the same; running statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    framework = "jax"
    version = jax.__version__

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset)
        self._network = Network(cell["model_layers"], nhwc=cell["layout"] == "nhwc")
        self._optimizer: Optimizer = cell["optimizer"]
        self.restore(start, first_memory(self._optimizer, trained(start)))
        self._compile(self._step, lambda state, images: self._network(state, self._normalised(images), training=False)[0])

    def _step(self, state: Any, momentum: Any, images: jax.Array, labels: jax.Array, seed: jax.Array | None = None) -> Any:
        key = None if seed is None else jax.random.key(seed[0])

        def loss_of(weights: Any) -> Any:
            outputs, running = self._network({**state, **weights}, self._normalised(images), training=True, key=key)
            return _mean_loss(outputs, labels), running

        weights = trained(state)
        (loss, running), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
        gradients = lax.pmean(gradients, "ranks")
        running = lax.psum(jax.tree.map(lambda value: jnp.where(lax.axis_index("ranks") == 0, value, 0), running), "ranks")
        updated, momentum = update(self._optimizer, weights, gradients, momentum)
        return {**state, **updated, **running}, momentum, loss[None]

    def state(self) -> Arrays:
        return {name: np.asarray(array.addressable_data(0)) for name, array in self._state.items()}

    def momentum(self) -> Arrays:
        return {name: np.asarray(array.addressable_data(0)) for name, array in self._memory.items()}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        self._state, self._memory = self._everywhere(state), self._everywhere(momentum)


def _mean_loss(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    losses = -jnp.take_along_axis(jax.nn.log_softmax(outputs), jnp.maximum(labels, 0)[..., None], -1)[..., 0]
    if labels.ndim == 1:
        return losses.mean()
    return (jnp.where(labels >= 0, losses, 0).sum(1) / (labels >= 0).sum(1)).mean()
