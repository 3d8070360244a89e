"""Training in Theano: a function for loss and gradients, which MPI averages over the ranks, and one for the update."""

from typing import Any, Dict, Mapping

import numpy as np
import theano
from slipway_historic_program.theano_rank import TheanoRank, constants_of
from slipway_program.parameters import Arrays, Cell, trained
from slipway_program.trainer import drops
from theano import tensor as T

from .network import Network


class TheanoTrainer(TheanoRank):
    """One rank. Running statistics are those of rank 0, as in PyTorch's DistributedDataParallel."""

    framework = "theano"
    version = theano.__version__

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        TheanoRank.__init__(self, dataset)
        self._network = Network(cell["model_layers"], start)
        self._drops = drops(cell["model_layers"])
        self._tensors = self._network.tensors
        self._trained = trained(self._tensors)
        self._momentum = {name: theano.shared(np.zeros_like(start[name])) for name in self._trained}
        images = T.tensor4("images", dtype="uint8")
        self._outputs = theano.function([images], self._network.graph(self._normalised(images), training=False)[0])
        if cell["mode"] == "train":
            self._compile_step(cell["optimizer"])

    def _compile_step(self, constants: Mapping[str, float]) -> None:
        """Compile (images, labels) -> loss, gradients, new running statistics; and (gradients) -> new weights, by v = momentum v +
        gradient, weight -= rate v. Weight decay goes to weights only.
        """
        images, labels = T.tensor4("images", dtype="uint8"), T.lvector("labels")
        outputs, running = self._network.graph(self._normalised(images), training=True)
        loss = T.nnet.categorical_crossentropy(T.nnet.softmax(outputs), labels).mean()
        gradients = T.grad(loss, list(self._trained.values()))
        self._running = list(running)
        self._gradients = theano.function([images, labels], [loss, *gradients, *running.values()])
        rate, keep, decay = constants_of(constants)
        means = [weight.type() for weight in self._trained.values()]
        updates = []
        for (name, weight), mean in zip(self._trained.items(), means):
            momentum = self._momentum[name]
            moved = keep * momentum + mean + (decay * weight if weight.ndim > 1 else 0)
            updates += [(momentum, moved), (weight, weight - rate * moved)]
        self._update = theano.function(means, [], updates=updates)

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        if self._drops:
            self._network.dice.throw(self.dropout_seed)
        loss, *found = self._gradients(images, labels)
        self._update(*self.mean(found[: len(self._trained)]))
        for name, array in self.of_rank_0(dict(zip(self._running, found[len(self._trained) :]))).items():
            self._tensors[name].set_value(array, borrow=True)
        return loss

    def state(self) -> Arrays:
        return {name: tensor.get_value() for name, tensor in self._tensors.items()}

    def momentum(self) -> Arrays:
        return {name: tensor.get_value() for name, tensor in self._momentum.items()}

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        for tensors, arrays in ((self._tensors, state), (self._momentum, momentum)):
            for name, tensor in tensors.items():
                tensor.set_value(arrays[name])

    def provenance(self) -> Dict[str, Any]:
        return dict(TheanoRank.provenance(self), blas=theano.config.blas.ldflags, openmp=theano.config.openmp)
