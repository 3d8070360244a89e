"""Training in Lasagne: its layers, and its own update with momentum."""

from typing import Any, Sequence

import lasagne
import numpy as np
import theano
from slipway_historic_program.theano_rank import TheanoRank
from slipway_program.parameters import Arrays, Cell, Facts

from .network import Network, to_lasagne


class LasagneTrainer(TheanoRank):
    """One rank."""

    framework = "lasagne"
    version = lasagne.__version__

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset, Network(cell["model_layers"], start))

    def _updates(self, means: Sequence[Any], rate: Any, keep: Any, decay: Any) -> Any:
        weights = list(self._weights.values())
        decayed = [mean + decay * weight if weight.ndim > 1 else mean for mean, weight in zip(means, weights)]
        updates = lasagne.updates.momentum(decayed, weights, rate, keep)
        self._velocity = dict(zip(self._weights, (tensor for tensor in updates if tensor not in weights)))
        return updates

    def convert(self, array: np.ndarray) -> np.ndarray:
        return to_lasagne(array)

    def provenance(self) -> Facts:
        return dict(super().provenance(), theano_version=theano.__version__)
