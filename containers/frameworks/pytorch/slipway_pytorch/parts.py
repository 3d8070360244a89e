"""Tensors that may lie in parts on all ranks, as whole ones. Imports nothing of what FSDP2 needs: without it none is in parts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """All of it, detached; where it is in parts all ranks have to ask for it."""
    found: torch.Tensor = tensor.detach()
    return found.full_tensor() if hasattr(found, "full_tensor") else found


def gathered(tensors: Iterable[tuple[str, torch.Tensor]], *, keep: bool) -> dict[str, np.ndarray]:
    """All of them, whole, where `keep` says so; other ranks only give their parts. One after the other, so that no rank has two at once."""
    found = {}
    for name, tensor in tensors:
        value = whole(tensor)
        if keep:
            found[name] = value.cpu().contiguous().numpy()
    return found


def fill(tensor: torch.Tensor, array: np.ndarray) -> None:
    """Take the numbers over: of a tensor in parts each rank its own, from an array that all have."""
    value: Any = torch.from_numpy(array)
    if hasattr(tensor, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)
    tensor.copy_(value)
