"""Convert a stored image to the bytes of its Datum and its pixels.

Damaged, unsupported and oversized images are BadSample with a fixed reason. Decoding is simplejpeg's for ordinary JPEG and Pillow's for the
rest; resizing is Pillow's, in fixed point, so that every CPU gives the same pixels.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import simplejpeg
from PIL import Image, ImageOps

from base.typed import Check, FromOne
from data_prep.image_header import SNIFF_BYTES, JpegHeader, jpeg_header, jpeg_scans, sniff
from data_prep.sources.types import BadSample, Pixels

MAX_PIXELS = 64_000_000  # below Pillow's own warning at 89.5 million; a worker stays below 1 GB
MAX_SCANS = 100  # encoders write about ten, optimisers up to some dozens
MAX_SCANNED_PIXELS = 2_000_000_000
_SCAN = b"\xff\xda"
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


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A converted image. `data` is stored in the Datum; `pixels` (H, W, C) are what a reader will decode from it."""

    data: bytes
    pixels: Pixels


def convert(stored: bytes | Pixels, conversion: Conversion) -> Converted:
    """Convert an image file or stored pixels to what the dataset holds. Raises BadSample."""
    if isinstance(stored, bytes):
        pixels, kept = _decode(stored, conversion)
        if kept:
            return Converted(data=stored, pixels=pixels)
    else:
        pixels = _with_channels(stored, conversion.channels)
    if conversion.size is not None and pixels.shape[:2] != conversion.size:
        pixels = _resized(pixels, conversion.size, conversion.resize)
    if conversion.encoding == "jpeg":
        return _encode(pixels, conversion)
    if conversion.layout == "caffe":
        return Converted(data=pixels[:, :, ::-1].transpose(2, 0, 1).tobytes(), pixels=pixels)
    return Converted(data=pixels.tobytes(), pixels=pixels)


def _decode(stored: bytes, conversion: Conversion) -> tuple[Pixels, bool]:
    """Decode to upright pixels in the requested channels. The second value is True where the file itself can be kept as it is."""
    found = sniff(stored[:SNIFF_BYTES])
    if found is None:
        raise BadSample("not an image of a listed format")
    header = jpeg_header(stored) if found == "JPEG" else None
    if found == "JPEG":
        _check_scans(stored, header)
    if header is not None and header.components in (1, 3) and header.precision == 8:
        _check_pixels(header.height, header.width)
        keep = _can_keep(header, conversion)
        pixels = _decode_jpeg(stored, header, conversion, full=keep)
        if pixels is not None:
            return pixels, keep
    return _decode_other(stored, found, conversion.channels), False


def _can_keep(header: JpegHeader, conversion: Conversion) -> bool:
    same_size = conversion.size in (None, (header.height, header.width))
    enough = conversion.channels == 3 or header.components == 1
    return conversion.encoding == "jpeg" and same_size and enough and header.orientation == 1


def _decode_jpeg(stored: bytes, header: JpegHeader, conversion: Conversion, *, full: bool) -> Pixels | None:
    """Decode a JPEG.

    The result is None at any complaint of the decoder: Pillow then decides whether the image is damaged or only unusual.
    """
    scale = 1 if full else _scale(header, conversion)
    smallest = {"min_height": -(-header.height // scale), "min_width": -(-header.width // scale)} if scale > 1 else {}
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(stored, colorspace="RGB" if conversion.channels == 3 else "GRAY", **smallest)
    except ValueError:
        return None
    return _upright(pixels, header.orientation)


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


def _check_scans(stored: bytes, header: JpegHeader | None) -> None:
    """Refuse a file of a few hundred kilobytes that asks for thousands of passes over the pixels, which take minutes."""
    pixels = min(header.height * header.width, MAX_PIXELS) if header else MAX_PIXELS
    most = min(MAX_SCANS, MAX_SCANNED_PIXELS // pixels)
    if stored.count(_SCAN) > most and jpeg_scans(stored) > most:  # the cheap count may find the two bytes in other places
        raise BadSample("more scans than any picture needs")


def _pillow_pixels(image: Image.Image, channels: int) -> Pixels:
    """Read the first frame upright, on white where it is transparent."""
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
    """Remove transparency with as few copies as possible."""
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


def _encode(pixels: Pixels, conversion: Conversion) -> Converted:
    colorspace = "RGB" if conversion.channels == 3 else "GRAY"
    data = simplejpeg.encode_jpeg(
        np.ascontiguousarray(pixels), quality=conversion.quality, colorspace=colorspace, colorsubsampling=_SUBSAMPLING
    )
    return Converted(data=data, pixels=simplejpeg.decode_jpeg(data, colorspace=colorspace))
