"""Training in Lasagne: a function of Theano for loss and gradients, which MPI averages over the ranks, and Lasagne's own update."""

from typing import Any, Dict, Mapping

import lasagne
import numpy as np
import theano
from slipway_historic_program.theano_rank import TheanoRank, constants_of
from slipway_program.parameters import Arrays, Cell, trained
from slipway_program.trainer import drops
from theano import tensor as T

from .network import Network, to_lasagne


class LasagneTrainer(TheanoRank):
    """One rank. Running statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    framework = "lasagne"
    version = lasagne.__version__

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        TheanoRank.__init__(self, dataset)
        self._network = Network(cell["model_layers"], start)
        self._tensors = self._network.tensors
        images = T.TensorType("uint8", (False,) * 4)("images")
        self._drops = drops(cell["model_layers"])
        self._outputs = theano.function([images], self._network.graph(self._normalised(images), training=False)[0])
        self._velocity: Dict[str, Any] = {}
        if cell["mode"] == "train":
            labels = T.lvector("labels")
            outputs, running = self._network.graph(self._normalised(images), training=True)
            loss = lasagne.objectives.categorical_crossentropy(T.nnet.softmax(outputs), labels).mean()
            self._weights = trained(self._tensors)
            self._running = list(running)
            gradients = T.grad(loss, list(self._weights.values()))
            self._gradients = theano.function([images, labels], [loss, *gradients, *running.values()])
            self._update = self._compile_update(cell["optimizer"])

    def _compile_update(self, constants: Mapping[str, float]) -> Any:
        """Compile: the gradients' means -> the new weights. Weight decay goes to weights only."""
        rate, keep, decay = constants_of(constants)
        weights = list(self._weights.values())
        means = [weight.type() for weight in weights]
        decayed = [mean + decay * weight if weight.ndim > 1 else mean for mean, weight in zip(means, weights)]
        updates = lasagne.updates.momentum(decayed, weights, rate, keep)
        self._velocity = dict(zip(self._weights, (tensor for tensor in updates if tensor not in weights)))
        return theano.function(means, [], updates=updates)

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        if self._drops:
            self._network.dice.throw(self.dropout_seed)
        loss, *found = self._gradients(images, labels)
        self._update(*self.mean(found[: len(self._weights)]))
        for name, array in self.of_rank_0(dict(zip(self._running, found[len(self._weights) :]))).items():
            self._tensors[name].set_value(array, borrow=True)
        return loss

    def state(self) -> Arrays:
        return {name: to_lasagne(tensor.get_value()) for name, tensor in self._tensors.items()}

    def momentum(self) -> Arrays:
        return {name: to_lasagne(tensor.get_value()) for name, tensor in self._velocity.items()}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        for tensors, arrays in ((self._tensors, state), (self._velocity, momentum)):
            for name, tensor in tensors.items():
                tensor.set_value(to_lasagne(arrays[name]))

    def provenance(self) -> Dict[str, Any]:
        return dict(TheanoRank.provenance(self), theano_version=theano.__version__, blas=theano.config.blas.ldflags)
