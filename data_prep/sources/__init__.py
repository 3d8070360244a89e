"""List the sources of images in SOURCES, one module per kind, under the name that study files use."""

from __future__ import annotations

from data_prep.sources import caffe_lmdb, cifar, digits, folder, idx, listing, lsun, synthetic, tar, tensorpack
from data_prep.sources.types import Source

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
