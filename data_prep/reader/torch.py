"""Give the samples of a dataset to PyTorch's DataLoader: whole batches in Slipway's own order, or one sample at a time."""

from typing import Any, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import get_worker_info

from .errors import ReaderError
from .sampling import Augmentation, kinds_of, samples_at
from .shards import waits_for_disk


class Position(NamedTuple):
    """A place in a training: the epoch, and how many samples of it all ranks have used. A checkpoint needs nothing else."""

    epoch: int
    sample: int


class Batches(TorchDataset):
    """The batches of one rank by their number: uint8 (batch, height, width, channels) and int64 (batch,). Give it to a DataLoader with
    `batch_size=None`.

    Which samples a batch has is decided by seed, epoch and its place alone: the global batch, that of all ranks one after the other, is the
    same for every number of ranks and of workers. Batch 0 begins at `start`; of each epoch the last, partial global batch is left out.
    """

    def __init__(  # noqa: PLR0913
        self,
        split: Any,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        start: Tuple[int, int] = (0, 0),
        augmentation: str = "none",
    ) -> None:
        if getattr(split, "size", None) is None:
            raise ReaderError("batches need images of one size: use Images, or build the dataset with a size")
        self.split = split
        self.global_batch = batch_size * world_size
        self.per_epoch = len(split) // self.global_batch if batch_size > 0 else 0
        if not 0 <= rank < world_size or not self.per_epoch:
            raise ValueError("rank %d of %d cannot take batches of %d out of %d samples" % (rank, world_size, batch_size, len(split)))
        self.start = Position(*start)
        if not 0 <= self.start.sample <= len(split) or self.start.epoch < 0:
            raise ValueError("there is no %s in a split of %d samples" % (self.start, len(split)))
        kinds_of(augmentation)  # raises here, not in a worker
        self._local = np.arange(batch_size, dtype=np.int64) + rank * batch_size
        self._seed, self._augmentation = seed, augmentation
        self._left = (len(split) - self.start.sample) // self.global_batch
        self._last: Optional[int] = None

    def __len__(self) -> int:
        """Return how many batches are left of the first epoch."""
        return self._left

    def of_epoch(self, epoch: int) -> range:
        """Return the numbers of the batches of an epoch: the `sampler` of a DataLoader. `range(first, end)` over several epochs is one."""
        first = self._left + (epoch - self.start.epoch - 1) * self.per_epoch
        return range(max(first, 0), first + self.per_epoch) if epoch >= self.start.epoch else range(0)

    def position(self, number: int) -> Position:
        """Return where the training stands when batch `number` is the next one: the `start` of one that goes on there, also with
        another batch size or number of ranks."""
        if number < 0:
            raise IndexError("batch %d: the first one is 0" % number)
        if number < self._left:
            return Position(self.start.epoch, self.start.sample + number * self.global_batch)
        epoch, batch = divmod(number - self._left, self.per_epoch)
        return Position(self.start.epoch + 1 + epoch, batch * self.global_batch)

    def samples(self, number: int) -> np.ndarray:
        """Return the samples of a batch, int64 (batch,)."""
        epoch, first = self.position(number)
        return samples_at(self._seed, epoch, len(self.split), self._local + first)

    def __getitem__(self, number: int) -> Tuple[torch.Tensor, torch.Tensor]:
        samples = self.samples(number)
        if waits_for_disk():
            self._read_ahead(number, samples)
        images = _empty((len(samples),) + tuple(self.split.size) + (self.split.channels,))
        augment = Augmentation(self._augmentation, self._seed, self.position(number).epoch)
        _, labels = self.split.read_many(samples, out=images.numpy(), augment=augment)
        return images, torch.from_numpy(labels)

    def _read_ahead(self, number: int, samples: np.ndarray) -> None:
        """Begin to read the batch that this process is asked for next: as many numbers further on as this one is after the last."""
        if self._last is not None and number > self._last:
            self.split.prefetch(samples)
            self.split.prefetch(self.samples(2 * number - self._last))
        self._last = number


class Images(TorchDataset):
    """The images of a split by number, uint8 (height, width, channels), and their labels, for a sampler of your own."""

    def __init__(self, split: Any) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, index: int) -> Tuple[torch.Tensor, int]:
        image, label = self.split.read(index)
        return torch.from_numpy(image), label

    def __getitems__(self, indices: Sequence[int]) -> List[Tuple[torch.Tensor, int]]:
        """Read what a DataLoader puts into one batch in one go."""
        if self.split.size is None:
            return [self[index] for index in indices]
        images, labels = self.split.read_many(indices)
        return [(torch.from_numpy(image), int(label)) for image, label in zip(images, labels)]  # noqa: B905 from Python 3.10 on


def _empty(shape: Tuple[int, ...]) -> torch.Tensor:
    """Return memory for a batch. A worker takes it where the other process can see it, so that nothing is copied to get there."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    one = torch.empty(0, dtype=torch.uint8)
    storage = one._typed_storage() if hasattr(one, "_typed_storage") else one.storage()  # as torch's default_collate
    return one.new(storage._new_shared(int(np.prod(shape)))).resize_(*shape)
