"""Read scikit-learn's digits: 1,797 handwritten digits of 8 x 8 pixels, real data that is always at hand.

The package's own data file is read, not the package imported: that takes a second, the file a few milliseconds.
"""

import gzip
import importlib.util
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np

from base.errors import DatasetError
from data_prep.sources import idx, spool
from data_prep.sources.types import ListedSample, Pixels, Prepared, Root

SIDE = 8
_FULL = 16  # the largest value in the file


def prepare(root: Root) -> Prepared:
    """Write pixels 0 to 255 and labels into one file, images first."""
    pixels, labels = _load()
    target = spool.write_scratch(root.scratch / "digits.records", [pixels.tobytes(), labels.tobytes()])
    return Prepared(files=(target,), facts={"samples": len(labels)})


def scan(_root: Root, prepared: Prepared) -> Iterator[ListedSample]:
    """List one sample per line of the package's file."""
    count = prepared.facts["samples"]
    size = SIDE * SIDE
    labels = prepared.files[0].read_bytes()[count * size :]
    for index, label in enumerate(labels):
        yield ListedSample(f"{index:04d}", str(label), size, 0, (0, index * size, SIDE, SIDE))


def open_reader(_root: Root, prepared: Prepared) -> AbstractContextManager[idx.IdxReader]:
    """Open a reader like that of an IDX file."""
    return idx.IdxReader(prepared.files)


def _load() -> tuple[Pixels, Pixels]:
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DatasetError("source: sklearn-digits needs scikit-learn, which is not installed: pip install scikit-learn")
    path = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        with gzip.open(path, "rt", encoding="ascii") as lines:
            table = np.loadtxt(lines, delimiter=",", dtype=np.float64)
    except (OSError, ValueError) as error:
        raise DatasetError(f"{path} cannot be read ({error}): install scikit-learn again") from error
    values = table[:, :-1]
    if values.shape[1] != SIDE * SIDE or values.min() < 0 or values.max() > _FULL:
        raise DatasetError(f"{path} holds something else than digits of {SIDE} x {SIDE} pixels: install scikit-learn again")
    pixels = (values.astype(np.uint32) * 255 + _FULL // 2) // _FULL
    return pixels.astype(np.uint8), table[:, -1].astype(np.uint8)
