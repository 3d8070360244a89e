"""Read a staged Slipway dataset: LMDB shards of Caffe Datums, or of rows of token ids, listed in a manifest.

It needs numpy, and Python 3.6 or newer. On a program's path this package is `slipway_reader`; it imports nothing else of Slipway.
"""

from .batches import Batches, Loader, Position
from .dataset import Dataset, Split, open_dataset
from .errors import DatasetChanged, DatumError, DecodeError, ReaderError
from .loaders import loader_processes
from .sampling import Augmentation, grouped_batch, order
from .sequences import PAD, Sequences, SequenceSplit, inputs_and_targets
from .pixels import copies_by
from .shards import waits_for_disk
from .parent_process import die_with_parent

__all__ = [
    "Augmentation",
    "Batches",
    "DatasetChanged",
    "Dataset",
    "DatumError",
    "DecodeError",
    "Loader",
    "PAD",
    "Position",
    "ReaderError",
    "SequenceSplit",
    "Sequences",
    "Split",
    "copies_by",
    "die_with_parent",
    "grouped_batch",
    "inputs_and_targets",
    "loader_processes",
    "open_dataset",
    "order",
    "waits_for_disk",
]
