"""One image in, Datum bytes and pixels out: formats, orientation, channels, sizes, and everything that is broken."""

import contextlib
import io
import resource
import struct
import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import simplejpeg
from PIL import Image

from data_prep.build.images import MAX_PIXELS, MAX_SCANNED_PIXELS, MAX_SCANS, Conversion, PixelCounter, convert
from data_prep.image_header import jpeg_header, jpeg_scans, sniff
from data_prep.reader import pixels as compiled
from data_prep.sources.types import BadSample
from tests.data_prep.build.corpus import encoded, pixels
from tests.data_prep.staging.disks import exit_code, in_child

RAW = Conversion(encoding="raw", layout="hwc", channels=3, size=None, resize="squash", quality=90)
GREY = replace(RAW, channels=1)
JPEG = replace(RAW, encoding="jpeg")
SMOOTH = np.add.outer(np.arange(64), np.arange(48))[:, :, None].repeat(3, axis=2).astype(np.uint8)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "GIF", "WEBP"])
def test_lossless_formats_come_out_as_they_went_in(kind: str) -> None:
    image = np.repeat(pixels(1)[:, :, :1], 3, axis=2)  # grey: GIF keeps 256 colours
    assert sniff(encoded(image, kind)[:32]) == kind
    found = convert(encoded(image, kind, lossless=True), RAW).pixels
    assert np.array_equal(found, image)


def test_raw_bytes_are_hwc_or_caffe_planes() -> None:
    image = pixels(2, 3, 5)
    assert convert(encoded(image), RAW).data == image.tobytes()
    planes = np.frombuffer(convert(encoded(image), replace(RAW, layout="caffe")).data, np.uint8).reshape(3, 3, 5)
    assert np.array_equal(planes[2], image[:, :, 0])
    assert np.array_equal(planes[0], image[:, :, 2])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_orientation_is_applied(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x112] = orientation
    plain = convert(encoded(SMOOTH, kind, **({"quality": 95} if kind == "JPEG" else {})), RAW).pixels
    turned = convert(encoded(SMOOTH, kind, exif=exif.tobytes(), **({"quality": 95} if kind == "JPEG" else {})), RAW).pixels
    ways = {1: plain, 2: plain[:, ::-1], 3: plain[::-1, ::-1], 4: plain[::-1], 5: plain.transpose(1, 0, 2)}
    ways |= {6: np.rot90(plain, -1), 7: plain[::-1, ::-1].transpose(1, 0, 2), 8: np.rot90(plain, 1)}
    assert np.array_equal(turned, ways[orientation])


def test_a_jpeg_that_needs_no_change_is_kept_byte_for_byte() -> None:
    file = encoded(SMOOTH, "JPEG")
    assert convert(file, JPEG).data == file
    assert convert(file, replace(JPEG, size=(64, 48))).data == file
    assert convert(file, replace(JPEG, size=(32, 32))).data != file
    exif = Image.Exif()
    exif[0x112] = 6
    turned = convert(encoded(SMOOTH, "JPEG", exif=exif.tobytes()), JPEG)
    assert jpeg_header(turned.data) == replace(jpeg_header(turned.data), orientation=1, height=48, width=64)


ROUGH = (SMOOTH.astype(int) + np.random.default_rng(5).integers(0, 100, SMOOTH.shape)).astype(np.uint8)
KINDS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "progressive": {"progressive": True},
    "all colours": {"subsampling": 0},
    "with restarts": {"restart_marker_blocks": 2},
    "own tables": {"optimize": True},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_header_check_keeps_whole_files_and_finds_each_that_was_cut(kind: str) -> None:
    file = encoded(ROUGH, "JPEG", **KINDS[kind])
    header = replace(JPEG, check="header")
    for conversion in (header, JPEG):
        assert convert(file, conversion, with_pixels=False) == (file, 64, 48, None)
    assert not any(jpeg_scans(file[:length]).whole for length in range(len(file)))
    for length in range(2, len(file), 101):
        with contextlib.suppress(BadSample):  # where only the end mark is missing, Pillow takes the image, and it is encoded again
            assert convert(file[:length], header, with_pixels=False).data != file[:length]


@pytest.mark.parametrize("kind", KINDS)
def test_the_check_by_decoding_finds_what_decoding_in_full_finds(kind: str) -> None:
    file = encoded(ROUGH, "JPEG", **KINDS[kind])
    rng = np.random.default_rng(3)
    damaged = 0
    for _ in range(60):
        changed = bytearray(file)
        for _ in range(3):
            changed[int(rng.integers(file.index(b"\xff\xda") + 20, len(file) - 2))] = int(rng.integers(0, 256))
        try:
            simplejpeg.decode_jpeg(bytes(changed))
        except ValueError:
            damaged += 1
            with contextlib.suppress(BadSample):
                assert convert(bytes(changed), JPEG, with_pixels=False).data != changed
        else:
            assert convert(bytes(changed), JPEG, with_pixels=False).data == changed
    assert damaged > 5


def test_a_header_check_leaves_what_is_unusual_to_the_decoder() -> None:
    header = replace(JPEG, check="header")
    trailing = encoded(SMOOTH, "JPEG") + b"the film behind a phone's photograph"
    assert convert(trailing, header, with_pixels=False).pixels is not None
    for content, words in (("jpeg bomb", "million pixels"), ("cut jpeg", "JPEG"), ("png magic", "damaged PNG")):
        with pytest.raises(BadSample, match=words):
            convert(BROKEN[content][0], header, with_pixels=False)
    with pytest.raises(BadSample, match="more scans"):
        convert(with_scans(MAX_SCANS + 1), header, with_pixels=False)
    exif = Image.Exif()
    exif[0x112] = 6
    assert convert(encoded(SMOOTH, "JPEG", exif=exif.tobytes()), header, with_pixels=False)[1:3] == (48, 64)
    assert convert(encoded(SMOOTH, "JPEG"), replace(header, size=(32, 32)), with_pixels=False).height == 32


def test_pixels_are_those_a_reader_decodes() -> None:
    for spec in (JPEG, replace(JPEG, channels=1), replace(JPEG, size=(16, 16))):
        found = convert(encoded(SMOOTH, "PNG"), spec)
        with Image.open(io.BytesIO(found.data)) as image:
            assert np.array_equal(np.asarray(image).reshape(found.pixels.shape), found.pixels)


def test_channels() -> None:
    grey = pixels(3, channels=1)
    assert np.array_equal(convert(encoded(grey), RAW).pixels, grey.repeat(3, axis=2))
    colour = pixels(4)
    with Image.fromarray(colour) as image:
        assert np.array_equal(convert(encoded(colour), GREY).pixels[:, :, 0], np.asarray(image.convert("L")))
        assert np.array_equal(convert(colour, GREY).pixels[:, :, 0], np.asarray(image.convert("L")))
    assert np.array_equal(convert(grey[:, :, 0], RAW).pixels, grey.repeat(3, axis=2))


def test_odd_modes_are_read() -> None:
    white = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    assert convert(encoded(white), RAW).pixels.min() == 255  # transparent shows white, not the colour hidden below
    half = Image.new("LA", (4, 4), (0, 128))
    assert convert(encoded(half), GREY).pixels[0, 0, 0] == 127
    palette = Image.fromarray(pixels(5)).quantize(16)
    assert np.array_equal(convert(encoded(palette), RAW).pixels, np.asarray(palette.convert("RGB")))
    cmyk = Image.fromarray(SMOOTH).convert("CMYK")
    assert convert(encoded(cmyk, "JPEG", quality=95), RAW).pixels.shape == (64, 48, 3)
    assert convert(encoded(cmyk, "JPEG"), JPEG).data != encoded(cmyk, "JPEG")
    wide = Image.fromarray(np.array([[0, 257, 65535]], np.uint16))
    assert convert(encoded(wide), GREY).pixels[0, :, 0].tolist() == [0, 1, 255]
    assert convert(encoded(Image.new("1", (3, 3), 1)), GREY).pixels.tolist() == [[[255]] * 3] * 3


def test_the_first_frame_of_an_animation_is_taken() -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    for kind in ("GIF", "WEBP", "PNG"):
        options: dict[str, Any] = {"save_all": True, "append_images": frames[1:]}
        found = convert(encoded(frames[0], kind, **options, **({"lossless": True} if kind == "WEBP" else {})), RAW).pixels
        assert found[0, 0].tolist() == [255, 0, 0]


def test_resize_by_squash_crop_and_fill() -> None:
    wide = np.zeros((8, 16, 3), np.uint8)
    wide[:, 4:12] = 200  # the square in the middle
    squash, crop, fill = (convert(wide, replace(RAW, size=(8, 8), resize=way)).pixels for way in ("squash", "crop", "fill"))
    assert squash.shape == crop.shape == fill.shape == (8, 8, 3)
    assert squash[0, 0, 0] == 0
    assert crop.min() == 200
    assert fill[:2].max() == 0
    assert fill[3, 4, 0] == 200
    assert np.array_equal(convert(crop, replace(RAW, size=(8, 8), resize="crop")).pixels, crop)


def test_a_constant_image_stays_constant_at_any_size() -> None:
    constant = np.full((37, 53, 3), 77, np.uint8)
    for way in ("squash", "crop"):
        for size in ((8, 8), (100, 20), (1, 1)):
            assert set(convert(constant, replace(RAW, size=size, resize=way)).pixels.ravel().tolist()) == {77}


def test_a_large_jpeg_is_decoded_small_and_looks_the_same() -> None:
    large = np.asarray(Image.fromarray(SMOOTH).resize((640, 800), Image.Resampling.BICUBIC))
    file = encoded(large, "JPEG", quality=95)
    scaled = convert(file, replace(RAW, size=(20, 16))).pixels.astype(int)
    exact = np.asarray(Image.fromarray(large).resize((16, 20), Image.Resampling.BOX)).astype(int)
    assert abs(scaled - exact).max() <= 3


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds nothing."""
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"IDAT" + zlib.compress(b"\0" * 1000)
    chunks = b"".join(struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in (body, data, b"IEND"))
    return b"\x89PNG\r\n\x1a\n" + chunks


def jpeg_claiming(width: int, height: int) -> bytes:
    """A JPEG whose frame claims another size."""
    file = bytearray(encoded(SMOOTH, "JPEG"))
    at = file.index(b"\xff\xc0")
    file[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(file)


BROKEN = {
    "empty": (b"", "not an image"),
    "text": (b"hello, I am a picture", "not an image"),
    "html": (b"<!DOCTYPE html><html>404</html>", "not an image"),
    "cut jpeg": (encoded(SMOOTH, "JPEG")[:-300], "JPEG"),
    "jpeg head": (encoded(SMOOTH, "JPEG")[:40], "damaged JPEG"),
    "cut png": (encoded(SMOOTH)[:-40], "truncated PNG"),
    "png magic": (b"\x89PNG\r\n\x1a\n", "damaged PNG"),
    "png garbage": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "damaged PNG"),
    "gif magic": (b"GIF89a", "GIF"),
    "webp magic": (b"RIFF\x10\0\0\0WEBPVP8 ", "damaged WEBP"),
    "bmp magic": (b"BM" + b"\0" * 12 + b"\x28\0\0\0", "BMP"),
    "png bomb": (png_header(50_000, 50_000), "million pixels"),
    "png bomb of one line": (png_header(2**31 - 1, 1), "million pixels"),
    "png of no size": (png_header(0, 0), "damaged PNG"),
    "jpeg bomb": (jpeg_claiming(65_000, 65_000), "million pixels"),
    "jpeg of no height": (jpeg_claiming(48, 0), "JPEG"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not an image"),
    "tiff": (b"II*\0" + b"\0" * 100, "not an image"),
    "eps": (b"%!PS-Adobe-3.0 EPSF-3.0", "not an image"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_images_have_a_reason(name: str) -> None:
    content, words = BROKEN[name]
    for conversion in (RAW, replace(JPEG, size=(8, 8))):
        with pytest.raises(BadSample, match=words):
            convert(content, conversion)


def test_the_limit_of_pixels_is_below_pillows_warning() -> None:
    assert Image.MAX_IMAGE_PIXELS is not None
    assert MAX_PIXELS < Image.MAX_IMAGE_PIXELS


def test_random_damage_ends_in_pixels_or_a_reason() -> None:
    rng = np.random.default_rng(7)
    exif = Image.Exif()
    exif[0x112] = 6
    files = [
        encoded(SMOOTH, kind, **({"exif": exif.tobytes()} if kind == "JPEG" else {})) for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP")
    ]
    for trial in range(150):
        file = bytearray(files[trial % len(files)])
        for _ in range(int(rng.integers(1, 8))):
            file[int(rng.integers(0, min(len(file), 300)))] = int(rng.integers(0, 256))
        cut = int(rng.integers(1, len(file) + 1)) if trial % 3 == 0 else len(file)
        with contextlib.suppress(BadSample):
            assert convert(bytes(file[:cut]), replace(RAW, size=(8, 8))).pixels.shape == (8, 8, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("I;16", "PNG"),
        ("RGB", "JPEG"),
        *(pytest.param(*one, marks=pytest.mark.long) for one in (("RGBA", "PNG"), ("LA", "PNG"), ("P", "GIF"), ("CMYK", "JPEG"))),
    ],
)
def test_the_largest_images_fit_into_a_gigabyte(mode: str, kind: str) -> None:
    side = int(MAX_PIXELS**0.5)
    file = encoded(Image.new(mode, (side, side)), kind)

    def work() -> None:
        for conversion in (replace(RAW, size=(8, 8)), GREY, RAW):
            counter = PixelCounter(conversion.channels)
            counter.add(convert(file, conversion).pixels)
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (1 << 20)  # KiB

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert exit_code(in_child(work)) == 0


def with_scans(scans: int) -> bytes:
    """A progressive JPEG whose last scan comes again and again."""
    file = encoded(pixels(4, 64, 64), "JPEG", progressive=True)
    last = file.rindex(b"\xff\xda")
    return file[:last] + file[last:-2] * (scans - jpeg_scans(file).scans + 1) + file[-2:]


def test_scans_are_counted_where_they_are() -> None:
    assert jpeg_scans(encoded(SMOOTH, "JPEG")) == (1, True)
    assert jpeg_scans(with_scans(250)) == (250, True)
    inside = encoded(SMOOTH, "JPEG")
    assert jpeg_scans(inside[:2] + b"\xff\xe1\x01\x02" + b"\xff\xda" * 128 + inside[2:]) == (1, True)
    assert jpeg_scans(inside + b"\xff\xda" * 500) == (1, False)
    for cut in range(0, len(inside), 7):
        assert jpeg_scans(inside[:cut]).scans <= 1


@pytest.mark.skipif(isinstance(compiled.library, str), reason="nothing is compiled")
def test_scans_are_counted_alike_by_the_compiled_part(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    files = [encoded(ROUGH, "JPEG", **options) for options in KINDS.values()]
    for trial in range(3000):
        file = bytearray(files[trial % len(files)])
        for _ in range(int(rng.integers(0, 6))):
            file[int(rng.integers(0, min(len(file), 700 if trial % 2 else 1 << 20)))] = int(rng.choice([0, 1, 255, 0xC4, 0xD0, 0xD9, 0xDA]))
        cut = bytes(file[: int(rng.integers(0, len(file) + 1)) if trial % 3 == 0 else len(file)])
        found = jpeg_scans(cut)
        with monkeypatch.context() as patch:
            patch.setattr(compiled, "library", "left out")
            assert jpeg_scans(cut) == found


def test_a_jpeg_of_thousands_of_scans_is_refused_and_odd_ones_are_not() -> None:
    with pytest.raises(BadSample, match="more scans than any picture needs"):
        convert(with_scans(MAX_SCANS + 1), RAW)
    assert convert(encoded(SMOOTH, "JPEG", progressive=True), RAW).pixels.shape == SMOOTH.shape
    trailing = encoded(SMOOTH, "JPEG") + b"\xff\xda" * 500  # such as the film behind a phone's photograph
    assert convert(trailing, RAW).pixels.shape == SMOOTH.shape


def test_the_more_pixels_the_fewer_scans() -> None:
    """The frame says 8000 x 8000: each scan would be a pass over 64 million pixels."""
    file = with_scans(MAX_SCANNED_PIXELS // MAX_PIXELS + 1)
    at = file.index(b"\xff\xc2") + 5
    with pytest.raises(BadSample, match="more scans"):
        convert(file[:at] + struct.pack(">HH", 8000, 8000) + file[at + 4 :], RAW)
