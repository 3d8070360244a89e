"""What every trainer that is built on Theano has alike: the pixels and the outputs. Imported where Theano is, its flags set."""

from typing import Any, Mapping, Sequence, Tuple

import numpy as np
import theano
from slipway_program.parameters import Layer
from theano import tensor as T
from theano.tensor.shared_randomstreams import RandomStreams

from .mpi import MpiTrainer


def relu(x: Any) -> Any:
    """Return max(x, 0) with a gradient of 0 at 0, where Theano's own has 0.5."""
    return T.switch(x > 0, x, np.float32(0))


def max_pool(layer: Layer, x: Any) -> Any:
    """Pool a layer of the list. The gradient goes to the first one that is largest; Theano's own gives the whole of it to each of them,
    which are many where an image has an even colour.
    """
    places = np.ndindex(*layer["kernel"])
    x = _padded(layer, x)
    found = _at(layer, x, next(places))
    for place in places:
        part = _at(layer, x, place)
        found = T.switch(part > found, part, found)
    return found


class Dice:
    """What dropout draws its numbers by: streams of the numbers of numpy, which `throw` begins anew."""

    def __init__(self) -> None:
        self.streams = RandomStreams()

    def throw(self, seed: int) -> None:
        """Begin the streams anew: what follows is a function of the seed."""
        self.streams.seed(seed)

    def dropped(self, ratio: float, x: Any) -> Any:
        """Drop numbers; the rest is scaled, so that the mean stays."""
        kept = self.streams.uniform(x.shape, ndim=x.ndim, dtype="float32") >= np.float32(ratio)
        return T.switch(kept, x * np.float32(1 / (1 - ratio)), np.float32(0))


def _padded(layer: Layer, x: Any) -> Any:
    rows, columns = layer["padding"]
    if not rows and not columns and not layer.get("ceil"):
        return x
    sizes = zip((x.shape[2], x.shape[3]), layer["padding"], layer["shape_out"][1:], layer["stride"], layer["kernel"])
    extents = [T.maximum(size + 2 * around, (count - 1) * stride + kernel) for size, around, count, stride, kernel in sizes]
    shape = x.shape[0], x.shape[1], extents[0], extents[1]
    around = T.alloc(np.float32(-np.inf), *shape)
    return T.set_subtensor(around[:, :, rows : rows + x.shape[2], columns : columns + x.shape[3]], x)


def _at(layer: Layer, x: Any, place: Sequence[int]) -> Any:
    sizes = zip(place, layer["stride"], layer["shape_out"][1:])
    rows, columns = (slice(first, first + stride * (count - 1) + 1, stride) for first, stride, count in sizes)
    return x[:, :, rows, columns]


class TheanoRank(MpiTrainer):
    """One rank. A sub-class sets `_outputs`, the compiled function of images to outputs."""

    _outputs = None  # type: Any

    def __init__(self, dataset: Any) -> None:
        self._mean = theano.shared(np.asarray(dataset.mean, np.float32))  # a constant would be compiled in
        self._scale = theano.shared(1 / np.maximum(np.asarray(dataset.std, np.float32), 1))

    def _normalised(self, images: Any) -> Any:
        return ((theano.tensor.cast(images, "float32") - self._mean) * self._scale).dimshuffle(0, 3, 1, 2)

    def outputs(self, images: np.ndarray) -> np.ndarray:
        return self._outputs(images)  # type: np.ndarray


def constants_of(optimizer: Mapping[str, float]) -> Tuple[Any, ...]:
    """Return learning rate, momentum and weight decay, as values that are not compiled in."""
    return tuple(theano.shared(np.float32(optimizer[name])) for name in ("learning_rate", "momentum", "weight_decay"))
