"""The compiled part of the reader: compiled here, by the project's own build, and compared with numpy over random images."""

import ctypes
import shutil
import subprocess
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data_prep.reader import Augmentation, DatumError, copies_by, open_dataset, pixels
from tests.data_prep.reader.small import encode, image_dataset
from tests.data_prep.reader.test_dataset import broken, jpeg, smooth

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    place = tmp_path_factory.mktemp("compiled")
    command = [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", place, "--build-temp", place / "objects"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    found = pixels.load(str(place / "data_prep" / "reader" / "libpixels.so"))
    assert isinstance(found, ctypes.CDLL)
    return found


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch, library: Any) -> Any:
    """both(read) -> what `read()` returns with the compiled part, after a check that it is the same with numpy."""

    def read(function: Any) -> Any:
        monkeypatch.setattr(pixels, "library", "no library")
        expected = function()
        monkeypatch.setattr(pixels, "library", library)
        found = function()
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
        return found

    return read


def test_whatever_the_compiled_part_is_given_lives_until_it_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds no lock of the interpreter: other threads take memory that was freed, and a form in it would be another one."""
    given: list[weakref.ref[Any]] = []
    alive: list[bool] = []
    address_of = pixels.address_of
    called = SimpleNamespace(slipway_copy_raw=lambda *_: alive.extend(array() is not None for array in given))
    monkeypatch.setattr(pixels, "address_of", lambda array: (given.append(weakref.ref(array)), address_of(array))[1])
    monkeypatch.setattr(pixels, "library", called)
    out, form = np.empty((1, 2, 2, 1), np.uint8), pixels.Form(2, 2, 1, 0, 2, 2)
    pixels.copy_raw(pixels.Values([memoryview(b"")], [0]), form, np.zeros((1, 3), np.int32), out, np.zeros(1, np.int64))
    assert alive == [True] * 7


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf")
def test_it_asks_for_no_library_and_no_function_of_one_c_library_alone(library: Any) -> None:
    """So that a container with an older one, or with musl, can load it."""
    found = subprocess.run(["readelf", "-d", "--dyn-syms", "-W", library._name], capture_output=True, text=True, check=True).stdout
    assert "(NEEDED)" not in found
    assert {line.split()[-1] for line in found.splitlines() if " UND " in line} <= {"UND", "memcpy", "memset", "memmove"}


@pytest.mark.processes
def test_windows_are_the_same_over_random_shapes(both: Any) -> None:
    random = np.random.default_rng(11)
    for _ in range(600):
        height, width, rows, columns = random.integers(1, 40, 4).tolist()
        channels = int(random.choice([1, 3]))
        image = random.integers(1, 256, (height, width, channels), np.uint8)
        window = np.array([random.integers(-rows, height + 1), random.integers(-columns, width + 1), random.integers(0, 2)], np.int32)

        def copied(image: Any = image, window: Any = window, shape: Any = (rows, columns, channels)) -> list[Any]:
            memory = np.full(int(np.prod(shape)) + 64, 7, np.uint8)  # what lies behind it is not touched
            pixels.copy_window(image, window, memory[:-64].reshape(shape))
            return [memory]

        assert (both(copied)[0][-64:] == 7).all()


@pytest.mark.processes
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (300, 401), (2000, 1500), (1, 70_000), (140_001, 1)])
@pytest.mark.parametrize("channels", [1, 3])
def test_sums_are_exact(both: Any, shape: tuple[int, int], channels: int) -> None:
    """Also of more bright pixels than the squares of fit 32 bits, and of an image that lies in memory in another order."""
    dark = np.random.default_rng(3).integers(0, 256, (*shape, channels), np.uint8)
    for image in (dark, np.full_like(dark, 255), dark.swapaxes(0, 1)):
        totals = np.ones((2, channels), np.uint64)
        wide = image.astype(np.uint64)
        expected = 1 + np.stack([wide.sum(axis=(0, 1)), (wide * wide).sum(axis=(0, 1))])
        (found,) = both(lambda image=image, totals=totals: [(added := totals.copy(), pixels.add_sums(image, added))[0]])
        np.testing.assert_array_equal(found, expected)


@pytest.mark.processes
@pytest.mark.parametrize("crop", [None, 17, 24])
@pytest.mark.parametrize("kind", ["hwc", "caffe", "jpeg"])
@pytest.mark.parametrize("channels", [1, 3])
def test_batches_are_the_same(both: Any, tmp_path: Path, kind: str, channels: int, crop: int | None) -> None:
    random = np.random.default_rng(5)
    labels = [0, 1, 127, 128, 2**31 - 1, -1, 300, 70000]
    images = [(random.integers(0, 256, (24, 31, channels), np.uint8), label) for label in labels]
    layout, encoder = ("hwc", jpeg) if kind == "jpeg" else (kind, None)
    dataset = open_dataset(str(image_dataset(tmp_path, images, shards=3, layout=layout, encoder=encoder)), crop)
    split, size = dataset.split("train"), (crop, crop) if crop else (24, 31)
    assert (dataset.size, dataset.shapes[0]) == (size, [channels, *size])
    for word in (None, "none", "crop", "flip", "crop-flip"):
        for seed in range(6):
            augment = None if word is None else Augmentation(word, seed, seed)
            batch, found = both(lambda augment=augment: split.read_many([7, 0, 3, 3, 5, 1, 2, 4, 6], augment=augment))
            assert found.tolist() == [labels[index] for index in [7, 0, 3, 3, 5, 1, 2, 4, 6]]
            assert batch.shape == (9, *size, channels)
            if word in (None, "none") and kind != "jpeg":
                top, left = ((24 - crop) // 2, (31 - crop) // 2) if crop else (0, 0)
                np.testing.assert_array_equal(batch[0], images[7][0][top : top + size[0], left : left + size[1]])


@pytest.mark.processes
@pytest.mark.parametrize("width", [640, 631])
@pytest.mark.parametrize("crop", [None, 400, 403])
def test_batches_that_no_cache_holds_are_the_same(both: Any, tmp_path: Path, width: int, crop: int | None) -> None:
    """They are written past the caches, in pieces of 64 bytes from wherever a row begins."""
    random = np.random.default_rng(7)
    images = [(random.integers(0, 256, (410, width, 3), np.uint8), label) for label in range(2)]
    split = open_dataset(str(image_dataset(tmp_path, images)), crop).split("train")
    order = [0, 1] * 6
    for word in ("none", "crop-flip"):
        batch, labels = both(lambda word=word: split.read_many(order, augment=Augmentation(word, 3, 1)))
        assert batch.nbytes > 4 << 20
        assert labels.tolist() == order


@pytest.mark.processes
def test_what_is_no_common_datum_is_left_to_the_other_part(both: Any, tmp_path: Path) -> None:
    """Fields in another order, unknown ones, a file: read all the same, into a batch that lies in memory in another order, too."""
    image = smooth((6, 7, 3))
    root = image_dataset(tmp_path, [(image, 0)] * 6, shards=1)
    usual, head = encode(3, 6, 7, image.tobytes(), 4), b"\x08\x03\x10\x06\x18\x07"
    other = b"\x28\x05" + head + usual[6:-2]
    file = encode(3, 6, 7, jpeg(image), 6, True)
    split = broken(root, [usual, other, usual + b"\x52\x01x", file, file + b"\x38\x01", file[:-2] + b"\x38\x03"])
    batch, labels = both(lambda: split.read_many(range(6), augment=Augmentation("crop-flip", 1, 1)))
    assert labels.tolist() == [4, 5, 4, 6, 6, 6]
    turned = np.zeros((7, 6, 6, 3), np.uint8).swapaxes(0, 1).swapaxes(1, 2)
    found = both(lambda: split.read_many(range(6), turned, Augmentation("crop-flip", 1, 1)))[0]
    np.testing.assert_array_equal(found, batch)


@pytest.mark.processes
@pytest.mark.parametrize("cut", [1, 2, 4, 5, 6, 7, 8, 9, 10])
def test_a_torn_value_is_an_error_with_its_name(library: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cut: int) -> None:
    monkeypatch.setattr(pixels, "library", library)
    image = smooth((2, 2, 1))
    split = broken(image_dataset(tmp_path, [(image, 0)] * 4), [encode(1, 2, 2, image.tobytes(), 300)[:-cut]] * 2)
    with pytest.raises(DatumError, match=r"shard-00000.lmdb, sample 00000001: "):
        split.read_many([1])


def test_what_cannot_be_loaded_is_said_and_numpy_reads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "libpixels.so").write_bytes(b"\x7fELF of another machine")
    monkeypatch.setattr(pixels, "library", pixels.load(str(tmp_path / "libpixels.so")))
    assert copies_by().startswith("numpy (libpixels.so: ")
    monkeypatch.setattr(pixels, "library", pixels.load(str(tmp_path / "none.so")))
    assert "No such file" in copies_by()
    image = smooth((4, 4, 3))
    split = open_dataset(str(image_dataset(tmp_path, [(image, 3), (image, 4)]))).split("train")
    assert split.read(1)[0].tolist() == image.tolist()
    assert split.read_many([0, 1])[1].tolist() == [3, 4]


@pytest.mark.processes
def test_a_library_that_is_cut_or_of_another_version_is_not_used(library: Any, tmp_path: Path) -> None:
    whole = Path(library._name).read_bytes()
    place = tmp_path / "libpixels.so"
    for size in (0, 100, 2000, len(whole) // 2, len(whole) - 100):  # a program that maps it is killed by SIGBUS
        place.write_bytes(whole[:size])
        assert pixels.load(str(place)) == "libpixels.so: it is cut, or no library"
    place.write_bytes(whole)
    source = tmp_path / "pixels.c"
    shutil.copy(ROOT / "data_prep" / "reader" / "pixels.c", source)
    assert isinstance(pixels.load(str(place)), ctypes.CDLL)
    source.write_text(source.read_text().replace("int32_t row", "int64_t row"))
    assert pixels.load(str(place)) == "libpixels.so was not compiled from the pixels.c beside it"


@pytest.mark.processes
def test_a_number_of_more_than_64_bits_is_an_error(library: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pixels, "library", library)
    image = smooth((2, 2, 1))
    usual = encode(1, 2, 2, image.tobytes(), 3)
    split = broken(image_dataset(tmp_path, [(image, 0)] * 4), [usual, usual[:7] + b"\x84" + b"\x80" * 8 + b"\x02" + usual[8:]])
    assert usual[6:8] == b"\x22\x04"
    assert split.read_many([0])[1].tolist() == [3]
    with pytest.raises(DatumError, match="middle of a field"):
        split.read_many([1])


@pytest.mark.parametrize("crop", [0, -1, 5])
def test_a_window_that_does_not_fit_is_refused(tmp_path: Path, crop: int) -> None:
    root = str(image_dataset(tmp_path, [(smooth((4, 6, 3)), 3), (smooth((4, 6, 3)), 4)]))
    with pytest.raises(ValueError, match=rf"a window of {crop} x {crop} does not fit into the images of .*, whose size is \(4, 6\)"):
        open_dataset(root, crop)
