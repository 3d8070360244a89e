"""Give the samples of a dataset to PyTorch: batches of loader processes, or whole batches and single samples for its DataLoader."""

import contextlib
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

import numpy as np
import torch
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import get_worker_info

from . import batches
from .loaders import Loaders, Slot
from .sequences import inputs_and_targets

Tensors = Tuple[torch.Tensor, torch.Tensor]


class Loader(batches.Loader):
    """The batches of one rank, epoch after epoch, read in loader processes: images uint8 (batch, height, width, channels), labels int64; of
    token ids inputs and targets, int64 (batch, length) both.

    Rank and world size are those of torch.distributed, where it is initialised. With a CUDA `device` batches are copied there from pinned
    memory, without waiting. Other options are those of slipway_reader.Loader.
    """

    def __init__(  # noqa: PLR0913
        self,
        split: Any,
        batch_size: int,
        seed: int = 0,
        rank: Optional[int] = None,
        world_size: Optional[int] = None,
        device: Any = "cpu",
        **options: Any,
    ) -> None:
        joined = torch.distributed.is_available() and torch.distributed.is_initialized()
        self.device = torch.device(device)
        rank = (torch.distributed.get_rank() if joined else 0) if rank is None else rank
        world_size = (torch.distributed.get_world_size() if joined else 1) if world_size is None else world_size
        super().__init__(split, batch_size, seed, rank, world_size, **options)

    def _read(self, loaders: Loaders) -> Iterator[Any]:
        return pinned(loaders)

    def _deliver(self, images: np.ndarray, labels: np.ndarray, _tokens: int = 0) -> Tensors:
        found = to_device(torch.from_numpy(images), self.device)
        return (found, to_device(torch.from_numpy(labels), self.device)) if found.dim() > 2 else inputs_and_targets(found.long())


class Batches(batches.Batches, TorchDataset):
    """The batches of one rank by their number, as tensors. Give it to a DataLoader with `batch_size=None`."""

    _last: Optional[int] = None

    def __getitem__(self, number: int) -> Tensors:
        if self._last is not None and number > self._last:  # this process is asked next for one as much further on
            self.read_ahead(number, 2 * number - self._last)
        self._last = number
        if len(self.split.shape) == 1:
            return inputs_and_targets(torch.from_numpy(self.read(number)[0]).long())
        images = _empty((len(self.samples(number)),) + self.split.shape)
        return images, torch.from_numpy(self.read(number, images.numpy())[1])


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


# Slots of loader processes whose memory is registered with CUDA: the GPU copies from there, without another copy in between. A slot is
# registered when it is first copied. Where CUDA refuses one, no other is tried.


_slots: Dict[int, Slot] = {}
_registered: Set[int] = set()
_refused: List[int] = []


def pinned(loaders: Loaders) -> Iterator[Tuple[np.ndarray, np.ndarray, int]]:
    """Yield images, labels and tokens of each batch; `to_device` copies from their slots as they are."""
    addresses = {address: slot for slot in loaders.slots for address in slot.addresses}
    _slots.update(addresses)
    try:
        with contextlib.closing(loaders.batches()) as found:
            yield from found
    finally:
        for address in addresses:
            del _slots[address]
            if address in _registered:
                _registered.remove(address)
                torch.cuda.cudart().cudaHostUnregister(address)


def to_device(batch: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return the batch on `device`, without waiting for the GPU. One that lies in no slot goes through pinned memory of PyTorch's
    allocator, which knows when the copy is done."""
    if device.type == "cpu":
        return batch
    slot = _slots.get(batch.data_ptr())
    if slot is None or not batch.is_contiguous() or not _register(slot, device):
        return batch.pin_memory().to(device, non_blocking=True)
    copied = batch.to(device, non_blocking=True)
    slot.copies.append(torch.cuda.current_stream(device).record_event())
    return copied


def _register(slot: Slot, device: torch.device) -> bool:
    address = slot.addresses[0]
    if address not in _registered and not _refused:
        if int(torch.cuda.cudart().cudaHostRegister(address, slot.bytes, 0)) == 0:
            _registered.add(address)
        else:
            _refused.append(address)
            with contextlib.suppress(RuntimeError):  # CUDA would blame the next kernel for this refusal: let it be one that does nothing
                torch.zeros(1, device=device)
    return address in _registered


def _empty(shape: Tuple[int, ...]) -> torch.Tensor:
    """Return memory for a batch. A worker takes it where the other process can see it, so that nothing is copied to get there."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    one = torch.empty(0, dtype=torch.uint8)
    storage = one._typed_storage() if hasattr(one, "_typed_storage") else one.storage()  # as torch's default_collate
    return one.new(storage._new_shared(int(np.prod(shape)))).resize_(*shape)
