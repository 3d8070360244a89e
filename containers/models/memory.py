"""Estimate the memory of a training step by arithmetic: enough to say in a plan that a model cannot fit.

In training every weight has a gradient, a momentum and a place in the buckets that are exchanged; every layer's output is kept until the
backward pass has used it, except of layers that work in place or are only a view. What convolution libraries take as workspace, and
what an allocator loses, is not in it: measured peaks lie above.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

from containers.models.layers import Layer

# Kinds whose output takes no memory of its own: ReLU works in place, the others are views.
IN_PLACE: Final = frozenset({"relu", "flatten"})
ACTIVATION_BYTES: Final[dict[str, int]] = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2}
WEIGHT_BYTES: Final = 4  # weights stay in fp32 under every precision here
COPIES_IN_TRAINING: Final = 4  # weight, gradient, bucket, momentum


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes on one device."""

    parameter_bytes: int
    activation_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.parameter_bytes + self.activation_bytes


def estimate_memory(layers: Sequence[Layer], batch_size: int, *, mode: str = "train", precision: str = "fp32") -> MemoryEstimate:
    """Estimate the need of one process at `batch_size` samples per step. Inference keeps one layer's inputs and output at a time."""
    width = ACTIVATION_BYTES[precision]
    elements = {layer["name"]: prod(layer["shape_out"]) for layer in layers}
    parameters = WEIGHT_BYTES * sum(layer["parameters"] for layer in layers)
    if mode == "train":
        kept = sum(elements[layer["name"]] for layer in layers if layer["kind"] not in IN_PLACE)
        return MemoryEstimate(parameter_bytes=parameters * COPIES_IN_TRAINING, activation_bytes=kept * batch_size * width)
    largest = max(elements[layer["name"]] + sum(elements[name] for name in layer["inputs"]) for layer in layers)
    return MemoryEstimate(parameter_bytes=parameters, activation_bytes=largest * batch_size * width)
