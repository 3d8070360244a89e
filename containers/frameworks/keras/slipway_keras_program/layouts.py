"""Weights in canonical layout (OIHW, (out, in)) and in Keras' (HWIO, (in, out)). Those of embeddings and positions are alike in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


class Layouts:
    """Of the weights of one network, by their canonical names."""

    def __init__(self, layers: Sequence[Mapping[str, Any]]) -> None:
        self._alike = {f"{layer['name']}.weight" for layer in layers if layer["kind"] in ("embedding", "positions")}

    def to_keras(self, name: str, array: np.ndarray) -> np.ndarray:
        """From the canonical layout."""
        if name in self._alike:
            return array
        return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array.T

    def to_canonical(self, name: str, array: np.ndarray) -> np.ndarray:
        """From that of Keras."""
        if name in self._alike:
            return array
        return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array.T
