"""Define the Trainer that a framework gives, so that driver.py can do the rest.

State is passed by name in canonical layout (parameters.py), as numpy arrays, so that files, norms and comparisons are the same for all.
"""

import resource
import zlib
from typing import Any, Iterator, List, Mapping, Sequence, Tuple

import numpy as np
import slipway_reader

from .loop import Laps
from .parameters import Arrays, Cell, Facts, Layer


def padding_of(layer: Layer, size: Sequence[int]) -> List[Tuple[int, int]]:
    """Return (before, after) of height and width, for images of `size`: more after them where the last window reaches over the end
    (`ceil`)."""
    padding, stride, kernel = layer["padding"], layer["stride"], layer["kernel"]
    reached = [(layer["shape_out"][1 + axis] - 1) * stride[axis] + kernel[axis] - padding[axis] for axis in (0, 1)]
    return [(padding[axis], max(padding[axis], reached[axis] - size[axis])) for axis in (0, 1)]


def dropout_seed(seed: int, rank: int, number: int) -> int:
    """Return the seed of step `number` on this rank: a resumed run drops what the whole one would have. 32 bits, in a microsecond."""
    return zlib.crc32(("%d:%d:%d" % (seed, rank, number)).encode())


def drops(layers: Sequence[Layer]) -> bool:
    """Return True if a network has dropout. Each framework draws its own numbers for it, so that only without it losses are equal."""
    return any(layer["kind"] == "dropout" for layer in layers)


def masks(layers: Sequence[Layer], batch_size: int, seed: int) -> Arrays:
    """Return by the name of each dropout layer what its input is multiplied by: 0 for what is dropped, and for the rest what keeps the
    mean. It is for frameworks whose own dropout cannot be begun anew in each step.
    """
    random = np.random.RandomState(seed)
    found = {}
    for layer in layers:
        if layer["kind"] == "dropout":
            kept = random.random_sample((batch_size, *layer["shape_out"])) >= layer["ratio"]
            found[layer["name"]] = kept / np.float32(1 - layer["ratio"])
    return found


class Trainer:
    """One rank. Sub-classes set the attributes and write the methods; they are made with all ranks there."""

    framework = ""
    version = ""
    device = "cpu"
    dropout_seed = 0
    """What dropout drops in the step that comes is a function of it: driver.py sets it before each, by `dropout_seed` of this module."""
    laps = Laps()
    """`step` tells it the parts that it can tell. Where a whole step is compiled there are none. There is one trainer in a process."""

    def __init__(self, cell: Cell, dataset: Any) -> None:
        """Take what most frameworks want to know. `_mean` and `_scale` bring pixels to mean 0 and deviation 1 over the training split, and
        leave token ids as they are."""
        self._drops = drops(cell["model_layers"])
        self._of_tokens = isinstance(dataset, slipway_reader.Sequences)
        self._mean = np.float32(0) if self._of_tokens else np.asarray(dataset.mean, np.float32)
        self._scale = np.float32(1) if self._of_tokens else 1 / np.maximum(np.asarray(dataset.std, np.float32), 1)

    def prepare(self, shape: Tuple[int, int], training: bool) -> None:
        """Prepare for batches of token ids of this shape, to `step` where it is training, else to `outputs`: who compiles for each shape
        does so here, before the first step, and not in a step that may be measured."""

    def step(self, images: np.ndarray, labels: np.ndarray) -> Any:
        """Compute forward, backward, gradients averaged over all ranks, update. `images` are uint8 [batch, height, width, channels], or
        token ids and `labels` their targets, [batch, tokens] each, -1 for none. Returns the mean loss of this rank's samples (that of a
        sequence is the mean over its tokens); the step has ended when float() of it returns."""
        raise NotImplementedError

    def native_batches(self, dataset: Any, batch_size: int) -> Iterator[Tuple[np.ndarray, np.ndarray]]:
        """Yield endlessly of the training split what this rank gets where the framework reads by itself (`reader: native`), from the
        beginning of its own order; images as `step` gets them to train on, float32 [batch, channels, height, width], and labels int64.
        Raises ValueError for a dataset that it cannot read so."""
        raise NotImplementedError

    def outputs(self, images: np.ndarray) -> np.ndarray:
        """Compute the outputs of this rank's images, float32 [batch, classes], or [batch, tokens, vocabulary], as the network is outside of
        training."""
        raise NotImplementedError

    def barrier(self) -> None:
        """Return when all ranks have called it, and all that was computed before is done."""
        self.total(np.zeros(1))

    def leave(self) -> None:
        """Leave the other ranks: all is written. Rank 0 may be the one that they talk through, so nobody goes alone."""
        self.barrier()

    def total(self, values: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def state(self) -> Arrays:
        """Return this rank's parameters, and running statistics, those of rank 0. Not a call that the ranks make together."""
        raise NotImplementedError

    def momentum(self) -> Arrays:
        raise NotImplementedError

    def restore(self, state: Mapping[str, np.ndarray], momentum: Mapping[str, np.ndarray]) -> None:
        raise NotImplementedError

    def provenance(self) -> Facts:
        """Return versions and settings, JSON-able."""
        return {}

    def memory(self) -> Tuple[int, str]:
        """Return the most memory that this rank had, in bytes, and whose count that is."""
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "resident_set"
