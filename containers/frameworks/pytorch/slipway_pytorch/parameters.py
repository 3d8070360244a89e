"""A file of parameters in the safetensors format: 8 bytes length, a JSON header, the numbers. Canonical layout: OIHW, (out, in).

Written here in twenty lines, because images of this framework need not have the safetensors package.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

FILE_NAME = "parameters.safetensors"
ALIGNMENT = 8


def save_parameters(path: Path, state: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> int:
    """Write all of `state` as float32 and make it durable; the bytes written."""
    arrays = {name: value.detach().to("cpu", torch.float32).contiguous().numpy() for name, value in sorted(state.items())}
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
        end += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for array in arrays.values():
            file.write(array.data)
        file.flush()
        os.fsync(file.fileno())
    return 8 + len(text) + end


def load_parameters(path: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Copy the numbers of the file into `state`. Raises ValueError when names or shapes differ."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        numbers = np.frombuffer(bytearray(file.read()), dtype="<f4")
    header.pop("__metadata__", None)
    shapes = {name: list(value.shape) for name, value in state.items()}
    if shapes != {name: entry["shape"] for name, entry in header.items()}:
        raise ValueError(f"{path} holds parameters of another network: names or shapes differ from the model's")
    for name, value in state.items():
        first, end = (offset // 4 for offset in header[name]["data_offsets"])
        value.copy_(torch.from_numpy(numbers[first:end].reshape(shapes[name])))
