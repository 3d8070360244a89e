"""Make images from a seed that can be learned and are the same everywhere: patterns of blocks per class, noise and brightness per sample.

All randomness is the output of blake3, whose bytes no library version changes.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from blake3 import blake3

from data_prep.sources.types import ListedSample, Pixels, Prepared, Root

_BLOCKS = 4
_NOISE = 48  # pixels differ from the pattern by at most this
_BRIGHTNESS = 16


def prepare(_root: Root) -> Prepared:
    """Return an empty result, since there is nothing to find out."""
    return Prepared()


def scan(root: Root, _prepared: Prepared) -> Iterator[ListedSample]:
    """List the samples, whose classes take turns."""
    height, width, channels = root.options["size"][0], root.options["size"][1], root.options["channels"]
    for index in range(root.options["samples"]):
        yield ListedSample(f"{index:08d}", str(index % root.options["classes"]), height * width * channels, 0, (index,))


def open_reader(root: Root, _prepared: Prepared) -> AbstractContextManager["SyntheticReader"]:
    """Open a reader, which makes images when they are read."""
    return nullcontext(SyntheticReader(root))


class SyntheticReader:
    """A reader that makes images; `at` is the sample's number."""

    def __init__(self, root: Root) -> None:
        self.seed: int = root.options["seed"]
        self.shape: tuple[int, int, int] = (*root.options["size"], root.options["channels"])
        self._patterns: dict[str, Pixels] = {}

    def head(self, found: ListedSample, limit: int) -> bytes:
        """Return a name instead of the bytes, since no two samples are alike and to make them twice would be slow."""
        return f"{self.seed}/{found.at[0]}".encode()[:limit]

    def read(self, found: ListedSample) -> Pixels:
        """Make pixels (H, W, C) of pattern + brightness + noise. Nothing is clipped: 64 + 127 + 16 + 48 = 255 and 64 - 16 - 48 = 0."""
        pattern = self._patterns.get(found.label)
        if pattern is None:
            pattern = self._patterns[found.label] = self._pattern(found.label)
        noise = _random(self.seed, f"sample {found.at[0]}", pattern.size + 1)
        brightness = int(noise[-1]) % (2 * _BRIGHTNESS + 1) - _BRIGHTNESS
        shifted = noise[:-1].reshape(self.shape) % np.uint8(2 * _NOISE + 1)
        return pattern + shifted + np.uint8(256 + brightness - _NOISE & 255)  # modulo 256, and the sum lies in 0 to 255

    def _pattern(self, label: str) -> Pixels:
        """Make 4 x 4 blocks of 64 to 191."""
        height, width, channels = self.shape
        blocks = _random(self.seed, f"class {label}", _BLOCKS * _BLOCKS * channels).reshape(_BLOCKS, _BLOCKS, channels) % np.uint8(128)
        rows, columns = np.arange(height) * _BLOCKS // height, np.arange(width) * _BLOCKS // width
        return blocks[rows][:, columns] + np.uint8(64)


def _random(seed: int, what: str, count: int) -> Pixels:
    return np.frombuffer(blake3(f"slipway.synthetic/1 {seed} {what}".encode()).digest(length=count), np.uint8)
