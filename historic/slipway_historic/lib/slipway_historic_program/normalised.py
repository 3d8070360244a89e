"""Images as networks take them, for frameworks that compute on numpy's arrays."""

from typing import Any

import numpy as np


class Normalised:
    """Mean 0 and deviation 1 over the training split."""

    def __init__(self, dataset: Any) -> None:
        self._mean = np.asarray(dataset.mean, np.float32)
        self._scale = 1 / np.maximum(np.asarray(dataset.std, np.float32), 1)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        """uint8 [batch, height, width, channels] -> float32 [batch, channels, height, width]; what is float32 already stays what it is: the
        framework's own reader has made it so."""
        if images.dtype == np.float32:
            return images
        return np.ascontiguousarray(((images.astype(np.float32) - self._mean) * self._scale).transpose(0, 3, 1, 2))
