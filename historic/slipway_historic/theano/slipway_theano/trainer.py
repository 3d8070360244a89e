"""Training in Theano: momentum and update written as its expressions."""

from typing import Any, Sequence

import numpy as np
import theano
from slipway_historic_program.theano_rank import TheanoRank
from slipway_program.parameters import Arrays, Cell, Facts

from .network import Network


class TheanoTrainer(TheanoRank):
    """One rank."""

    framework = "theano"
    version = theano.__version__

    def __init__(self, cell: Cell, dataset: Any, start: Arrays) -> None:
        super().__init__(cell, dataset, Network(cell["model_layers"], start))

    def _updates(self, means: Sequence[Any], rate: Any, keep: Any, decay: Any) -> Any:
        """Update by v = momentum v + gradient, weight -= rate v."""
        updates = []
        for (name, weight), mean in zip(self._weights.items(), means):
            self._velocity[name] = velocity = theano.shared(np.zeros_like(weight.get_value()))
            moved = keep * velocity + mean + (decay * weight if weight.ndim > 1 else 0)
            updates += [(velocity, moved), (weight, weight - rate * moved)]
        return updates

    def provenance(self) -> Facts:
        return dict(super().provenance(), openmp=theano.config.openmp)
