"""Read a staged Slipway dataset: LMDB shards of Caffe Datums, listed in a manifest. Needs numpy and lmdb; Python 3.6 or newer.

On a program's path this package is `slipway_reader`; it imports nothing else of Slipway.
"""

from .dataset import Dataset, Split, open_dataset
from .errors import DatasetChanged, DatumError, DecodeError, ReaderError
from .sampling import batch_indices, order
from .parent_process import die_with_parent

__all__ = [
    "DatasetChanged",
    "Dataset",
    "DatumError",
    "DecodeError",
    "ReaderError",
    "Split",
    "batch_indices",
    "die_with_parent",
    "open_dataset",
    "order",
]
