"""Images that are moved and mirrored by chance: which pixels come out, and by what they are decided."""

import zlib
from collections import Counter

import numpy as np
import pytest

from data_prep.reader.pixels import copy_window
from data_prep.reader.sampling import AUGMENTATIONS, BORDER, Augmentation, draw, windows

WORDS = [word for word in AUGMENTATIONS if word != "none"]


def images(number: int, height: int = 32, width: int = 24, channels: int = 3) -> np.ndarray:
    """No pixel is zero, as the border is."""
    return np.random.default_rng(3).integers(1, 256, (number, height, width, channels), np.uint8)


def augmented(
    batch: np.ndarray, word: str, samples: np.ndarray, seed: int = 5, epoch: int = 2, crop: tuple[int, int] | None = None
) -> np.ndarray:
    height, width, channels = batch.shape[1:]
    found = np.empty((len(batch), *(crop or (height, width)), channels), np.uint8)
    for image, window, out in zip(batch, windows((height, width), crop, samples, Augmentation(word, seed, epoch)), found, strict=True):
        copy_window(image, window, out)
    return found


def moved(image: np.ndarray, down: int, right: int, *, mirrored: bool) -> np.ndarray:
    """The textbook's way: pad, cut out, mirror."""
    height, width = image.shape[:2]
    border = (height // BORDER, width // BORDER)
    padded = np.pad(image, ((border[0],) * 2, (border[1],) * 2, (0, 0)))
    cut = padded[border[0] + down :, border[1] + right :][:height, :width]
    return cut[:, ::-1] if mirrored else cut


@pytest.mark.parametrize("word", WORDS)
def test_each_image_is_one_of_those_that_it_may_become_and_all_come(word: str) -> None:
    image = images(1, 16, 16)[0]
    found = augmented(np.stack([image] * 400), word, np.arange(400))
    shifts = range(-2, 3) if "crop" in word else [0]
    mirrors = (False, True) if "flip" in word else (False,)
    possible = {moved(image, down, right, mirrored=one).tobytes() for down in shifts for right in shifts for one in mirrors}
    seen = Counter(one.tobytes() for one in found)
    assert set(seen) == possible
    assert max(seen.values()) < 3 * 400 / len(possible)


@pytest.mark.parametrize("word", ["none", *WORDS])
def test_a_window_of_another_size_lies_in_the_image_and_comes_from_everywhere(word: str) -> None:
    image = images(1, 16, 15)[0]
    found = augmented(np.stack([image] * 2000), word, np.arange(2000), crop=(14, 12))
    places = [(down, right) for down in range(3) for right in range(4)] if "crop" in word else [(1, 1)]
    mirrors = (1, -1) if "flip" in word else (1,)
    possible = {image[down : down + 14, right : right + 12][:, ::one].tobytes() for down, right in places for one in mirrors}
    seen = Counter(one.tobytes() for one in found)
    assert set(seen) == possible
    assert max(seen.values()) < 1.6 * 2000 / len(possible)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("shape", [(32, 24, 3), (7, 5, 1), (1, 1, 1)])
def test_it_is_a_matter_of_sample_and_epoch_alone(word: str, shape: tuple[int, int, int]) -> None:
    batch, samples = images(12, *shape), np.arange(100, 112)
    whole = augmented(batch, word, samples)
    for start in range(0, 12, 3):  # the slices of four ranks, or of other batches
        part = slice(start, start + 3)
        np.testing.assert_array_equal(augmented(batch[part], word, samples[part]), whole[part])
    np.testing.assert_array_equal(augmented(batch[::-1], word, samples[::-1]), whole[::-1])
    if shape == (32, 24, 3):
        assert not np.array_equal(augmented(batch, word, samples, epoch=3), whole)
        assert not np.array_equal(augmented(batch, word, samples, seed=6), whole)


def test_the_numbers_stay_what_they_are() -> None:
    """A checkpoint of one version is resumed by another one: another stream would be another training."""
    found = augmented(images(8), "crop-flip", np.arange(8))
    assert zlib.crc32(found.tobytes()) == 3166715295
    assert draw(0, 0, np.array([0]), 0).tolist() == [13755430856239512022]


def test_nothing_is_asked_for_and_nothing_changes() -> None:
    batch = images(4)
    np.testing.assert_array_equal(augmented(batch, "none", np.arange(4)), batch)


def test_a_word_that_is_none_of_them_is_told() -> None:
    with pytest.raises(ValueError, match="augmentation 'rotate' is not known; valid: none, crop, flip, crop-flip"):
        augmented(images(1), "rotate", np.arange(1))
