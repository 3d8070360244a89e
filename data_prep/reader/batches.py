"""Read the batches of a split, in an order that seed, epoch and place decide: by number, or epoch after epoch in loader processes."""

import functools
import itertools
import os
import threading
from typing import Any, Dict, Iterator, NamedTuple, Optional, Tuple

import numpy as np

from .errors import ReaderError
from .loaders import ENDLESS, Arrays, Loaders, Slot, check_start_method, loader_processes
from .sampling import Augmentation, kinds_of, samples_at
from .sequences import inputs_and_targets
from .shards import waits_for_disk


class Position(NamedTuple):
    """A place in a training: the epoch, and how many samples of it all ranks have used. A checkpoint needs nothing else."""

    epoch: int
    sample: int


class Batches:
    """The batches of one rank by their number: uint8 (batch, height, width, channels) and int64 (batch,), or rows of token ids, int32
    (batch, length + 1), all of one length, and nothing.

    Which samples a batch has is decided by seed, epoch and its place alone: the global batch, that of all ranks one after the other, is the
    same for every number of ranks and of workers. Batch 0 begins at `start`. The last, partial global batch of an epoch is left out, or
    with `drop_last=False` divided among the ranks.
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
        shuffle: bool = True,
        drop_last: bool = True,
    ) -> None:
        if not (hasattr(split, "shape") and hasattr(split, "__len__")):
            raise TypeError("batches are those of a split, open_dataset(path).split(name), not of %s" % type(split).__name__)
        self._are_rows = split.dtype == np.int32
        if split.shape is None:
            rows = "rows of one length: read_many() those of grouped_batch(), or build the dataset with sequence_length"
            raise ReaderError(
                "batches need " + (rows if self._are_rows else "images of one size: use Images, or build the dataset with a size")
            )
        self.split = split
        self.global_batch = batch_size * world_size
        self._drop_last = drop_last
        self.per_epoch = self.count(len(split)) if batch_size > 0 else 0
        if not 0 <= rank < world_size or not self.per_epoch:
            advice = "; drop_last=False keeps an incomplete batch" if 0 < len(split) < self.global_batch else ""
            numbers = (rank, world_size, batch_size, len(split), advice)
            raise ValueError("rank %d of %d cannot take batches of %d out of %d samples%s" % numbers)
        self.start = Position(*start)
        if not 0 <= self.start.sample <= len(split) or self.start.epoch < 0:
            raise ValueError("there is no %s in a split of %d samples" % (self.start, len(split)))
        if kinds_of(augmentation) and self._are_rows:  # the words are checked here, not in a worker
            raise ValueError("augmentation %r is for images, and this split has rows of token ids" % augmentation)
        self.batch_size, self.rank, self.world_size = batch_size, rank, world_size
        self.seed, self._augmentation, self._shuffle = seed, augmentation, shuffle
        self._left = self.count(len(split) - self.start.sample)

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
        of_all = np.arange(first, min(first + self.global_batch, len(self.split)), dtype=np.int64)
        positions = np.array_split(of_all, self.world_size)[self.rank]
        return samples_at(self.seed, epoch, len(self.split), positions) if self._shuffle else positions

    def read(self, number: int, out: Optional[np.ndarray] = None) -> Arrays:
        """Read a batch; its images or rows into `out`, where that is given."""
        if self._are_rows:
            return self.split.read_many(self.samples(number), out), np.empty(0, np.int64)
        augment = Augmentation(self._augmentation, self.seed, self.position(number).epoch)
        return self.split.read_many(self.samples(number), out, augment)

    def read_ahead(self, *numbers: int) -> None:
        """Begin to read these batches where a disk has to be waited for."""
        if waits_for_disk():
            for number in numbers:
                self.split.prefetch(self.samples(number))

    def fill(self, place: int, slot: Slot, coming: int) -> Tuple[int, int]:
        """Read a batch into a slot, as a loader process does."""
        self.read_ahead(*(place,) if coming < 0 else (place, coming))
        images, labels = slot.arrays()
        found, answers = self.read(place, images)
        labels[: len(answers)] = answers
        return len(found), 0

    def count(self, samples: int) -> int:
        """Return how many batches so many samples make."""
        return (samples if self._drop_last else samples + self.global_batch - 1) // self.global_batch


class Loader:
    """The batches of one rank, epoch after epoch, read in loader processes: uint8 (batch, height, width, channels) and int64 (batch,). Of
    token ids: inputs and targets, int32 (batch, length) both.

    An iteration has the batches of one epoch, the next one those of the next. One that is left begins anew. The arrays are the caller's
    for as long as it has them. `num_workers`: None for as many as there are cores for, 0 to read in this process. Other options are those
    of Batches.
    """

    def __init__(  # noqa: PLR0913
        self,
        split: Any,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        *,
        num_workers: Optional[int] = None,
        start_method: str = "fork",
        **options: Any,
    ) -> None:
        self._make = functools.partial(Batches, split, batch_size, seed, rank, world_size, **options)
        if num_workers is None:
            num_workers = loader_processes(int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
        if num_workers < 0:
            raise ValueError("num_workers %d; valid: 0 or more, or None" % num_workers)
        check_start_method(start_method)
        self.num_workers, self.start_method = num_workers, start_method
        self._source: Any = None
        self._owner = _thread()
        self._batches: Batches = self._make()
        self._begun = self._reached = self._batches.start

    def __len__(self) -> int:
        """Return how many batches a whole epoch has."""
        return self._batches.per_epoch

    def __iter__(self) -> Iterator[Any]:
        if self._source is None or self._reached != self._begun or self._owner != _thread():
            self._go_to(self._begun)
            self._source = self._begin()
        source, (epoch, first), split = self._source, self._begun, self._batches.split
        ended = False
        try:
            for number in range(self._batches.count(len(split) - first)):
                if self._source is not source:
                    raise RuntimeError(
                        "this iteration is over: set_epoch, load_state_dict or another iter() moved the loader; use one iterator at a time"
                    )
                batch = self._deliver(*next(source))
                self._reached = Position(epoch, min(first + (number + 1) * self._batches.global_batch, len(split)))
                yield batch
                del batch  # its memory is not waited for
            self._begun = self._reached = Position(epoch + 1, 0)
            ended = True
        finally:
            if not ended and self._source is source:
                self.close()

    @property
    def epoch(self) -> int:
        """Return the epoch of the iteration that has begun, or of the next one."""
        return self._begun.epoch

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be this epoch, from its first sample on. A loader that is in this epoch stays where it is."""
        if epoch != self.epoch:
            self._go_to(Position(epoch, 0))

    def state_dict(self) -> Dict[str, int]:
        """Return where the training stands after the batch that was yielded last, for a checkpoint: the same on all ranks."""
        epoch, sample = self._reached
        return {"epoch": epoch, "sample": sample, "seed": self._batches.seed, "samples": len(self._batches.split)}

    def load_state_dict(self, state: Dict[str, int]) -> None:
        """Let the next iteration go on where `state` was taken, also with another batch size or number of ranks. Raises ValueError if
        that would be another order."""
        if not {"epoch", "sample"} <= set(state):
            raise ValueError("the state %r has no epoch and sample: it is not one of state_dict()" % (state,))
        for key, value in (("seed", self._batches.seed), ("samples", len(self._batches.split))):
            if state.get(key, value) != value:
                raise ValueError("the state has %s %s, this loader %s: its order is another one" % (key, state[key], value))
        self._go_to(Position(state["epoch"], state["sample"]))

    def close(self) -> None:
        """End the loader processes. The next iteration starts new ones."""
        source, self._source = self._source, None
        if source is not None:
            source.close()

    def _go_to(self, start: Position) -> None:
        self.close()
        self._batches = self._make(start=start)
        self._begun = self._reached = start
        self._owner = _thread()

    def _begin(self) -> Iterator[Any]:
        """Begin to read batch after batch, over the ends of epochs."""
        if not self.num_workers:
            return (self._batches.read(number) for number in itertools.count())
        split = self._batches.split
        shape = (self._batches.batch_size,) + split.shape
        return self._read(Loaders(self._batches, ENDLESS, self.num_workers, shape, split.dtype, self.start_method))

    def _read(self, loaders: Loaders) -> Iterator[Any]:
        return loaders.batches()

    def _deliver(self, images: np.ndarray, labels: np.ndarray, _tokens: int = 0) -> Any:
        return (images, labels) if images.ndim > 2 else inputs_and_targets(images)


def _thread() -> Tuple[int, threading.Thread]:
    """Return this thread. Loader processes are of the thread that has forked them, and end with it."""
    return os.getpid(), threading.current_thread()
