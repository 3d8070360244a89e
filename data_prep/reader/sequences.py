"""Read a staged dataset of token sequences in a training program: rows of ids that are read by number."""

from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from . import shards
from .errors import DatasetChanged, ReaderError

PAD = -1
"""The id where a row has no token."""


def inputs_and_targets(rows: Any) -> Tuple[Any, Any]:
    """Split rows of token ids, [batch, tokens + 1]: what a network is given, and what shall follow each of these, -1 where nothing does.
    Where an input is no token it is 0, which no target depends on."""
    return rows[:, :-1].clip(min=0), rows[:, 1:]


class Sequences:
    """A dataset: the values of the manifest, and the splits. A program sees at most `length` tokens of a row. It holds no open file."""

    def __init__(self, root: str, manifest: Dict[str, Any]) -> None:
        self.root = root
        self.manifest = manifest
        self.name: str = manifest["name"]
        self.vocabulary: int = manifest["vocabulary"]
        self.lengths: List[int] = list(manifest["lengths"])
        self.length = self.lengths[-1]

    @property
    def shapes(self) -> Tuple[List[int], List[int]]:
        """Return the shapes of a network's input for one sample, and of its output."""
        return [self.length], [self.length, self.vocabulary]

    def split(self, name: str) -> "SequenceSplit":
        """Return the rows of a split. Raises ReaderError with the valid names."""
        return SequenceSplit(self, name)

    def groups(self, name: str) -> Tuple[int, ...]:
        """Return how many rows of a split have each length, the shortest first. A batch is of rows of one length."""
        return tuple(self.rows_of_lengths(name).values())

    def rows_of_lengths(self, name: str) -> Dict[int, int]:
        found = {}  # type: Dict[int, int]
        for index in self.manifest["splits"][name]["shards"]:
            shard = self.manifest["shards"][index]
            found[shard["length"]] = found.get(shard["length"], 0) + shard["samples"]
        return found


class SequenceSplit(shards.Samples):
    """A split: rows 0 .. len-1, the shortest first. It is safe to pickle, to fork and to share between threads."""

    def __init__(self, dataset: Sequences, name: str) -> None:
        super().__init__(dataset.root, dataset.manifest, name)
        self.width: int = dataset.manifest["id_bytes"]
        chosen = [dataset.manifest["shards"][index] for index in dataset.manifest["splits"][name]["shards"]]
        self.lengths = [shard["length"] for shard in chosen]
        self.rows = [shard["rows"] for shard in chosen]
        self.shape = (self.lengths[0] + 1,) if len(set(self.lengths)) == 1 else None
        """The shape of every row, or None where rows differ."""
        self.dtype = np.dtype(np.int32)

    def read(self, index: int) -> np.ndarray:
        """Read the tokens of a row, int32, without the padding."""
        row = self.read_many([index])[0]
        return row[row != PAD]

    def read_many(self, indices: Sequence[int], out: Optional[np.ndarray] = None) -> np.ndarray:
        """Read rows of one bucket, int32 (len, length of the bucket + 1), filled up with PAD. The rows go to `out` (as long, or longer),
        whose filled part is returned. Raises ReaderError for rows of several lengths."""
        rows = [int(index) for index in indices]
        places = [self._number(row) for row in rows]
        length = self.lengths[places[0][0]] if places else 0
        if any(self.lengths[shard] != length for shard, _ in places):
            other = next(self.lengths[shard] for shard, _ in places if self.lengths[shard] != length)
            raise ReaderError(
                "a batch has rows of one length, found %d and %d tokens in split %r; take rows of one group" % (length, other, self.name)
            )
        ids = np.empty((len(places), length + 1), np.int32) if out is None else out[: len(places), : length + 1]

        def take(first: int, values: Sequence[memoryview]) -> None:
            for position, value in enumerate(values, first):
                ids[position] = self._row(value, *places[position])

        shards.use_many(self._places(rows), take)
        ids[ids == self._pad] = PAD
        return ids

    @property
    def _pad(self) -> int:
        return 65535 if self.width == 2 else -1

    def _row(self, content: memoryview, shard: int, number: int) -> np.ndarray:
        value, row = divmod(number, self.rows[shard])
        here = min(self.rows[shard], self.starts[shard + 1] - self.starts[shard] - value * self.rows[shard])
        each = (self.lengths[shard] + 1) * self.width
        if len(content) != here * each:
            raise DatasetChanged(
                "%s, value %08d: %d bytes, expected %d rows of %d; stage the dataset again"
                % (self.paths[shard], value, len(content), here, each)
            )
        return np.frombuffer(content[row * each : (row + 1) * each], "<u2" if self.width == 2 else "<i4")
