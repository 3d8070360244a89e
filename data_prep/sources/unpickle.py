"""Read the pickles of CIFAR's python version in a process of its own, whose memory and time are limited.

`python -m data_prep.sources.unpickle PATH OFFSET BYTES RECORDS` prints one JSON line: {"records": n} of a batch, whose labels and pixels
it writes to RECORDS; {"names": [...]} of the file with the names of classes; {"error": "what else it is"}. Nothing that a pickle names is
called: the few functions of numpy that batches name are replaced by those of this module, all others are refused.
"""

import io
import math
import pickle
import resource
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from base.jsonfile import json_line
from data_prep import free_space, limits
from data_prep.sources.naming import printable
from data_prep.sources.spool import write_scratch
from data_prep.sources.types import Pixels

PIXEL_BYTES: Final = 3 * 32 * 32
MEMORY_BYTES: Final = 512 << 20
MAX_NAMES_BYTES: Final = 1 << 20
_DAMAGED: Final = (pickle.UnpicklingError, ValueError, TypeError, LookupError, AttributeError, EOFError, OverflowError, ImportError)


class UnsafePickle(ValueError):
    """The pickle asks for something that is not data, or is damaged."""


class _Type:
    """A type of numpy, of which arrays have only one here."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __setstate__(self, _state: Any) -> None:
        """Accept the byte order and the like, which bytes do not have."""


class _Array:
    """An array whose content and shape pickle sets after it is made."""

    content: bytes | None = None
    shape: Any = ()

    def __setstate__(self, state: Any) -> None:
        _, self.shape, kind, fortran, content = state
        if fortran:
            raise UnsafePickle("an array in Fortran order")
        self.content = _array_bytes(content, kind)

    def pixels(self) -> Pixels:
        """Return the array. Raises UnsafePickle where shape and content do not fit."""
        shape = self.shape
        if self.content is None or type(shape) is not tuple or len(shape) > 4 or not all(type(side) is int and side >= 0 for side in shape):
            raise UnsafePickle(f"an array of shape {shape!r}")
        if math.prod(shape) != len(self.content):
            raise UnsafePickle(f"an array of shape {shape} with {len(self.content)} bytes")
        return np.frombuffer(self.content, np.uint8).reshape(shape)


def _array_bytes(content: Any, kind: Any) -> bytes:
    if not isinstance(kind, _Type) or kind.code not in ("u1", "|u1"):
        raise UnsafePickle(f"an array of {getattr(kind, 'code', kind)!r}; only unsigned bytes are images")
    return content.encode("latin-1") if isinstance(content, str) else bytes(memoryview(content))


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise UnsafePickle(f"an encoding {encoding!r}")
    return text.encode("latin-1")


def _from_buffer(content: Any, kind: Any, shape: Any, order: str) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, kind, order != "C", content))
    return array


_GLOBALS: Final[Mapping[str, Callable[..., Any] | str]] = {
    "_codecs encode": _encode,
    "numpy ndarray": "ndarray",
    "numpy dtype": lambda code, *_: _Type(_text(code)),
    **{f"{module}.multiarray _reconstruct": lambda *_: _Array() for module in ("numpy.core", "numpy._core")},
    **{f"{module}.numeric _frombuffer": _from_buffer for module in ("numpy.core", "numpy._core")},
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        try:
            return _GLOBALS[f"{module} {name}"]
        except KeyError:
            raise UnsafePickle(f"it asks for '{printable(f'{module} {name}')}', which is not data") from None


def loads(content: bytes) -> dict[str, object]:
    """Read the dict in a pickle of any protocol; arrays of unsigned bytes in it become numpy arrays. Raises UnsafePickle; what takes
    too much memory or time, or kills its reader, is for the caller to bear."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about escapes in old text pickles
            found = _Unpickler(io.BytesIO(content), encoding="latin-1").load()
            if type(found) is not dict:
                raise UnsafePickle(f"a {type(found).__name__} and not a dict")
            return {_text(key): value.pixels() if isinstance(value, _Array) else value for key, value in found.items()}
    except UnsafePickle:
        raise
    except (*_DAMAGED, RecursionError, MemoryError) as error:
        raise UnsafePickle(f"damaged: {type(error).__name__}: {printable(str(error))}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str | bytes):
        raise UnsafePickle(f"damaged: a {type(value).__name__} where a word belongs")
    return value.decode("latin-1") if isinstance(value, bytes) else value


def converted(content: bytes, records: Path) -> dict[str, object]:
    """Convert a pickle of CIFAR to the answer of this program, and a batch to records of label and pixels."""
    batch = loads(content)
    names = batch.get("label_names", batch.get("fine_label_names"))
    if isinstance(names, list) and "data" not in batch:
        texts = [printable(name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)) for name in names]
        long = sum(map(len, texts)) > MAX_NAMES_BYTES
        return {"error": f"holds names of classes of more than {MAX_NAMES_BYTES} bytes"} if long else {"names": texts}
    pixels, labels = batch.get("data"), batch.get("labels", batch.get("fine_labels"))
    if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != PIXEL_BYTES or not isinstance(labels, list):
        return {"error": f"holds no data of shape (n, {PIXEL_BYTES}) with labels: this is no batch of CIFAR"}
    if len(labels) != len(pixels) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        return {"error": f"holds {len(pixels)} images and {len(labels)} labels of 0 to 255: they do not fit"}
    write_scratch(records, [np.concatenate([np.array(labels, np.uint8)[:, None], pixels], axis=1).tobytes()])
    return {"records": len(labels)}


def main(argv: list[str]) -> int:
    """Convert one pickle."""
    path, offset, size, records = argv
    with Path(path).open("rb") as file:
        file.seek(int(offset))
        content = file.read(int(size))
    free_space.limit_address_space(MEMORY_BYTES + 4 * len(content))
    resource.setrlimit(resource.RLIMIT_CPU, (int(limits.UNPICKLE_CPU_S), int(limits.UNPICKLE_CPU_S)))
    try:
        answer = converted(content, Path(records))
    except UnsafePickle as error:
        answer = {"error": f"is no safe pickle of arrays, lists, numbers and strings: {error}"}
    except MemoryError:
        answer = {"error": "is no pickle of CIFAR: its conversion takes more memory than any of them"}
    sys.stdout.buffer.write(json_line(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
