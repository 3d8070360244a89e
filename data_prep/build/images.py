"""Convert a stored image to the bytes of its Datum and, where they are needed, its pixels.

Damaged, unsupported and oversized images are BadSample with a fixed reason. Decoding is simplejpeg's for ordinary JPEG and Pillow's for the
rest; resizing is Pillow's, in fixed point, so that every CPU gives the same pixels.
"""

from __future__ import annotations

import base64
import io
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image, ImageOps

from base.typed import Check, Count, FromOne
from data_prep.image_header import SNIFF_BYTES, JpegHeader, jpeg_header, jpeg_scans, sniff
from data_prep.reader.pixels import add_sums
from data_prep.sources.types import BadSample, Pixels

MAX_PIXELS = 64_000_000  # below Pillow's own warning at 89.5 million; a worker stays below 1 GB
MAX_SCANS = 100  # encoders write about ten, optimisers up to some dozens
MAX_SCANNED_PIXELS = 2_000_000_000
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP")
_SUBSAMPLING = "420"
Quality = Annotated[int, Check("1 to 100", lambda value: 1 <= value <= 100)]


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """The target format of every image. `size` is (height, width), or None to keep each image's own."""

    encoding: Literal["raw", "jpeg"]
    layout: Literal["hwc", "caffe"]
    channels: Literal[1, 3]
    size: tuple[FromOne, FromOne] | None
    resize: Literal["squash", "crop", "fill"]
    quality: Quality
    check: Literal["header", "decode"] = "decode"


class Converted(NamedTuple):
    """A converted image. `data` is stored in the Datum; `pixels` (H, W, C) are what a reader will decode from it, None where nobody asked
    for them and they were not needed."""

    data: bytes | memoryview
    height: int
    width: int
    pixels: Pixels | None


def convert(stored: bytes | Pixels, conversion: Conversion, *, with_pixels: bool = True) -> Converted:
    """Convert an image file or stored pixels to what the dataset holds. A whole JPEG file that is stored as it is gets decoded only as far
    as `check` and `with_pixels` ask for it. Raises BadSample."""
    if isinstance(stored, bytes):
        found = sniff(stored[:SNIFF_BYTES])
        if found is None:
            raise BadSample("not an image of a listed format")
        header = jpeg_header(stored) if found == "JPEG" else None
        is_whole = found == "JPEG" and _check_scans(stored, header)
        ordinary = header if header is not None and header.components in (1, 3) and header.precision == 8 else None
        if ordinary is not None:
            _check_pixels(ordinary.height, ordinary.width)
            if not with_pixels and is_whole and _can_keep(ordinary, conversion) and _is_sound(stored, ordinary, conversion):
                return Converted(stored, ordinary.height, ordinary.width, None)
        pixels, is_kept = _decode(stored, found, ordinary, conversion)
        if is_kept:
            return Converted(stored, pixels.shape[0], pixels.shape[1], pixels)
    else:
        pixels = _with_channels(stored, conversion.channels)
    if conversion.size is not None and pixels.shape[:2] != conversion.size:
        pixels = _resized(pixels, conversion.size, conversion.resize)
    if conversion.encoding == "jpeg":
        return _encode(pixels, conversion, with_pixels)
    planes = pixels[:, :, ::-1].transpose(2, 0, 1) if conversion.layout == "caffe" else pixels
    return Converted(np.ascontiguousarray(planes).reshape(-1).data, pixels.shape[0], pixels.shape[1], pixels)


def _is_sound(stored: bytes, header: JpegHeader, conversion: Conversion) -> bool:
    """Decode as far as reads every code and computes the fewest pixels, if that is asked for. Where the decoder complains, the image is
    decoded in full, and what is wrong with it is said there."""
    return conversion.check == "header" or _decode_jpeg(stored, header, "GRAY", 8) is not None


def _decode(stored: bytes, found: str, header: JpegHeader | None, conversion: Conversion) -> tuple[Pixels, bool]:
    """Decode to upright pixels in the requested channels; `header` is that of an ordinary JPEG. The second value is True where the file
    itself can be kept as it is."""
    if header is not None:
        keep = _can_keep(header, conversion)
        colorspace: Literal["RGB", "GRAY"] = "RGB" if conversion.channels == 3 else "GRAY"
        pixels = _decode_jpeg(stored, header, colorspace, 1 if keep else _scale(header, conversion))
        if pixels is not None:
            return _upright(pixels, header.orientation), keep
    return _decode_other(stored, found, conversion.channels), False


def _can_keep(header: JpegHeader, conversion: Conversion) -> bool:
    same_size = conversion.size in (None, (header.height, header.width))
    enough = conversion.channels == 3 or header.components == 1
    return conversion.encoding == "jpeg" and same_size and enough and header.orientation == 1


def _decode_jpeg(stored: bytes, header: JpegHeader, colorspace: Literal["RGB", "GRAY"], scale: int) -> Pixels | None:
    """Decode to 1/`scale` of the size. The result is None at any complaint of the decoder: Pillow then decides whether the image is damaged
    or only unusual."""
    smallest = {"min_height": -(-header.height // scale), "min_width": -(-header.width // scale)} if scale > 1 else {}
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(stored, colorspace=colorspace, **smallest)
    except ValueError:
        return None
    return pixels


def _scale(header: JpegHeader, conversion: Conversion) -> int:
    """Choose by which factor (1, 2, 4 or 8) the decoder reduces the image: the later resize keeps twice the pixels it needs."""
    if conversion.size is None:
        return 1
    height, width = conversion.size if header.orientation < 5 else conversion.size[::-1]
    ratio = min(header.height / height, header.width / width)
    return next((scale for scale in (8, 4, 2) if ratio >= 2 * scale), 1)


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    """Apply the EXIF orientation, 1 to 8."""
    if orientation == 1:
        return pixels
    turned = pixels.transpose(1, 0, 2) if orientation >= 5 else pixels
    down = orientation in (3, 4, 7, 8)
    right = orientation in (2, 3, 6, 7)
    return np.ascontiguousarray(turned[:: -1 if down else 1, :: -1 if right else 1])


def _decode_other(stored: bytes, found: str, channels: int) -> Pixels:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(io.BytesIO(stored), formats=_FORMATS) as image:
                _check_pixels(image.height, image.width)
                return _pillow_pixels(image, channels)
        except BadSample:
            raise
        except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
            raise BadSample(f"more than {MAX_PIXELS // 10**6} million pixels") from error
        except MemoryError as error:
            raise BadSample("needs more memory than a worker may use") from error
        except Exception as error:  # decoders of damaged files raise anything; what they say differs from version to version
            raise BadSample(f"{'truncated' if 'truncated' in str(error) else 'damaged'} {found}") from error


def _check_pixels(height: int, width: int) -> None:
    if height * width > MAX_PIXELS:
        raise BadSample(f"more than {MAX_PIXELS // 10**6} million pixels")


def _check_scans(stored: bytes, header: JpegHeader | None) -> bool:
    """Refuse a file of a few hundred kilobytes that asks for thousands of passes over the pixels, which take minutes. Return True if the
    file is whole, as far as its marks tell."""
    found = jpeg_scans(stored)
    pixels = min(header.height * header.width, MAX_PIXELS) if header else MAX_PIXELS
    if found.scans > min(MAX_SCANS, MAX_SCANNED_PIXELS // pixels):
        raise BadSample("more scans than any picture needs")
    return found.whole


def _pillow_pixels(image: Image.Image, channels: int) -> Pixels:
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I") or image.mode == "F":
        wide = np.asarray(image).astype(np.uint32)
        return _with_channels(((np.minimum(wide, 65535) * 255 + 32767) // 65535).astype(np.uint8), channels)
    plain = _on_white(image) if image.has_transparency_data else image
    if plain.mode not in ("L", "RGB"):
        plain = plain.convert("L" if plain.mode == "1" else "RGB")
    wanted = "RGB" if channels == 3 else "L"
    target = plain if plain.mode == wanted else plain.convert(wanted)
    return np.asarray(target).reshape(target.height, target.width, channels)


def _on_white(image: Image.Image) -> Image.Image:
    layer = image if image.mode in ("RGBA", "LA") else image.convert("RGBA")
    canvas = Image.new("RGB", layer.size, "white")
    canvas.paste(layer, mask=layer.getchannel("A"))
    return canvas


def _with_channels(pixels: Pixels, channels: int) -> Pixels:
    """Convert (H, W) or (H, W, C) to (H, W, channels). Grey has the weights of ITU-R 601, as in Pillow."""
    grey = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if grey.shape[2] == channels:
        return np.ascontiguousarray(grey)
    if grey.shape[2] == 1:
        return np.repeat(grey, channels, axis=2)
    weighted = grey.astype(np.uint32) @ np.array([19595, 38470, 7471], np.uint32) + np.uint32(0x8000)
    return (weighted >> 16).astype(np.uint8)[:, :, None]


def _resized(pixels: Pixels, size: tuple[int, int], resize: str) -> Pixels:
    height, width = size
    image = Image.fromarray(pixels if pixels.shape[2] == 3 else pixels[:, :, 0])
    box = (0.0, 0.0, float(image.width), float(image.height))
    inner = (width, height)
    if resize == "crop":
        scale = max(height / image.height, width / image.width)
        left, top = (image.width - width / scale) / 2, (image.height - height / scale) / 2
        box = (max(left, 0), max(top, 0), min(left + width / scale, image.width), min(top + height / scale, image.height))
    elif resize == "fill":
        scale = min(height / image.height, width / image.width)
        inner = (min(width, max(1, round(image.width * scale))), min(height, max(1, round(image.height * scale))))
    scaled = np.asarray(image.resize(inner, Image.Resampling.BILINEAR, box=box)).reshape(inner[1], inner[0], -1)
    if inner == (width, height):
        return scaled
    filled = np.zeros((height, width, scaled.shape[2]), np.uint8)
    top, left = (height - inner[1]) // 2, (width - inner[0]) // 2
    filled[top : top + inner[1], left : left + inner[0]] = scaled
    return filled


def _encode(pixels: Pixels, conversion: Conversion, with_pixels: bool) -> Converted:
    colorspace = "RGB" if conversion.channels == 3 else "GRAY"
    data = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality=conversion.quality, colorspace=colorspace, colorsubsampling=_SUBSAMPLING
    )
    shown = simplejpeg.decode_jpeg(data, colorspace=colorspace) if with_pixels else None
    return Converted(data, pixels.shape[0], pixels.shape[1], shown)


# Compute mean and deviation of decoded pixels per channel, and the mean image, exactly: whole numbers are summed and divided once.


@dataclass(frozen=True, kw_only=True)
class PixelSums:
    """The sum of the values and of their squares per channel, over `pixels` pixels each. `image` holds the sums of each pixel of the image,
    as base64 of unsigned 64-bit numbers, or None if they are not requested."""

    pixels: Count
    sums: tuple[Count, ...]
    squares: tuple[Count, ...]
    image: str | None = None


class PixelCounter:
    """A counter that adds up images of one number of channels. `with_image` adds up each pixel too, of images of one size."""

    def __init__(self, channels: int, *, with_image: bool = False) -> None:
        self._with_image = with_image
        self._image: npt.NDArray[np.uint64] | None = None
        self._pixels = 0
        self._totals = np.zeros((2, channels), np.uint64)

    def add(self, image: Pixels) -> None:
        """Add an image (H, W, C)."""
        if self._with_image and self._image is None:
            self._image = np.zeros(image.shape, np.uint64)
        if self._image is not None and self._image.shape == image.shape:  # where sizes differ the dataset is refused at its end
            self._image += image
        add_sums(image, self._totals)
        self._pixels += image.shape[0] * image.shape[1]

    def total(self) -> PixelSums:
        image = None if self._image is None else base64.b64encode(self._image.astype("<u8").tobytes()).decode()
        sums, squares = self._totals.tolist()
        return PixelSums(pixels=self._pixels, sums=tuple(sums), squares=tuple(squares), image=image)


def mean_and_std(parts: Sequence[PixelSums], channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute mean and population standard deviation, 0 to 255, one per channel; zeros for no pixels at all."""
    count = sum(part.pixels for part in parts)
    if count == 0:
        return (0.0,) * channels, (0.0,) * channels
    sums = [sum(totals) for totals in zip(*(part.sums for part in parts), strict=True)]
    squares = [sum(totals) for totals in zip(*(part.squares for part in parts), strict=True)]
    std = (math.sqrt((count * square - total * total) / (count * count)) for total, square in zip(sums, squares, strict=True))
    return tuple(total / count for total in sums), tuple(std)


def mean_image(parts: Sequence[PixelSums], shape: tuple[int, int, int]) -> str:
    """Return the mean of each pixel, 0 to 255, as base64 of little-endian float32 in the order height, width, channels. Raises ValueError
    for sums of another shape."""
    total, pixels = np.zeros(shape, np.uint64), 0
    for part in parts:
        if part.image is not None:
            total += np.frombuffer(base64.b64decode(part.image), "<u8").reshape(shape)
            pixels += part.pixels
    mean = total / (pixels // (shape[0] * shape[1]))
    return base64.b64encode(mean.astype("<f4").tobytes()).decode()
