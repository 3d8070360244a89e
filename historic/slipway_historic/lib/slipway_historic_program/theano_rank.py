"""What every trainer that is built on Theano has alike: the pixels and the outputs. Imported where Theano is, its flags set."""

from typing import Any, Mapping, Tuple

import numpy as np
import theano

from .mpi import MpiTrainer


class TheanoRank(MpiTrainer):
    """One rank. A sub-class sets `_outputs`, the compiled function of images to outputs."""

    _outputs = None  # type: Any

    def __init__(self, dataset: Any) -> None:
        self._mean = theano.shared(np.asarray(dataset.mean, np.float32))  # a constant would be compiled in
        self._scale = theano.shared(1 / np.maximum(np.asarray(dataset.std, np.float32), 1))

    def _normalised(self, images: Any) -> Any:
        """Mean 0 and deviation 1 over the training split; channels first."""
        return ((theano.tensor.cast(images, "float32") - self._mean) * self._scale).dimshuffle(0, 3, 1, 2)

    def outputs(self, images: np.ndarray) -> np.ndarray:
        return self._outputs(images)  # type: np.ndarray


def constants_of(optimizer: Mapping[str, float]) -> Tuple[Any, ...]:
    """Learning rate, momentum and weight decay, as values that are not compiled in."""
    return tuple(theano.shared(np.float32(optimizer[name])) for name in ("learning_rate", "momentum", "weight_decay"))
