"""Choose which sample comes when, and how its image is moved and mirrored: pure arithmetic on (seed, epoch, position).

It is the same for every world size and number of workers.

The permutation is computed for the positions asked for, not stored: a batch costs some 0.1 ms and no memory, also in a dataset of 10^8
samples, and training resumes at any step at once. It is the generalised Feistel cipher of Black and Rogaway (2002) on the smallest square
a * a >= num_samples, with cycle walking, in integer arithmetic only: every numpy, old or new, gives the same order.
"""

import functools
import math
from typing import FrozenSet, NamedTuple, Optional, Sequence, Tuple

import numpy as np

_ROUNDS = 8
_MASK64 = (1 << 64) - 1


def order(seed: int, epoch: int, num_samples: int, shuffle: bool = True) -> np.ndarray:
    """Return the whole epoch as int64 (num_samples,), a permutation of 0..num_samples-1."""
    positions = np.arange(num_samples, dtype=np.int64)
    return samples_at(seed, epoch, num_samples, positions) if shuffle else positions


def samples_at(seed: int, epoch: int, num_samples: int, positions: np.ndarray) -> np.ndarray:
    """Return the samples, int64, at these positions of the epoch's shuffled order."""
    side = int(math.sqrt(num_samples - 1)) + 1 if num_samples > 1 else 1
    side += side * side < num_samples  # the root of a large number is rounded
    keys = keys_of(seed, epoch)
    found = _rounds(positions.astype(np.uint64), side, keys)
    walking = np.flatnonzero(found >= num_samples)
    while walking.size:
        found[walking] = _rounds(found[walking], side, keys)
        walking = walking[found[walking] >= num_samples]
    return found.astype(np.int64)


def grouped_batch(seed: int, step: int, groups: Sequence[int], global_batch: int, rank: int, world: int) -> np.ndarray:
    """Return the samples of this rank in one step, int64 (global_batch / world,), where a batch is of one group.

    The samples of the split lie in groups of the given sizes, one after the other, such as token sequences of one length; images are one
    group. The global batch of a step is the same, in the same order, for every world size; rank r takes its r-th contiguous slice. The
    batches of an epoch come in a shuffled order; of each group the last, partial global batch is dropped. Raises ValueError where no group
    fills a batch.
    """
    counts = [samples // global_batch for samples in groups] if global_batch > 0 else []
    if not 0 <= rank < world or sum(counts) == 0 or global_batch % world:
        raise ValueError("rank %d of %d cannot take an equal part of a global batch of %d out of %s" % (rank, world, global_batch, groups))
    epoch, batch = divmod(step, sum(counts))
    if len(counts) > 1:
        batch = int(samples_at(seed, epoch, sum(counts), np.array([batch]))[0])
    group = 0
    while batch >= counts[group]:
        batch -= counts[group]
        group += 1
    each = global_batch // world
    positions = np.arange(each, dtype=np.int64) + (batch * global_batch + rank * each)
    return samples_at(seed + group, epoch, groups[group], positions) + sum(groups[:group])


def _rounds(positions: np.ndarray, side: int, keys: Sequence[int]) -> np.ndarray:
    """Apply one pass of the cipher to uint64 values below side * side. It is a bijection whatever the mixing is."""
    base = np.uint64(side)
    left: np.ndarray = positions // base
    right: np.ndarray = positions % base
    for key in keys:
        left, right = right, (left + mixed(right, key) % base) % base
    return left * base + right


def mixed(values: np.ndarray, key: int) -> np.ndarray:
    """Return a pseudorandom number of 64 bits for each of `values`, uint64."""
    found = (values + np.uint64(key)) * np.uint64(0xFF51AFD7ED558CCD)  # the finalizer of MurmurHash3; arrays wrap at 2^64
    found ^= found >> np.uint64(33)
    found *= np.uint64(0xC4CEB9FE1A85EC53)
    found ^= found >> np.uint64(33)
    return found


@functools.lru_cache(maxsize=64)
def keys_of(seed: int, epoch: int) -> Tuple[int, ...]:
    """Derive one 64-bit key per round by SplitMix64 from seed and epoch."""
    state = seed & _MASK64
    keys = []
    for step in range(_ROUNDS + 1):
        state = (state + 0x9E3779B97F4A7C15) & _MASK64
        word = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK64
        word ^= word >> 31
        if step == 0:
            state = (word ^ (epoch & _MASK64) * 0xD1342543DE82EF95) & _MASK64  # the first word spreads the seed, then the epoch enters
        else:
            keys.append(word)
    return tuple(keys)


# Move and mirror training images by chance: pure arithmetic on (seed, epoch, sample).
#
# So the pixels are the same for every world size, number of workers and framework, and after a resume.
#
# `crop`: where the dataset is read with a crop, a window of that size anywhere in the image (224 of 256: the recipe for ImageNet). Else a
# border of zeros as wide as an eighth of the image, and a window of the image's own size somewhere in it (for 32 x 32: 4 pixels, the recipe
# for CIFAR in the paper of ResNet). `flip`: mirrored, left and right, one time in two. In integer arithmetic: every numpy gives the same.


CROP, FLIP = "crop", "flip"
AUGMENTATIONS = {"none": frozenset(), CROP: frozenset([CROP]), FLIP: frozenset([FLIP]), "crop-flip": frozenset([CROP, FLIP])}
BORDER = 8  # that part of the image's side
_APART = 0xA54FF53A5F1D36F1  # the numbers here are not those of the order, which is made of the same seed and epoch


def kinds_of(augmentation: str) -> FrozenSet[str]:
    """Return the kinds that a word of the cell stands for. Raises ValueError with the valid words."""
    if augmentation not in AUGMENTATIONS:
        raise ValueError("augmentation %r is not known; valid: %s" % (augmentation, ", ".join(AUGMENTATIONS)))
    return AUGMENTATIONS[augmentation]


class Augmentation(NamedTuple):
    """How the images of a batch are changed by chance: a word of AUGMENTATIONS, and what decides, with the sample, what becomes of each."""

    word: str
    seed: int
    epoch: int


def windows(
    stored: Tuple[int, int], crop: Optional[Tuple[int, int]], samples: np.ndarray, augment: Optional[Augmentation] = None
) -> np.ndarray:
    """Return the window of each sample in its image of size `stored`, int32 (len, 3): the first row, the first column, 1 if it is mirrored.

    With a `crop` the window has that size and lies within the image, in the middle unless `augment` says another place. Without, it has the
    size of the image and may reach over its edges, where pixels are zero. Raises ValueError with the valid words.
    """
    found = np.zeros((len(samples), 3), np.int32)
    size = stored if crop is None else crop
    found[:, :2] = (np.array(stored) - size) // 2
    kinds = kinds_of("none" if augment is None else augment.word)
    if augment is None or not kinds:
        return found
    if CROP in kinds:
        for axis in (0, 1):
            border = stored[axis] // BORDER if crop is None else 0
            places = np.uint64(stored[axis] - size[axis] + 2 * border + 1)
            found[:, axis] = (draw(augment.seed, augment.epoch, samples, axis) % places).astype(np.int64) - border
    if FLIP in kinds:
        found[:, 2] = draw(augment.seed, augment.epoch, samples, 2) & np.uint64(1)
    return found


def draw(seed: int, epoch: int, samples: np.ndarray, which: int) -> np.ndarray:
    """Draw a random number of 64 bits for each sample, the `which`-th that it has in this epoch."""
    first, second = keys_of(seed ^ _APART, epoch)[2 * which : 2 * which + 2]
    return mixed(mixed(samples.astype(np.uint64), first), second)
