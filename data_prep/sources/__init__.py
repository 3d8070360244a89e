"""List the kinds of source that hold images, one module each, and estimate what a source holds before it is listed.

A module is loaded when its kind is used: most of them need numpy, and most commands use none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from data_prep.sources.types import Source
    from data_prep.spec import DatasetSpec

SOURCES: Final = {
    "folder": "folder",
    "list": "listing",
    "tar": "tar",
    "idx": "idx",
    "cifar": "cifar",
    "caffe-lmdb": "caffe_lmdb",
    "lsun": "lsun",
    "synthetic": "synthetic",
    "sklearn-digits": "sklearn",
}
"""The module of each kind, under the name that study files use."""
_SKLEARN_IMAGES: Final = 1797
_PAGE: Final = 4096
_HEADER: Final = 32  # of a Datum and its page
_LARGEST_IN_LEAF: Final = 2000


def source_of(kind: str) -> Source:
    """Return the module of a kind in SOURCES."""
    return cast("Source", import_module(f"data_prep.sources.{SOURCES[kind]}"))


def known_samples(spec: DatasetSpec) -> int | None:
    """Return the number of samples where the specification tells it."""
    return _SKLEARN_IMAGES if spec.source == "sklearn-digits" else spec.samples


def estimated_bytes(spec: DatasetSpec, samples: int | None) -> int | None:
    """Estimate the length of the LMDB files of raw images of a known size: ImageNet's 1,281,167 at 256 x 256 take 0.26 TB."""
    size = spec.known_size
    if spec.encoding != "raw" or size is None or samples is None:
        return None
    value = size[0] * size[1] * (3 if spec.channels == "rgb" else 1) + _HEADER
    return samples * (value if value <= _LARGEST_IN_LEAF else -(-value // _PAGE) * _PAGE)
