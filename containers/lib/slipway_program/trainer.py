"""What a framework has to give, so that driver.py can do the rest: one class with these methods.

State is passed by name in canonical layout (parameters.py), as numpy arrays, so that files, norms and comparisons are the same for all.
"""

from typing import Any, Dict, Mapping

import numpy as np

from .parameters import Arrays


class Trainer:
    """One rank. Sub-classes set the attributes and write the methods; they are made with all ranks there."""

    framework = ""
    version = ""
    device = "cpu"

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        """Forward, backward, gradients averaged over all ranks, update. `images` are uint8 [batch, height, width, channels]. Returns the
        mean loss of this rank's samples; the step has ended when float() of it returns."""
        raise NotImplementedError

    def outputs(self, images: np.ndarray) -> np.ndarray:
        """Of this rank's own images, float32 [batch, classes], as the network is outside of training."""
        raise NotImplementedError

    def barrier(self) -> None:
        """Return when all ranks have called it, and all that was computed before is done."""
        raise NotImplementedError

    def leave(self) -> None:
        """All is written: part from the other ranks. Rank 0 may be the one that they talk through, so nobody goes alone."""
        self.barrier()

    def total(self, values: np.ndarray) -> np.ndarray:
        """The sums over all ranks."""
        raise NotImplementedError

    def state(self) -> Arrays:
        """Parameters and running statistics, those of rank 0. Not a call that the ranks make together."""
        raise NotImplementedError

    def momentum(self) -> Arrays:
        """That of each parameter, by the parameter's name."""
        raise NotImplementedError

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        """Go on from there."""
        raise NotImplementedError

    def provenance(self) -> Dict[str, Any]:
        """Versions and settings, JSON-able."""
        return {}
