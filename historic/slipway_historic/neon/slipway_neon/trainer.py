"""Training in neon: a chain of layers on its CPU backend, gradients averaged over all ranks by MPI."""

from typing import Any, List

import numpy as np
from neon.backends import gen_backend
from neon.initializers import Constant
from neon.layers import Activation, Affine, Conv, Dropout, GeneralizedCost, Pooling
from neon.models import Model
from neon.optimizers import GradientDescentMomentum
from neon.transforms import CrossEntropyMulti, Rectlin, Softmax
from slipway_historic_program.mpi import MpiTrainer
from slipway_program.parameters import Arrays, Cell


class NeonTrainer(MpiTrainer):
    """One rank. neon has the batch as the last axis, dense weights as (out, in), those of convolutions as (in x height x width, out)."""

    framework = "neon"
    version = "2.6.0"

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset)
        self._batch = cell["batch_size"]
        backend = gen_backend("cpu", batch_size=self._batch)
        layers = cell["model_layers"]
        self._model = Model([*chain(layers), Activation(Softmax())])
        self._cost = GeneralizedCost(CrossEntropyMulti())
        self._model.initialize(tuple(layers[0]["shape_out"]), self._cost)
        self._weights: List[Any] = []
        self._gradients: List[Any] = []
        for layer in self._model.layers_to_optimize:  # a convolution carries its bias, a dense layer is followed by one
            self._weights += [layer.W] + ([layer.weight_bias] if hasattr(layer, "weight_bias") else [])
            self._gradients += [layer.dW] + ([layer.grad_bias] if hasattr(layer, "grad_bias") else [])
        self._shapes = {name: array.shape for name, array in start.items()}
        for weight, array in zip(self._weights, start.values()):
            weight.set(array.reshape(len(array), -1).T if array.ndim == 4 else array.reshape(len(array), -1))
        constants = cell["optimizer"]
        self._optimizer = GradientDescentMomentum(constants["learning_rate"], constants["momentum"], wdecay=constants["weight_decay"])
        self._x = backend.empty((int(np.prod(layers[0]["shape_out"])), self._batch))
        self._wanted = backend.empty((dataset.num_classes, self._batch))
        self._classes = dataset.num_classes

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        found = self._forward(images, inference=False)
        self._wanted.set(np.ascontiguousarray(np.eye(self._classes, dtype=np.float32)[labels].T))
        loss = float(self._cost.get_cost(found, self._wanted))
        self._model.bprop(self._cost.get_errors(found, self._wanted))
        for tensor, mean in zip(self._gradients, self.mean([tensor.get() for tensor in self._gradients])):
            tensor.set(mean)
        self._optimizer.optimize(self._model.layers_to_optimize, 0)  # it divides by the batch itself
        return loss

    def _forward(self, images: np.ndarray, inference: bool) -> Any:
        self._x.set(np.ascontiguousarray(self._normalised(images).reshape(len(images), -1).T))
        return self._model.fprop(self._x, inference=inference)

    def outputs(self, images: np.ndarray) -> np.ndarray:
        probabilities = np.asarray(self._forward(images, inference=True).get())
        return np.log(np.maximum(probabilities, 1e-30)).T

    def state(self) -> Arrays:
        arrays = [np.asarray(weight.get()) for weight in self._weights]
        named = zip(self._shapes.items(), arrays)
        return {name: (array.T if len(shape) == 4 else array).reshape(shape) for (name, shape), array in named}


def chain(layers: Any) -> List[Any]:
    """Make neon's layers, all weights zero. Raises ValueError for a network that is no chain of these."""
    found: List[Any] = []
    for layer in layers[1:]:
        if layer["kind"] not in _KINDS:
            raise ValueError(
                "layer %r is of kind %s, which this folder has not; there are %s" % (layer["name"], layer["kind"], sorted(_KINDS))
            )
        made = _KINDS[layer["kind"]](layer)
        found += [] if made is None else [made]
    return found


_ZERO = Constant(0)
_KINDS = {
    "conv": lambda layer: Conv(
        (*layer["kernel"], layer["shape_out"][0]), _ZERO, bias=_ZERO, strides=layer["stride"][0], padding=layer["padding"][0]
    ),
    "pool": lambda layer: Pooling(layer["kernel"][0], strides=layer["stride"][0], padding=layer["padding"][0], op=layer["mode"]),
    "linear": lambda layer: Affine(layer["shape_out"][0], _ZERO, bias=_ZERO),
    "relu": lambda _: Activation(Rectlin()),
    "dropout": lambda layer: Dropout(keep=1 - layer["ratio"]),
    "flatten": lambda _: None,  # a dense layer takes what there is, channels first
}
