"""Compute mean and deviation of decoded pixels per channel, and the mean image, exactly: whole numbers are summed and divided once."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from base.typed import Count
from data_prep.sources.types import Pixels

_BLOCK_BYTES = 1 << 20  # so that the squares stay in the processor's cache
_MOST_ROWS = 65_000  # 255^2 times as many still fits 32 bits


@dataclass(frozen=True, kw_only=True)
class PixelSums:
    """The sum of the values and of their squares per channel, over `pixels` pixels each.

    `image` holds the sums of each pixel of the image, as base64 of unsigned 64-bit numbers, or None if they are not requested.
    """

    pixels: Count
    sums: tuple[Count, ...]
    squares: tuple[Count, ...]
    image: str | None = None


class PixelCounter:
    """A counter that adds up images of one number of channels. `with_image` adds up each pixel too, of images of one size."""

    def __init__(self, channels: int, *, with_image: bool = False) -> None:
        self.channels = channels
        self._with_image = with_image
        self._image: npt.NDArray[np.uint64] | None = None
        self._pixels = 0
        self._sums = [0] * channels
        self._squares = [0] * channels

    def add(self, image: Pixels) -> None:
        """Add an image (H, W, C)."""
        if self._with_image and self._image is None:
            self._image = np.zeros(image.shape, np.uint64)
        if self._image is not None and self._image.shape == image.shape:  # where sizes differ the dataset is refused at its end
            self._image += image
        rows = np.ascontiguousarray(image).reshape(image.shape[0], -1)
        step = min(_MOST_ROWS, max(1, _BLOCK_BYTES // rows.shape[1]))
        for start in range(0, len(rows), step):
            self._add_rows(rows[start : start + step])
        self._pixels += image.shape[0] * image.shape[1]

    def _add_rows(self, rows: Pixels) -> None:
        squared = rows.astype(np.uint16)
        squared *= squared
        for totals, columns in ((self._sums, rows), (self._squares, squared)):
            per_column = columns.sum(axis=0, dtype=np.uint32).reshape(-1, self.channels)
            for channel, total in enumerate(per_column.sum(axis=0, dtype=np.uint64).tolist()):
                totals[channel] += total

    def total(self) -> PixelSums:
        """Return the sums over all images that were added until now."""
        image = None if self._image is None else base64.b64encode(self._image.astype("<u8").tobytes()).decode()
        return PixelSums(pixels=self._pixels, sums=tuple(self._sums), squares=tuple(self._squares), image=image)


def mean_and_std(parts: Iterable[PixelSums], channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and population standard deviation, 0 to 255, one per channel; zeros for no pixels at all."""
    count, sums, squares = 0, [0] * channels, [0] * channels
    for part in parts:
        count += part.pixels
        sums = _added(sums, part.sums)
        squares = _added(squares, part.squares)
    if count == 0:
        return (0.0,) * channels, (0.0,) * channels
    mean = tuple(total / count for total in sums)
    std = tuple(math.sqrt((count * square - total * total) / (count * count)) for total, square in zip(sums, squares, strict=True))
    return mean, std


def mean_image(parts: Iterable[PixelSums], shape: tuple[int, int, int]) -> str:
    """Return the mean of each pixel, 0 to 255, as base64 of little-endian float32 in the order height, width, channels. Raises ValueError
    for sums of another shape."""
    total, pixels = np.zeros(shape, np.uint64), 0
    for part in parts:
        if part.image is not None:
            total += np.frombuffer(base64.b64decode(part.image), "<u8").reshape(shape)
            pixels += part.pixels
    mean = total / (pixels // (shape[0] * shape[1]))
    return base64.b64encode(mean.astype("<f4").tobytes()).decode()


def _added(left: Sequence[int], right: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(left, right, strict=True)]
