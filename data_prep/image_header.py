"""Read what the first bytes of an image file say, without decoding it."""

import re
import struct
from dataclasses import dataclass
from typing import NamedTuple

SNIFF_BYTES = 32
_BMP_HEADERS = (12, 40, 52, 56, 64, 108, 124)
_START_OF_FRAME = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")  # neither a stuffed byte nor a restart, which stand inside of a scan
_TABLES = frozenset({0xC4, 0xDB})  # of codes, of quantisation
_FRAMES = frozenset({0xC0, 0xC1, 0xC2})  # baseline, extended, progressive
_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})
_ORIENTATION = 0x0112


def sniff(head: bytes) -> str | None:
    """Return JPEG, PNG, GIF, BMP or WEBP by the first SNIFF_BYTES bytes, or None for anything else."""
    if head.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "GIF"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "WEBP"
    if head.startswith(b"BM") and len(head) >= 18 and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:
        return "BMP"
    return None


@dataclass(frozen=True, kw_only=True)
class JpegHeader:
    """The header of a JPEG as stored, before `orientation` (EXIF, 1 to 8) is applied."""

    height: int
    width: int
    components: int
    precision: int
    orientation: int


def jpeg_header(data: bytes) -> JpegHeader | None:
    """Parse the header of a JPEG file. The result is None where it ends or contradicts itself before the frame begins."""
    at = 2
    orientation = 1
    end = len(data)
    while at + 4 <= end:
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if marker in _WITHOUT_LENGTH:
            at += 2
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        body = data[at + 4 : at + 2 + length]
        if length < 2 or len(body) != length - 2:
            return None
        if marker in _START_OF_FRAME:
            return _frame(body, orientation)
        if marker == 0xE1 and body.startswith(b"Exif\0\0"):
            orientation = _exif_orientation(body[6:])
        at += 2 + length
    return None


class JpegScans(NamedTuple):
    """The structure of a JPEG file up to its end mark. `whole`: tables, a frame, and scans are there, and the end mark ends the file."""

    scans: int
    whole: bool


def jpeg_scans(data: bytes) -> JpegScans:
    """Walk over the marks of a JPEG file without decoding it. A progressive file may have any number of scans, and each costs a pass over
    all pixels. A file that was cut is not `whole`, nor is one of a rare kind (lossless, arithmetic): only a decoder can judge it."""
    from data_prep.reader import pixels  # whoever copies files needs none of it

    if not isinstance(pixels.library, str):
        found = pixels.library.slipway_jpeg_scans(data, len(data))
        return JpegScans(found >> 1, bool(found & 1))
    scans, at = 0, 2
    seen: set[int] = set()
    search = _MARKER.search
    while mark := search(data, at):
        at = mark.end()
        marker = data[at - 1]
        if marker == _END_OF_IMAGE:
            return JpegScans(scans, scans > 0 and at == len(data) and seen >= _TABLES and bool(seen & _FRAMES))
        if marker in _WITHOUT_LENGTH:
            continue
        seen.add(marker)
        scans += marker == _START_OF_SCAN
        at += int.from_bytes(data[at : at + 2], "big") or 2
    return JpegScans(scans, False)


def _frame(body: bytes, orientation: int) -> JpegHeader | None:
    if len(body) < 6:
        return None
    precision, height, width, components = struct.unpack(">BHHB", body[:6])
    if not height or not width:
        return None
    return JpegHeader(height=height, width=width, components=components, precision=precision, orientation=orientation)


def _exif_orientation(tiff: bytes) -> int:
    """Return the value of the tag in the first directory, or 1 where there is none or it makes no sense."""
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1
    (start,) = struct.unpack(order + "I", tiff[4:8])
    if start + 2 > len(tiff):
        return 1
    (count,) = struct.unpack(order + "H", tiff[start : start + 2])
    for entry in range(start + 2, start + 2 + 12 * count, 12):
        if entry + 12 > len(tiff):
            break
        tag, kind, number, value = struct.unpack(order + "HHIH", tiff[entry : entry + 10])
        if tag == _ORIENTATION:
            return value if kind == 3 and number == 1 and 1 <= value <= 8 else 1
    return 1
