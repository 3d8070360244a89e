"""Weights of convolutions in canonical layout (OIHW) and in TensorFlow's (HWIO). All others are as they are."""

from __future__ import annotations

import numpy as np


def to_tensorflow(array: np.ndarray) -> np.ndarray:
    """From the canonical layout."""
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array


def to_canonical(array: np.ndarray) -> np.ndarray:
    """From TensorFlow's."""
    return array.transpose(3, 2, 0, 1) if array.ndim == 4 else array
