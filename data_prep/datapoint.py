"""Parse a datapoint of tensorpack's LMDBSerializer, a list of image and label in msgpack.

Arrays and numbers of numpy are mappings there, as msgpack_numpy writes them: `nd`, `type`, `kind`, `shape`, `data`. Only arrays of unsigned
bytes and whole numbers are known; a file cannot ask for anything else.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
MAX_SIDE: Final = 1 << 28
MAX_SIDES: Final = 4
MAX_LABEL: Final = 200
_LISTS: Final = (*range(0x90, 0xA0), 0xDC, 0xDD)
"""The first byte of a list in msgpack; the last two have its length behind them, in 2 and 4 bytes."""
_WHOLE: Final = frozenset(f"{order}{kind}{size}" for order in "<|>=" for kind in "iu" for size in (1, 2, 4, 8))


class DatapointError(ValueError):
    """The value is no datapoint of an image. The message says what it is instead."""


class Datapoint(NamedTuple):
    """A datapoint. `image` is a file, or pixels (H, W)."""

    image: bytes | Pixels
    label: str


def parse_datapoint(value: memoryview) -> Datapoint:
    """Parse a datapoint. Raises DatapointError."""
    if not len(value) or value[0] not in _LISTS:
        raise DatapointError("no list in msgpack, which TENSORPACK_SERIALIZE=msgpack writes; values of pyarrow or pickle are not read")
    try:
        found = msgspec.msgpack.decode(value)
    except (msgspec.DecodeError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise DatapointError(f"damaged msgpack: {str(error) or 'it takes too much memory'}") from error
    if len(found) != 2:
        raise DatapointError("not a list of image and label")
    return Datapoint(_image(found[0]), _label(found[1]))


def number_of_keys(value: memoryview) -> int | None:
    """Count the keys that the entry `__keys__` lists. The result is None where it is no list in msgpack."""
    if not len(value) or value[0] not in _LISTS:
        return None
    size = {0xDC: 2, 0xDD: 4}.get(value[0], 0)
    if len(value) <= size:
        return None
    return int.from_bytes(value[1 : 1 + size], "big") if size else value[0] & 0xF


def _numpy(value: Any) -> dict[str, object]:
    """Return the mapping of an array or number by name; empty for anything else."""
    if not isinstance(value, dict):
        return {}
    return {_text(key): item for key, item in value.items()}


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else ""


def _image(value: Any) -> bytes | Pixels:
    if isinstance(value, bytes):
        return value
    array = _numpy(value)
    if array.get("nd") is not True:
        raise DatapointError("its first component is no image: neither bytes nor an array")
    shape, data = array.get("shape"), array.get("data")
    if _text(array.get("type")) not in ("|u1", "u1") or not isinstance(shape, list) or not isinstance(data, bytes):
        raise DatapointError("an array of something else than unsigned bytes")
    if not all(type(side) is int and 0 < side <= MAX_SIDE for side in shape[: MAX_SIDES + 1]):
        raise DatapointError("an array whose shape is not of whole numbers above 0")
    if len(shape) > MAX_SIDES or math.prod(shape) != len(data):
        raise DatapointError(f"an array of shape {shape[: MAX_SIDES + 1]} with {len(data)} bytes")
    if len(shape) == 1:
        return data  # the bytes of a file
    if len(shape) == 2 or (len(shape) == 3 and shape[2] == 1):
        return np.frombuffer(data, np.uint8).reshape(shape[:2])
    raise DatapointError("pixels of several channels, of which nothing says whether they are RGB or BGR; write encoded images")


def _label(value: Any) -> str:
    if type(value) is int:
        return str(value)
    if isinstance(value, str | bytes) and 0 < len(value) <= MAX_LABEL:
        try:
            return value.decode() if isinstance(value, bytes) else value
        except UnicodeDecodeError as error:
            raise DatapointError("its label is no UTF-8") from error
    number = _numpy(value)
    if number.get("nd") is False and (kind := _text(number.get("type"))) in _WHOLE:
        data = number.get("data")
        if isinstance(data, bytes) and len(data) == np.dtype(kind).itemsize:
            return str(int(np.frombuffer(data, kind)[0]))
    raise DatapointError("its label is neither a whole number nor a word")
