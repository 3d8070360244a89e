"""What programs share whose ranks are those of MPI (launcher mpirun): a trainer derives from MpiTrainer. Needs mpi4py.

Float32 is summed rank by rank in one message, so that a step waits for the network once, however many parameters there are.
"""

from typing import Any, List, Mapping, Sequence

import numpy as np
from mpi4py import MPI
from slipway_program.parameters import Arrays, Facts
from slipway_program.trainer import Trainer


class MpiTrainer(Trainer):
    """One rank; MPI has been initialised by the import of this module."""

    ranks = MPI.COMM_WORLD

    def _normalised(self, images: np.ndarray) -> Any:
        """Return uint8 [batch, height, width, channels] as float32 [batch, channels, height, width]. Token ids stay what they are, and so
        does what the framework's own reader has made float32 already.
        """
        if self._of_tokens or images.dtype == np.float32:
            return np.ascontiguousarray(images)
        return np.ascontiguousarray(((images.astype(np.float32) - self._mean) * self._scale).transpose(0, 3, 1, 2))

    def barrier(self) -> None:
        self.ranks.Barrier()

    def leave(self) -> None:
        """Leave by the end of MPI itself: mpirun takes a rank that goes without it for one that died."""
        self.ranks.Barrier()
        MPI.Finalize()

    def total(self, values: np.ndarray) -> np.ndarray:
        found = np.empty_like(values)
        self.ranks.Allreduce(values, found)
        return found

    def mean(self, arrays: Sequence[np.ndarray]) -> List[np.ndarray]:
        """Return the mean over all ranks, of each array, as gradients are averaged."""
        if self.ranks.size == 1:
            return list(arrays)
        together = _joined(arrays)
        self.ranks.Allreduce(MPI.IN_PLACE, together)
        together /= self.ranks.size
        return _parted(together, arrays)

    def of_rank_0(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Return those of rank 0, on every rank: running statistics."""
        if self.ranks.size == 1 or not arrays:
            return dict(arrays)
        together = _joined(list(arrays.values()))
        self.ranks.Bcast(together)
        return dict(zip(arrays, _parted(together, list(arrays.values()))))

    def provenance(self) -> Facts:
        return {"backend": "mpi", "mpi_library": MPI.Get_library_version().split(",")[0]}


def _joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.asarray(array, np.float32).ravel() for array in arrays])


def _parted(together: np.ndarray, like: Sequence[np.ndarray]) -> List[np.ndarray]:
    parts = np.split(together, np.cumsum([array.size for array in like])[:-1])
    return [part.reshape(array.shape) for part, array in zip(parts, like)]
