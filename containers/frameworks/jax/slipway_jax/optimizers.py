"""The update rules: what each remembers of a parameter from step to step, and the parameters after a step. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

VARIANCE = ".variance"
"""Behind the name of a parameter: the mean square of its gradient."""
UPDATES = "updates"
LEAST = 1e-6
"""Added to the norm of the gradients, as PyTorch does, so that nothing is divided by zero."""
Values = dict[str, Any]


def first_memory(constants: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Before the first step: of each parameter, and of AdamW how many updates there were."""
    memory = {name: np.zeros_like(array) for name, array in weights.items()}
    if constants["name"] == "adamw":
        memory.update({name + VARIANCE: np.zeros_like(array) for name, array in weights.items()})
        memory[UPDATES] = np.zeros(1, np.float32)
    return memory


def update(constants: Mapping[str, Any], weights: Values, gradients: Values, memory: Values) -> tuple[Values, Values]:
    """Weights and memory after a step. Weight decay goes to weights only, not to biases and batch normalisation."""
    if "clip_norm" in constants:
        norm = jnp.sqrt(sum(jnp.square(gradient).sum() for gradient in gradients.values()))
        factor = jnp.minimum(1.0, constants["clip_norm"] / (norm + LEAST))
        gradients = jax.tree.map(lambda gradient: factor * gradient, gradients)
    return (_adamw if constants["name"] == "adamw" else _sgd)(constants, weights, gradients, memory)


def _sgd(constants: Mapping[str, Any], weights: Values, gradients: Values, memory: Values) -> tuple[Values, Values]:
    """Update by v = momentum v + gradient, weight -= rate v."""
    for name, weight in weights.items():
        decay = constants["weight_decay"] if weight.ndim > 1 else 0.0
        memory[name] = constants["momentum"] * memory[name] + gradients[name] + decay * weight
    return {name: weight - constants["learning_rate"] * memory[name] for name, weight in weights.items()}, memory


def _adamw(constants: Mapping[str, Any], weights: Values, gradients: Values, memory: Values) -> tuple[Values, Values]:
    """Loshchilov and Hutter (2019). 1 - beta^n by expm1: in float32 the difference of two numbers near 1 has few digits."""
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
