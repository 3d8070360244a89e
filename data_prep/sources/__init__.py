"""List the sources of images in SOURCES, one module per kind, under the name that study files use."""

from __future__ import annotations

from collections.abc import Callable

from data_prep.sources import caffe_lmdb, cifar, digits, folder, idx, listing, lsun, synthetic, tar, tensorpack
from data_prep.sources.types import Root, Source

SOURCES: dict[str, Source] = {
    "folder": folder,
    "list": listing,
    "tar": tar,
    "idx": idx,
    "cifar": cifar,
    "caffe-lmdb": caffe_lmdb,
    "lsun": lsun,
    "tensorpack": tensorpack,
    "synthetic": synthetic,
    "sklearn-digits": digits,
}
ESTIMATES: dict[str, Callable[[Root], int | None]] = {
    "idx": idx.estimate,
    "cifar": cifar.estimate,
    "synthetic": synthetic.estimate,
    "sklearn-digits": digits.estimate,
}
"""Return the number of samples of a place where it is known without listing, else None. They raise nothing. Other sources are not known."""
