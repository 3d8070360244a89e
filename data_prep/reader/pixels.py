"""Copy windows of images into a batch, by the compiled pixels.c where it can be loaded, or else by numpy: byte for byte the same."""

import ctypes
import os
import struct
import zlib
from pathlib import Path
from typing import Any, List, NamedTuple, Sequence, Tuple

import numpy as np


class Form(NamedTuple):
    """The sizes of an image and of a window, and how pixels lie in a raw value: in rows, or in planes, as Caffe has them."""

    height: int
    width: int
    channels: int
    planes: int
    rows: int
    columns: int


class Values(List[memoryview]):
    """Values, and the address and the length of each, int64 (2, len)."""

    def __init__(self, values: Sequence[memoryview], addresses: Sequence[int]) -> None:
        super().__init__(values)
        self.places = np.array([addresses, [len(value) for value in values]], np.int64)


def load(path: str) -> Any:
    """Return the library, or why there is none, as text. It may be for other processors, cut, of another version, or was never compiled.
    The reason has no directory, so that it is the same on every node."""
    name = Path(path).name
    try:
        with open(path, "rb") as file:
            sections, size, count = struct.unpack_from("=Q10xHH", file.read(64), 40)  # of the table at the end of an ELF file
            if os.fstat(file.fileno()).st_size < sections + size * count:
                raise struct.error
        library = ctypes.CDLL(path)
        library.slipway_source.restype = ctypes.c_uint32
        source = Path(path).with_name("pixels.c")
        if source.exists() and library.slipway_source() != zlib.crc32(source.read_bytes()) & 0xFFFFFFFF:
            return "%s was not compiled from the pixels.c beside it" % name
        library.slipway_copy_raw.restype = library.slipway_copy_window.restype = library.slipway_add_sums.restype = None
        library.slipway_copy_raw.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] + [ctypes.c_void_p] * 4
        library.slipway_copy_window.argtypes = [ctypes.c_void_p] * 4
        library.slipway_jpeg_scans.argtypes, library.slipway_jpeg_scans.restype = [ctypes.c_char_p, ctypes.c_int64], ctypes.c_int64
        library.slipway_add_sums.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        return library
    except struct.error:
        return "%s: it is cut, or no library" % name
    except (OSError, AttributeError) as error:
        return str(error).replace(path, name)


library = load(str(Path(__file__).with_name("libpixels.so")))  # type: Any


def copies_by() -> str:
    """Return what copies pixels in this process: `compiled`, or `numpy` with the reason."""
    return "numpy (%s)" % library if isinstance(library, str) else "compiled"


def copy_raw(values: Values, form: Form, windows: np.ndarray, out: np.ndarray, labels: np.ndarray) -> Sequence[Tuple[int, int, int]]:
    """Copy from each value that is a raw Datum of this form its window to `out` and its label to `labels`, in one call that holds no lock
    of the interpreter. Return the numbers of the values that are left: all where nothing is compiled; and where in an encoded Datum of this
    form, whose label is there, its file begins and ends, or 0 and -1."""
    if isinstance(library, str) or not out.flags.c_contiguous:
        return [(number, 0, -1) for number in range(len(values))]
    left = np.zeros((len(values), 2), np.int64)
    if len(values):
        addresses, sizes = values.places
        arrays = np.array(form, np.int64), windows, labels, left  # kept until the call ends
        library.slipway_copy_raw(address_of(out), address_of(addresses), address_of(sizes), len(values), *map(address_of, arrays))
    return [(number, start, end) for number, (start, end) in enumerate(left.tolist()) if end]


def copy_window(image: np.ndarray, window: np.ndarray, out: np.ndarray) -> None:
    """Copy a window of an image, uint8 (height, width, channels), to `out`, uint8 (rows, columns, channels)."""
    if isinstance(library, str) or not (out.flags.c_contiguous and image.flags.c_contiguous and image.flags.writeable):
        _copy_window(image, window, out)
    else:
        numbers = (ctypes.c_int64 * 6)(*image.shape, 0, *out.shape[:2])
        library.slipway_copy_window(address_of(out), address_of(image), numbers, address_of(window))


def add_sums(image: np.ndarray, totals: np.ndarray) -> None:
    """Add each channel of an image, uint8 (height, width, 1 or 3), to totals[0], and its squares to totals[1], uint64 (2, channels)."""
    rows, channels = np.ascontiguousarray(image).reshape(len(image), -1), image.shape[2]
    if not isinstance(library, str):
        library.slipway_add_sums(rows.ctypes.data, rows.size // channels, channels, address_of(totals))
        return
    step = min(65000, max(1, (1 << 20) // rows.shape[1]))  # so many squares fit 32 bits, and a cache
    for start in range(0, len(rows), step):
        values = rows[start : start + step]
        for total, columns in zip(totals, (values, values.astype(np.uint16) ** 2)):  # noqa: B905 - Python 3.6 knows no `strict`
            total += columns.sum(axis=0, dtype=np.uint32).reshape(-1, channels).sum(axis=0, dtype=np.uint64)


def address_of(array: Any) -> int:
    """Return where the first byte of an array lies that may be written. To ask numpy takes twenty times as long."""
    return ctypes.addressof(ctypes.c_char.from_buffer(array))


def _copy_window(image: np.ndarray, window: np.ndarray, out: np.ndarray) -> None:
    row, column, mirrored = window.tolist()
    rows, columns = out.shape[:2]
    part = image[max(0, row) : max(0, row + rows), max(0, column) : max(0, column + columns)]
    if part.shape != out.shape:
        out[...] = 0
    top, left = max(0, -row), max(0, -column)
    if mirrored:
        left, part = columns - left - part.shape[1], part[:, ::-1]
    target = out[top : top + part.shape[0], left : left + part.shape[1]]
    for channel in range(out.shape[2]) if mirrored else (slice(None),):  # all in one takes ten times as long
        target[:, :, channel] = part[:, :, channel]
