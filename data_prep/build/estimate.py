"""What a dataset will take, without touching more than a few headers: for a plan, before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from data_prep.build.roots import roots_of
from data_prep.sources import SOURCES
from data_prep.spec import DatasetSpec

_PAGE = 4096
_HEADER = 32  # of a Datum and its page
_LARGEST_IN_LEAF = 2000


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """None where it is not known. `bytes` are those of the LMDB files, about."""

    samples: int | None
    bytes: int | None


def estimate(spec: DatasetSpec) -> Estimate:
    """Of a resolved specification: samples of synthetic, digits, plain IDX and binary CIFAR; bytes of raw images of a known size."""
    counts = [SOURCES[spec.source].estimate(root) for root in roots_of(spec, Path("/nonexistent"))]
    known = [count for count in counts if count is not None]
    samples = sum(known) if len(known) == len(counts) else None
    return estimate_of(spec, samples)


def estimate_of(spec: DatasetSpec, samples: int | None) -> Estimate:
    """The same for a number of samples known from elsewhere: ImageNet's 1,281,167 at 256 x 256 are 0.26 TB."""
    size = spec.known_size
    if spec.encoding != "raw" or size is None:
        return Estimate(samples=samples, bytes=None)
    pixels = size[0] * size[1] * (3 if spec.channels == "rgb" else 1)
    value = pixels + _HEADER
    stored = value if value <= _LARGEST_IN_LEAF else -(-value // _PAGE) * _PAGE
    return Estimate(samples=samples, bytes=None if samples is None else samples * stored)
