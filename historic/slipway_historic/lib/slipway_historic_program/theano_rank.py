"""What every trainer that is built on Theano has alike. Imported where Theano is, its flags set."""

from typing import Any, Dict, Mapping, Sequence

import numpy as np
import theano
from slipway_program.parameters import Arrays, Cell, Facts, Layer, trained
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


class RandomState:
    """The random state of dropout: streams of the numbers of numpy, which `seed` restarts."""

    def __init__(self) -> None:
        self.streams = RandomStreams()

    def seed(self, seed: int) -> None:
        """Restart the streams: what follows is a function of the seed."""
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
    """One rank: a function of Theano for loss and gradients, which MPI averages over the ranks, and one for the update. Running statistics
    are those of rank 0, as in PyTorch's DistributedDataParallel. A sub-class makes the network."""

    def __init__(self, cell: Cell, dataset: Any, network: Any) -> None:
        super().__init__(cell, dataset)
        self._pixels = theano.shared(self._mean), theano.shared(self._scale)  # constants would be compiled in
        self._network, self._tensors, self._weights = network, network.tensors, trained(network.tensors)
        self._velocity: Dict[str, "theano.Variable"] = {}
        images = T.TensorType("uint8", (False,) * 4)("images")
        self._outputs = theano.function([images], network.graph(self._normalised(images), training=False)[0])
        if cell["mode"] == "train":
            labels = T.lvector("labels")
            outputs, running = network.graph(self._normalised(images), training=True)
            loss = T.nnet.categorical_crossentropy(T.nnet.softmax(outputs), labels).mean()
            self._running = list(running)
            gradients = T.grad(loss, list(self._weights.values()))
            self._gradients = theano.function([images, labels], [loss, *gradients, *running.values()])
            constants = (theano.shared(np.float32(cell["optimizer"][name])) for name in ("learning_rate", "momentum", "weight_decay"))
            means = [weight.type() for weight in self._weights.values()]
            self._update = theano.function(means, [], updates=self._updates(means, *constants))

    def _updates(self, means: Sequence[Any], rate: Any, keep: Any, decay: Any) -> Any:
        """Return what the means of the gradients change; `_velocity` is the momentum. Weight decay goes to weights only."""
        raise NotImplementedError

    def convert(self, array: np.ndarray) -> np.ndarray:
        """Convert from the canonical layout to that of the network, or back."""
        return array

    def _normalised(self, images: Any) -> Any:
        mean, scale = self._pixels
        return ((T.cast(images, "float32") - mean) * scale).dimshuffle(0, 3, 1, 2)

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        if self._drops:
            self._network.random_state.seed(self.dropout_seed)
        loss, *found = self._gradients(images, labels)
        self._update(*self.mean(found[: len(self._weights)]))
        for name, array in self.of_rank_0(dict(zip(self._running, found[len(self._weights) :]))).items():
            self._tensors[name].set_value(array, borrow=True)
        return loss

    def outputs(self, images: np.ndarray) -> np.ndarray:
        return self._outputs(images)  # type: np.ndarray

    def state(self) -> Arrays:
        return {name: self.convert(tensor.get_value()) for name, tensor in self._tensors.items()}

    def momentum(self) -> Arrays:
        return {name: self.convert(tensor.get_value()) for name, tensor in self._velocity.items()}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        for tensors, arrays in ((self._tensors, state), (self._velocity, momentum)):
            for name, tensor in tensors.items():
                tensor.set_value(self.convert(arrays[name]))

    def provenance(self) -> Facts:
        return dict(super().provenance(), blas=theano.config.blas.ldflags)
