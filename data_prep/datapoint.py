"""Parse a datapoint of tensorpack's LMDBSerializer, a list of image and label in msgpack, without making objects of what it names.

Arrays and numbers of numpy are mappings there, as msgpack_numpy writes them: `nd`, `type`, `kind`, `shape`, `data`. Only arrays of unsigned
bytes and whole numbers are known; a file cannot ask for anything else.
"""

from __future__ import annotations

import math
import struct
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
MAX_DEPTH: Final = 4
MAX_SIDE: Final = 1 << 28
MAX_ENTRIES: Final = 64
"""The limit of the entries of a list or a mapping. An array of two dimensions has 5."""
MAX_LABEL: Final = 200
_LENGTHS: Final = {0xC4: ">B", 0xC5: ">H", 0xC6: ">I", 0xD9: ">B", 0xDA: ">H", 0xDB: ">I", 0xDC: ">H", 0xDD: ">I", 0xDE: ">H", 0xDF: ">I"}
_NUMBERS: Final = {
    **{0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"},
    **{0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q"},
}
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}
_WHOLE: Final = frozenset(f"{order}{kind}{size}" for order in "<|>=" for kind in "iu" for size in (1, 2, 4, 8))


class DatapointError(ValueError):
    """The value is no datapoint of an image. The message says what it is instead."""


class Datapoint(NamedTuple):
    """A datapoint. `image` is a file, or pixels (H, W)."""

    image: memoryview | Pixels
    label: str


def parse_datapoint(value: memoryview) -> Datapoint:
    """Parse a datapoint. Raises DatapointError."""
    kind = value[0] if len(value) else 0
    if kind >> 4 != 0x9 and kind not in (0xDC, 0xDD):
        raise DatapointError("no list in msgpack, which TENSORPACK_SERIALIZE=msgpack writes; values of pyarrow or pickle are not read")
    try:
        reader = _Reader(value)
        found = reader.read(0)
    except (struct.error, ValueError, IndexError) as error:
        raise DatapointError(f"damaged msgpack: {error}") from error
    if reader.at != len(value):
        raise DatapointError("damaged msgpack: more bytes behind its end")
    if not isinstance(found, list) or len(found) != 2:
        raise DatapointError("not a list of image and label")
    return Datapoint(_image(found[0]), _label(found[1]))


def number_of_keys(value: memoryview) -> int | None:
    """Count the keys that the entry `__keys__` lists. The result is None where it is no list in msgpack."""
    kind = value[0] if len(value) else 0
    if kind >> 4 == 0x9:
        return kind & 0xF
    size = struct.calcsize(_LENGTHS[kind]) if kind in (0xDC, 0xDD) else 0
    return int(struct.unpack(_LENGTHS[kind], value[1 : 1 + size])[0]) if size and len(value) > size else None


class _Reader:
    """A reader of msgpack whose text and bytes are views of the value: nothing is copied, and a length beyond the end fails before anything
    is made.
    """

    def __init__(self, value: memoryview) -> None:
        self.value, self.at = value, 0

    def read(self, depth: int) -> Any:
        kind = self._take(1)[0]
        if kind <= 0x7F or kind >= 0xE0:
            return kind if kind <= 0x7F else kind - 0x100
        if kind in _CONSTANTS:
            return _CONSTANTS[kind]
        if kind in _NUMBERS:
            return self._unpacked(_NUMBERS[kind])
        if 0xA0 <= kind <= 0xBF:
            return self._take(kind & 0x1F)
        if kind not in _LENGTHS and kind > 0x9F:
            raise ValueError(f"a value of kind {kind:#04x}, which is no data of an image")
        length = int(self._unpacked(_LENGTHS[kind])) if kind in _LENGTHS else kind & 0xF
        if kind in (0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB):
            return self._take(length)
        if length > MAX_ENTRIES or depth >= MAX_DEPTH:
            raise ValueError("more in it, or deeper, than an image and its label are")
        if kind in (0xDE, 0xDF) or kind >> 4 == 0x8:
            return dict((_word(self.read(MAX_DEPTH)), self.read(depth + 1)) for _ in range(length))
        return [self.read(depth + 1) for _ in range(length)]

    def _take(self, length: int) -> memoryview:
        if length > len(self.value) - self.at:
            raise ValueError(f"it ends after {len(self.value)} bytes")
        self.at += length
        return self.value[self.at - length : self.at]

    def _unpacked(self, form: str) -> Any:
        return struct.unpack(form, self._take(struct.calcsize(form)))[0]


def _word(key: Any) -> str:
    if not isinstance(key, memoryview) or len(key) > MAX_LABEL:
        raise ValueError("a mapping whose keys are no words")
    return bytes(key).decode("latin-1")


def _text(value: Any) -> str:
    return bytes(value).decode("latin-1") if isinstance(value, memoryview) else ""


def _image(value: Any) -> memoryview | Pixels:
    if isinstance(value, memoryview):
        return value
    if not isinstance(value, dict) or value.get("nd") is not True:
        raise DatapointError("its first component is no image: neither bytes nor an array")
    shape, data = value.get("shape"), value.get("data")
    if _text(value.get("type")) not in ("|u1", "u1") or not isinstance(shape, list) or not isinstance(data, memoryview):
        raise DatapointError("an array of something else than unsigned bytes")
    if not all(type(side) is int for side in shape):  # never shown: views say where they lie, which is another place each time
        raise DatapointError("an array whose shape is not of whole numbers")
    if not all(0 < side <= MAX_SIDE for side in shape) or math.prod(shape) != len(data):
        raise DatapointError(f"an array of shape {shape} with {len(data)} bytes")
    if len(shape) == 1:
        return data  # the bytes of a file
    if len(shape) == 2 or (len(shape) == 3 and shape[2] == 1):
        return np.frombuffer(data, np.uint8).reshape(shape[:2])
    raise DatapointError("pixels of several channels, of which nothing says whether they are RGB or BGR; write encoded images")


def _label(value: Any) -> str:
    if type(value) is int:
        return str(value)
    if isinstance(value, memoryview) and 0 < len(value) <= MAX_LABEL:
        try:
            return bytes(value).decode()
        except UnicodeDecodeError as error:
            raise DatapointError("its label is no UTF-8") from error
    if isinstance(value, dict) and value.get("nd") is False and (kind := _text(value.get("type"))) in _WHOLE:
        data = value.get("data")
        if isinstance(data, memoryview) and len(data) == np.dtype(kind).itemsize:
            return str(int(np.frombuffer(data, kind)[0]))
    raise DatapointError("its label is neither a whole number nor a word")
