"""Estimate what a dataset will take before anything is built, reading a few headers at most."""

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
    """An estimate, with None for what is not known. `bytes` is the approximate length of the LMDB files."""

    samples: int | None
    bytes: int | None


def estimate(spec: DatasetSpec) -> Estimate:
    """Estimate a resolved specification.

    Samples are known for synthetic, digits, plain IDX and binary CIFAR, bytes for raw images of a known size.
    """
    counts = [SOURCES[spec.source].estimate(root) for root in roots_of(spec, Path("/nonexistent"))]
    known = [count for count in counts if count is not None]
    samples = sum(known) if len(known) == len(counts) else None
    return estimate_of(spec, samples)


def estimate_of(spec: DatasetSpec, samples: int | None) -> Estimate:
    """Estimate a specification for a number of samples known from elsewhere: ImageNet's 1,281,167 at 256 x 256 take 0.26 TB."""
    size = spec.known_size
    if spec.encoding != "raw" or size is None:
        return Estimate(samples=samples, bytes=None)
    pixels = size[0] * size[1] * (3 if spec.channels == "rgb" else 1)
    value = pixels + _HEADER
    stored = value if value <= _LARGEST_IN_LEAF else -(-value // _PAGE) * _PAGE
    return Estimate(samples=samples, bytes=None if samples is None else samples * stored)
