"""A file of parameters in the safetensors format. Canonical layout: OIHW, (out, in)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from .tensors import read_tensors, write_tensors

FILE_NAME = "parameters.safetensors"


def save_parameters(path: Path, state: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> int:
    """Write all of `state` as float32 and make it durable; the bytes written."""
    arrays = {name: value.detach().to("cpu", torch.float32).contiguous().numpy() for name, value in sorted(state.items())}
    return write_tensors(path, arrays, metadata)


def load_parameters(path: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Copy the numbers of the file into `state`. Raises ValueError when names or shapes differ."""
    arrays, _ = read_tensors(path)
    if {name: list(value.shape) for name, value in state.items()} != {name: list(array.shape) for name, array in arrays.items()}:
        raise ValueError(f"{path} holds parameters of another network: names or shapes differ from the model's")
    for name, value in state.items():
        value.copy_(torch.from_numpy(arrays[name]))
