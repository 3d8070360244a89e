"""Keep all samples of a source in little memory, and decide their order, duplicates, bounds per class, splits and shards.

The decisions are pure functions. A sample takes some 200 bytes: one line of JSON, the numbers in arrays.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from data_prep.sources.naming import to_raw
from data_prep.sources.types import Found

Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]
_ORDER = b"slipway.order/1"


class Listing:
    """The samples in the order in which they were listed. `freeze` turns the arrays into numpy's."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.labels: dict[str, int] = {}
        self.origins: dict[str | None, int] = {}
        self._numbers = array("q")  # label, origin, size
        self._keys = bytearray()  # 16 bytes each: where in the order

    def add(self, found: Found, line: bytes) -> None:
        """Add a sample and the line that will stand for it."""
        label = self.labels.setdefault(found.label, len(self.labels))
        origin = self.origins.setdefault(found.split, len(self.origins))
        self._numbers.extend((label, origin, found.size))
        self._keys += blake3(b"\0".join((_ORDER, (found.split or "").encode(), to_raw(found.name)))).digest(length=16)
        self.lines.append(line)

    def __len__(self) -> int:
        return len(self.lines)

    @property
    def numbers(self) -> Numbers:
        """Return an array (n, 3) of label, origin and size."""
        return np.frombuffer(self._numbers, np.int64).reshape(-1, 3)

    @property
    def keys(self) -> Hashes:
        """Return an array (n, 2) of places in the order.

        They are hashes of the names, so that classes are mixed and the order of listing has no influence.
        """
        return np.frombuffer(bytes(self._keys), ">u8").reshape(-1, 2).astype(np.uint64)


def in_order(keys: Hashes, *groups: Numbers) -> Numbers:
    """Sort positions by `groups`, the first one most significant, then by key. Equal ones keep their order."""
    return np.lexsort((keys[:, 1], keys[:, 0], *reversed(groups)))


def repeated(keys: Hashes) -> Mask:
    """Mark samples that have the name of an earlier one."""
    order = in_order(keys)
    mask = np.zeros(len(keys), bool)
    same = (keys[order[1:]] == keys[order[:-1]]).all(axis=1)
    mask[order[1:][same]] = True
    return mask


def too_many(keys: Hashes, labels: Numbers, origins: Numbers, kept: Mask, maximum: int) -> Mask:
    """Mark samples beyond the first `maximum` of their class and origin, in the order of the keys."""
    positions = np.flatnonzero(kept)
    order = positions[in_order(keys[positions], origins[positions], labels[positions])]
    mask = np.zeros(len(keys), bool)
    if len(order) == 0:
        return mask
    group = np.stack([origins[order], labels[order]])
    starts = np.flatnonzero(np.r_[True, (group[:, 1:] != group[:, :-1]).any(axis=0)])
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    mask[order[rank >= maximum]] = True
    return mask


def by_content(hashes: Hashes, fractions: Mapping[str, float]) -> dict[str, Mask]:
    """Assign samples to splits by where the hash of their content lies in 0 to 2^64, so that equal images stay together.

    A split that got nothing gets the sample with the smallest hash that is left for train. Raises ValueError when there are too few.
    """
    taken: dict[str, Mask] = {}
    free = np.ones(len(hashes), bool)
    start = 0.0
    for name in sorted(fractions):
        end = start + fractions[name]
        taken[name] = (hashes >= _threshold(start)) & (hashes < _threshold(end))
        free &= ~taken[name]
        start = end
    for name in sorted(fractions):
        if not taken[name].any() and free.any():
            taken[name] = free & (hashes == hashes[free].min())
            free &= ~taken[name]
    if not free.any() or not all(mask.any() for mask in taken.values()):
        raise ValueError(f"{len(np.unique(hashes))} different images are too few to share out over train, {', '.join(sorted(fractions))}")
    return taken


def _threshold(fraction: float) -> np.uint64:
    return np.uint64(min(int(fraction * 2**64), 2**64 - 1))


def shards_per_split(samples: Mapping[str, int], shards: int) -> dict[str, int]:
    """Divide `shards` among the splits in proportion to their samples, at least one each. Raises ValueError for too few."""
    if shards < len(samples):
        raise ValueError(f"{shards} shards for {len(samples)} splits ({', '.join(samples)}): each needs one of its own")
    counts = dict.fromkeys(samples, 1)
    for _ in range(shards - len(samples)):
        counts[max(counts, key=lambda name: (samples[name] / counts[name], name))] += 1
    return counts


def slices(count: int, parts: int) -> list[tuple[int, int]]:
    """Divide `count` items into `parts` runs whose lengths differ by one at most."""
    bounds = [count * part // parts for part in range(parts + 1)]
    return list(zip(bounds[:-1], bounds[1:], strict=True))


def listing_digest(keys: Hashes, labels: Numbers, sizes: Numbers, order: Numbers, classes: Sequence[str]) -> str:
    """Compute the identity of the source's listing.

    It is the blake3 over names (by their hash), classes and sizes of the selected samples, in order.
    """
    digest = blake3(json.dumps(list(classes)).encode())
    digest.update(keys[order].astype(">u8").tobytes())
    digest.update(np.stack([labels[order], sizes[order]], axis=1).astype(">i8").tobytes())
    return digest.hexdigest()
