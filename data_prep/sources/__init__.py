"""List the kinds of source that hold images, one module each, and estimate what a source holds before it is listed.

A module is loaded when its kind is used: most of them need numpy, and most commands use none.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from data_prep.sources.types import CountedSource, Source
    from data_prep.spec import DatasetSpec

SOURCES: Final = {
    "folder": "folder",
    "list": "listing",
    "tar": "tar",
    "idx": "idx",
    "cifar": "cifar",
    "caffe-lmdb": "caffe_lmdb",
    "lsun": "lsun",
    "tensorpack": "tensorpack",
    "synthetic": "synthetic",
    "sklearn-digits": "sklearn",
}
"""The module of each kind, under the name that study files use."""
COUNTED: Final = ("idx", "cifar")
"""The kinds that can tell the number of their samples from a few headers."""
_SKLEARN_IMAGES: Final = 1797
_PAGE: Final = 4096
_HEADER: Final = 32  # of a Datum and its page
_LARGEST_IN_LEAF: Final = 2000


def source_of(kind: str) -> Source:
    """Return the module of a kind in SOURCES."""
    return cast("Source", import_module(f"data_prep.sources.{SOURCES[kind]}"))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """An estimate, with None for what is not known. `bytes` is the approximate length of the LMDB files."""

    samples: int | None
    bytes: int | None


def estimate(spec: DatasetSpec) -> Estimate:
    """Estimate a resolved specification, reading a few headers at most. Samples are known for synthetic, digits, plain IDX and binary
    CIFAR, bytes for raw images of a known size."""
    return estimate_of(spec, _count(spec))


def _count(spec: DatasetSpec) -> int | None:
    if spec.source not in COUNTED:
        return _SKLEARN_IMAGES if spec.source == "sklearn-digits" else spec.samples
    source = cast("CountedSource", source_of(spec.source))
    counts = [source.estimate(Path(path)) for path in (spec.path, *spec.split_paths.values()) if path is not None]
    return None if None in counts else sum(count or 0 for count in counts)


def estimate_of(spec: DatasetSpec, samples: int | None) -> Estimate:
    """Estimate a specification for a number of samples known from elsewhere: ImageNet's 1,281,167 at 256 x 256 take 0.26 TB."""
    size = spec.known_size
    if spec.encoding != "raw" or size is None:
        return Estimate(samples=samples, bytes=None)
    pixels = size[0] * size[1] * (3 if spec.channels == "rgb" else 1)
    value = pixels + _HEADER
    stored = value if value <= _LARGEST_IN_LEAF else -(-value // _PAGE) * _PAGE
    return Estimate(samples=samples, bytes=None if samples is None else samples * stored)
