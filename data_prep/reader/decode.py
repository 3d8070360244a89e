"""Decode images to uint8 HWC, RGB or grey, with whichever decoder is installed: simplejpeg (fastest), OpenCV, Pillow."""

import functools
import importlib
import io
from typing import Any, Callable, List, Tuple

import numpy as np

from .errors import DecodeError

Decoder = Callable[[Any, bytes, int], np.ndarray]
Candidate = Tuple[str, Decoder]


def _simplejpeg(module: Any, data: bytes, channels: int) -> np.ndarray:
    return module.decode_jpeg(data, colorspace="RGB" if channels == 3 else "GRAY")


def _cv2(module: Any, data: bytes, channels: int) -> np.ndarray:
    flags = (module.IMREAD_COLOR if channels == 3 else module.IMREAD_GRAYSCALE) | module.IMREAD_IGNORE_ORIENTATION
    image = module.imdecode(np.frombuffer(data, np.uint8), flags)
    if image is None:
        raise DecodeError("not an image it knows")
    return module.cvtColor(image, module.COLOR_BGR2RGB) if channels == 3 else image[:, :, np.newaxis]


def _pillow(module: Any, data: bytes, channels: int) -> np.ndarray:
    with module.open(io.BytesIO(data)) as image:
        pixels = np.asarray(image.convert("RGB" if channels == 3 else "L"))
    return pixels if channels == 3 else pixels[:, :, np.newaxis]


CANDIDATES: Tuple[Candidate, ...] = (("simplejpeg", _simplejpeg), ("cv2", _cv2), ("PIL.Image", _pillow))


def decode(data: bytes, channels: int, candidates: Tuple[Candidate, ...] = CANDIDATES) -> np.ndarray:
    """Decode `data` to uint8 (height, width, channels), with 1 or 3 channels.

    A decoder that refuses (simplejpeg knows no PNG and no CMYK) passes the image on to the next. EXIF orientation is not applied: what the
    build measured is what the program gets. Raises DecodeError with the reason of the last decoder.
    """
    reason = "no decoder: install simplejpeg, opencv-python-headless or Pillow"
    for module, decoder in _decoders(candidates):
        try:
            return decoder(module, data, channels)
        except Exception as error:  # each library has its own exceptions, and a damaged file can raise any of them
            reason = "%s: %s" % (module.__name__, error)
    raise DecodeError(reason)


@functools.lru_cache(maxsize=None)
def _decoders(candidates: Tuple[Candidate, ...]) -> List[Tuple[Any, Decoder]]:
    """List the installed decoders in order of speed. They are imported at the first encoded image, since raw datasets need none."""
    found = []
    for name, decoder in candidates:
        try:
            found.append((importlib.import_module(name), decoder))
        except ImportError:
            continue
    return found
