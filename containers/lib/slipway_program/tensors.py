"""Files in the safetensors format: 8 bytes length, a JSON header, the numbers.

Written here in a few lines, because images of this framework need not have the safetensors package.
"""

import json
import os
import struct
from pathlib import Path
from typing import Any, Dict, Mapping, Tuple

import numpy as np

ALIGNMENT = 8
MAX_HEADER_BYTES = 100 << 20
TYPES = {"float32": "F32", "float64": "F64", "float16": "F16", "int64": "I64", "int32": "I32", "uint8": "U8", "bool": "BOOL"}
_NUMPY = {word: np.dtype(name) for name, word in TYPES.items()}


def write_tensors(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> int:
    """Write all of `arrays`, C-contiguous, and make it durable; the bytes written."""
    header: Dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, array in arrays.items():
        header[name] = {"dtype": TYPES[array.dtype.name], "shape": list(array.shape), "data_offsets": [end, end + array.nbytes]}
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


def read_tensors(path: Path) -> Tuple[Dict[str, np.ndarray], Dict[str, str]]:
    """(the tensors by name, the metadata) of a file. Raises ValueError for a file that is not whole, OSError."""
    content = bytearray(path.read_bytes())
    try:
        (length,) = struct.unpack_from("<Q", content)
        header: Dict[str, Any] = json.loads(bytes(content[8 : 8 + length]))
        metadata = header.pop("__metadata__", {})
        arrays = {name: _array(content, 8 + length, entry) for name, entry in header.items()}
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (struct.error, ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path} is no whole safetensors file: {error}") from error
    if len(content) != 8 + length + end:
        raise ValueError(f"{path} is no whole safetensors file: {len(content)} bytes, of {8 + length + end} that its header promises")
    return arrays, metadata


def read_metadata(path: Path) -> Dict[str, str]:
    """The metadata alone. Raises ValueError for a file that is not whole, OSError."""
    with path.open("rb") as file:
        try:
            (length,) = struct.unpack("<Q", file.read(8))
            metadata: Dict[str, str] = json.loads(file.read(min(length, MAX_HEADER_BYTES)))["__metadata__"]
        except (struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"{path} is no whole safetensors file: {error}") from error
    return metadata


def _array(content: bytearray, base: int, entry: Mapping[str, Any]) -> np.ndarray:
    dtype = _NUMPY[entry["dtype"]]
    first, end = entry["data_offsets"]
    array: np.ndarray = np.frombuffer(content, dtype, (end - first) // dtype.itemsize, base + first).reshape(entry["shape"])
    if first < 0 or array.nbytes != end - first or list(array.shape) != entry["shape"]:
        raise ValueError("a tensor of the shape %s has the offsets %d and %d" % (entry["shape"], first, end))
    return array
