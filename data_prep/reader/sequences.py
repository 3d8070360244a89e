"""A staged dataset of token sequences as a training program sees it: rows of ids that are read by number."""

import os
from bisect import bisect_right
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from . import shards
from .errors import DatasetChanged, ReaderError

PAD = -1
"""Stands where a row has no token."""


class Sequences:
    """What the manifest says, and the splits. A program sees at most `length` tokens of a row. Holds no open file."""

    def __init__(self, root: str, manifest: Dict[str, Any]) -> None:
        self.root = root
        self.manifest = manifest
        self.name: str = manifest["name"]
        self.vocabulary: int = manifest["vocabulary"]
        self.lengths: List[int] = list(manifest["lengths"])
        self.length = self.lengths[-1]

    @property
    def shapes(self) -> Tuple[List[int], List[int]]:
        """Of what a network is given for a sample, and of what it answers."""
        return [self.length], [self.length, self.vocabulary]

    def split(self, name: str) -> "SequenceSplit":
        """The rows of one split. Raises ReaderError with the names there are."""
        if name not in self.manifest["splits"]:
            raise ReaderError("%s has no split %r; it has: %s" % (self.root, name, ", ".join(sorted(self.manifest["splits"]))))
        return SequenceSplit(self, name)

    def groups(self, name: str) -> Tuple[int, ...]:
        """How many rows of a split have one length, the shortest first: a batch is of rows of one length."""
        return tuple(self.rows_of_lengths(name).values())

    def rows_of_lengths(self, name: str) -> Dict[int, int]:
        """The same by length."""
        found = {}  # type: Dict[int, int]
        for index in self.manifest["splits"][name]["shards"]:
            shard = self.manifest["shards"][index]
            found[shard["length"]] = found.get(shard["length"], 0) + shard["samples"]
        return found


class SequenceSplit:
    """Rows 0 .. len-1, the shortest first. Safe to pickle, to fork and to share between threads."""

    def __init__(self, dataset: Sequences, name: str) -> None:
        chosen = [dataset.manifest["shards"][index] for index in dataset.manifest["splits"][name]["shards"]]
        self.name = name
        self.width: int = dataset.manifest["id_bytes"]
        self.paths = [os.path.join(dataset.root, shard["name"]) for shard in chosen]
        self.bytes = [shard["bytes"] for shard in chosen]
        self.lengths = [shard["length"] for shard in chosen]
        self.rows = [shard["rows"] for shard in chosen]
        self.starts = [0]
        for shard in chosen:
            self.starts.append(self.starts[-1] + shard["samples"])

    def __len__(self) -> int:
        return self.starts[-1]

    def read(self, index: int) -> np.ndarray:
        """The tokens of one row, int32, without what fills it up."""
        row = self.read_many([index])[0]
        return row[row != PAD]

    def read_many(self, indices: Sequence[int], out: Optional[np.ndarray] = None) -> np.ndarray:
        """Rows of one bucket, int32 (len, length of the bucket + 1), filled up with PAD. Fills `out` (as long, or longer) and returns
        its part. Raises ReaderError for rows of several lengths.
        """
        places = [self._place(int(index)) for index in indices]
        length = self.lengths[places[0][0]] if places else 0
        ids = np.empty((len(places), length + 1), np.int32) if out is None else out[: len(places), : length + 1]
        for position, (shard, number) in enumerate(places):
            if self.lengths[shard] != length:
                raise ReaderError("rows of %d and of %d tokens of split %r make no batch" % (length, self.lengths[shard], self.name))
            ids[position] = self._row(shard, number)
        ids[ids == self._pad] = PAD
        return ids

    def prefetch(self, indices: Sequence[int]) -> None:
        """Have the kernel read these rows while others are used. Advice only: it never changes a result."""
        by_shard = {}  # type: Dict[int, List[bytes]]
        for index in sorted(indices):
            shard, number = self._place(int(index))
            by_shard.setdefault(shard, []).append(b"%08d" % (number // self.rows[shard]))
        for shard, keys in by_shard.items():
            shards.will_need(self.paths[shard], self.bytes[shard], keys)

    @property
    def _pad(self) -> int:
        """What fills a row up, as int32 has it."""
        return 65535 if self.width == 2 else -1

    def _place(self, index: int) -> Tuple[int, int]:
        """The shard of a row, and its number there."""
        if not 0 <= index < self.starts[-1]:
            raise IndexError("row %d of split %r, which has %d" % (index, self.name, len(self)))
        shard = bisect_right(self.starts, index) - 1
        return shard, index - self.starts[shard]

    def _row(self, shard: int, number: int) -> np.ndarray:
        value, row = divmod(number, self.rows[shard])
        here = min(self.rows[shard], self.starts[shard + 1] - self.starts[shard] - value * self.rows[shard])
        each = (self.lengths[shard] + 1) * self.width
        key = b"%08d" % value

        def take(content: memoryview) -> bytes:
            if len(content) != here * each:
                raise DatasetChanged(
                    "%s, value %s: %d bytes, expected %d rows of %d; stage the dataset again"
                    % (self.paths[shard], key.decode(), len(content), here, each)
                )
            return bytes(content[row * each : (row + 1) * each])

        return np.frombuffer(shards.use(self.paths[shard], self.bytes[shard], key, take), "<u2" if self.width == 2 else "<i4")
