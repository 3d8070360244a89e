"""Move and mirror training images by chance: pure arithmetic on (seed, epoch, sample).

So the pixels are the same for every world size, number of workers and framework, and after a resume.

`crop`: a border of zeros as wide as an eighth of the image, and a window of the image's own size somewhere in it (for 32 x 32: 4 pixels,
the paper of ResNet's recipe for CIFAR). `flip`: mirrored, left and right, one time in two. In integer arithmetic: every numpy gives the
same.
"""

from typing import FrozenSet

import numpy as np

from .sampling import keys_of, mixed

CROP, FLIP = "crop", "flip"
KINDS = {"none": frozenset(), CROP: frozenset([CROP]), FLIP: frozenset([FLIP]), "crop-flip": frozenset([CROP, FLIP])}
BORDER = 8  # that part of the image's side
_APART = 0xA54FF53A5F1D36F1  # the numbers here are not those of the order, which is made of the same seed and epoch


def kinds_of(augmentation: str) -> FrozenSet[str]:
    """Return the kinds that a word of the cell stands for. Raises ValueError with the valid words."""
    if augmentation not in KINDS:
        raise ValueError("augmentation %r is not known; valid: %s" % (augmentation, ", ".join(KINDS)))
    return KINDS[augmentation]


def augment(images: np.ndarray, augmentation: str, seed: int, epoch: int, samples: np.ndarray) -> None:
    """Move and mirror `images`, uint8 [batch, height, width, channels], in place: row k is sample `samples[k]` in this epoch."""
    kinds = kinds_of(augmentation)
    height, width = images.shape[1:3]
    down, right = (_shifts(draw(seed, epoch, samples, which), side) for which, side in enumerate((height, width)))
    mirrored = draw(seed, epoch, samples, 2) & np.uint64(1)
    for number, image in enumerate(images):
        if CROP in kinds:
            _move(image, int(down[number]), int(right[number]))
        if FLIP in kinds and mirrored[number]:
            plain = image.copy()
            for channel in range(image.shape[2]):  # all in one takes ten times as long
                image[:, :, channel] = plain[:, ::-1, channel]


def draw(seed: int, epoch: int, samples: np.ndarray, which: int) -> np.ndarray:
    """Draw a random number of 64 bits for each sample, the `which`-th that it has in this epoch."""
    first, second = keys_of(seed ^ _APART, epoch)[2 * which : 2 * which + 2]
    return mixed(mixed(samples.astype(np.uint64), first), second)


def _shifts(numbers: np.ndarray, side: int) -> np.ndarray:
    border = side // BORDER
    return (numbers % np.uint64(2 * border + 1)).astype(np.int64) - border


def _move(image: np.ndarray, down: int, right: int) -> None:
    height, width = image.shape[:2]
    kept = image[max(0, down) : height + min(0, down), max(0, right) : width + min(0, right)].copy()
    image[:] = 0
    top, left = max(0, -down), max(0, -right)
    image[top : top + kept.shape[0], left : left + kept.shape[1]] = kept
