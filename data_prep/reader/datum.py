"""Encode and parse the value of a sample in LMDB, and decode its image: Caffe's Datum, a protocol buffer, without copying the pixels.

message Datum { int32 channels=1, height=2, width=3; bytes data=4; int32 label=5; repeated float float_data=6; bool encoded=7; }
Raw images hold channels * height * width bytes in `data`; encoded ones a whole JPEG or PNG file. `float_data` is refused.
"""

import functools
import importlib
import io
from typing import Any, Callable, NamedTuple, Optional, Tuple, Union

import numpy as np

from .errors import DatumError, DecodeError

Buffer = Union[bytes, bytearray, memoryview]

MAX_FIELDS = 1000
_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _ENCODED = 0x08, 0x10, 0x18, 0x22, 0x28, 0x38  # field number << 3 | wire type


class Datum(NamedTuple):
    """A sample. `data` points into the value that it was parsed from, and is valid as long as that."""

    channels: int
    height: int
    width: int
    data: memoryview
    label: int
    encoded: bool


def encode_parts(
    channels: int, height: int, width: int, data: Buffer, label: int, encoded: bool = False
) -> Tuple[bytes, memoryview, bytes]:
    """Return what a Datum begins with, its data, and what it ends with. The fields come in protobuf's own order, so that a sample has only
    one encoding. Raises DatumError where a raw image is not channels * height * width bytes, or a number does not fit an int32."""
    view = memoryview(data)
    size = view.nbytes
    if not encoded and size != channels * height * width:
        raise DatumError("a raw image of %d x %d x %d has %d bytes, not %d" % (channels, height, width, channels * height * width, size))
    head = b"\x08" + _varint(channels) + b"\x10" + _varint(height) + b"\x18" + _varint(width) + b"\x22" + _varint(size)
    tail = b"\x28" + _varint(label) + (b"\x38\x01" if encoded else b"")
    return head, view, tail


def parse(value: Buffer) -> Datum:
    """Read a Datum; about 2 us. Unknown fields are skipped, as protobuf asks. Raises DatumError for anything torn or inconsistent."""
    view = memoryview(value)
    end = len(view)
    numbers = {_CHANNELS: 0, _HEIGHT: 0, _WIDTH: 0, _LABEL: 0, _ENCODED: 0}
    data = view[:0]
    at = 0
    try:
        for _ in range(MAX_FIELDS):
            if at >= end:
                break
            tag = view[at]
            if tag in numbers:
                number = view[at + 1]
                at += 2
                if number > 127:
                    number, at = _long(view, at - 1)
                numbers[tag] = number
            elif tag == _DATA:
                size, start = _long(view, at + 1)
                at = start + size
                data = view[start:at]
            else:
                at = _after_unknown(view, at)
    except IndexError:
        at = end + 1
    if at < end:
        raise DatumError("it has more than %d fields: this is no Datum" % MAX_FIELDS)
    if at != end:
        raise DatumError("the value ends in the middle of a field: this is no whole Datum")
    channels, height, width = _int32(numbers[_CHANNELS]), _int32(numbers[_HEIGHT]), _int32(numbers[_WIDTH])
    encoded = numbers[_ENCODED] != 0
    if not encoded and (min(channels, height, width) < 0 or len(data) != channels * height * width):
        raise DatumError("a raw image of %d x %d x %d comes with %d bytes" % (channels, height, width, len(data)))
    return Datum(channels, height, width, data, _int32(numbers[_LABEL]), encoded)


def _after_unknown(view: memoryview, at: int) -> int:
    tag, at = _long(view, at)
    field, kind = tag >> 3, tag & 7
    if field == 6:
        raise DatumError("it holds float_data, which is not an image of bytes")
    if field == 0 or kind not in (0, 1, 2, 5):
        raise DatumError("field %d of wire type %d: this is no Datum" % (field, kind))
    if kind == 1:
        return at + 8
    if kind == 5:
        return at + 4
    number, at = _long(view, at)
    return at + number if kind == 2 else at


def _long(view: memoryview, at: int) -> Tuple[int, int]:
    """Parse the varint at `at`, of 1 to 10 bytes, and return its end too. Raises IndexError past the end."""
    number = shift = 0
    while shift < 70:
        byte = view[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    raise DatumError("a number of more than ten bytes: this is no Datum")


def _int32(number: int) -> int:
    """Convert a varint to int32. Negative ones travel as 64 bits in two's complement."""
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number >= 1 << 31 else number


@functools.lru_cache(maxsize=1024)
def _varint(number: int) -> bytes:
    if not -(1 << 31) <= number < 1 << 31:
        raise DatumError("%d does not fit an int32" % number)
    number &= (1 << 64) - 1
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    groups.append(number)
    return bytes(groups)


# Decode images to uint8 HWC, RGB or grey, with whichever decoder is installed: simplejpeg (fastest) or Pillow.


Decoder = Callable[[Any, Buffer, int, Optional[np.ndarray]], np.ndarray]
Candidate = Tuple[str, Decoder]


def _simplejpeg(module: Any, data: Buffer, channels: int, out: Optional[np.ndarray]) -> np.ndarray:
    colorspace = "RGB" if channels == 3 else "GRAY"
    if out is None:
        return module.decode_jpeg(data, colorspace=colorspace)
    image = module.decode_jpeg(data, colorspace=colorspace, buffer=out)
    return out if image.shape == out.shape else image


def _pillow(module: Any, data: Buffer, channels: int, _: Optional[np.ndarray]) -> np.ndarray:
    with module.open(io.BytesIO(data)) as image:
        pixels = np.asarray(image.convert("RGB" if channels == 3 else "L"))
    return pixels if channels == 3 else pixels[:, :, np.newaxis]


CANDIDATES: Tuple[Candidate, ...] = (("simplejpeg", _simplejpeg), ("PIL.Image", _pillow))


def decode(data: Buffer, channels: int, candidates: Tuple[Candidate, ...] = CANDIDATES, out: Optional[np.ndarray] = None) -> np.ndarray:
    """Decode `data` to uint8 (height, width, channels), with 1 or 3 channels; into `out`, and return that, where the decoder can do so and
    the image has its shape.

    A decoder that refuses (simplejpeg knows no PNG and no CMYK) passes the image on to the next. EXIF orientation is not applied: what the
    build measured is what the program gets. Raises DecodeError with the reason of the last decoder.
    """
    reason = "no decoder: install simplejpeg or Pillow"
    for name, decoder in candidates:
        try:
            if _installed(name) is not None:
                return decoder(_installed(name), data, channels, out)
        except Exception as error:  # each library has its own exceptions, and a damaged file can raise any of them
            reason = "%s: %s" % (name, error)
    raise DecodeError(reason)


@functools.lru_cache(maxsize=None)
def _installed(name: str) -> Any:
    """Import a decoder when the first image needs it: to import all takes longer than to decode a hundred images. None: there is none."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None
