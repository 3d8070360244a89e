"""Build one shard of token sequences: gather the ids of its rows, fill them up to one length, write them as values of many rows each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np

from base.errors import DatasetError
from base.jsonfile import read_json
from base.typed import Count, read_as
from data_prep.build.dataset_file import DATASET_FILE
from data_prep.build.locks import publish_json_of
from data_prep.build.receipt import made_once, receipt_path, shard_path
from data_prep.build.shard_file import make_shard, writing
from data_prep.build.writer import ShardWriter, map_bytes
from data_prep.hashing import FileHashes, hash_file
from data_prep.manifest import DATA_NAME, Progress
from data_prep.sequences.ids import pad_of, type_of
from data_prep.sequences.plan import SequencePlan, read_sequence_plan, rows_path, streams_again
from data_prep.sequences.rows import ROW_BYTES, Rows
from data_prep.sequences.streams import Ids, check_unchanged, read_ids
from data_prep.sources.naming import printable
from data_prep.sources.pread import OpenFiles

SCHEMA: Final = "slipway.sequences-shard/1"
_REPORT_EVERY: Final = 4096


@dataclass(frozen=True, kw_only=True)
class SequenceReceipt:
    """`key` is the plan's name for the content."""

    key: str
    samples: Count
    tokens: Count
    hashes: FileHashes
    schema: str = SCHEMA


def build_sequence_shard(build_dir: Path, index: int, progress: Progress | None = None) -> SequenceReceipt:
    """Make `build_dir/shard-NNNNN.lmdb/` and its receipt; nothing is done where both are there. `progress(samples done, in all)`. Raises
    DatasetError (an id beyond the vocabulary; a source that has changed), NotEnoughSpace, StorageError."""
    plan = read_sequence_plan(build_dir)
    if not 0 <= index < len(plan.shards):
        raise DatasetError(f"{build_dir} has shards 0 to {len(plan.shards) - 1}, not {index}")
    receipt = made_once(
        build_dir,
        index,
        lambda: finished_shard(build_dir, index, plan),
        lambda: make_shard(build_dir, index, lambda: _Shard(plan, build_dir, index), progress),
    )
    if progress is not None:
        progress(plan.shards[index].count, plan.shards[index].count)
    return receipt


def finished_shard(build_dir: Path, index: int, plan: SequencePlan) -> SequenceReceipt | None:
    """The receipt of a shard that needs no more work: it is there, or it went into the finished dataset."""
    path = receipt_path(build_dir, index)
    try:
        receipt = read_as(SequenceReceipt, read_json(path, DatasetError), path, DatasetError)
    except DatasetError:
        return None
    if receipt.schema != SCHEMA or receipt.key != plan.shard_key(index):
        return None
    data = shard_path(build_dir, index) / DATA_NAME
    there = (build_dir / DATASET_FILE).exists() or (data.is_file() and data.stat().st_size == receipt.hashes.bytes)
    return receipt if there else None


class _Shard:
    """The work of one attempt."""

    def __init__(self, plan: SequencePlan, build_dir: Path, index: int) -> None:
        self.plan, self.build_dir, self.index = plan, build_dir, index
        self.planned = plan.shards[index]
        self.doing = f"shard {index} of {plan.name}"
        self.tokens = 0

    def least_bytes(self) -> int:
        """See ShardWork."""
        return self.planned.count * (self.planned.length + 1) * self.plan.width

    def check_source(self) -> None:
        """See ShardWork. Text that has become a stream is not read any more."""
        if self.plan.spec["source"] == "tokens":
            check_unchanged(self.plan.files)

    def write(self, part: Path, progress: Progress | None) -> None:
        """See ShardWork."""
        rows = self._rows()
        if any(not (self.build_dir / stream.path).exists() for stream in self.plan.streams):
            streams_again(self.plan, self.build_dir)
        together = self.plan.rows_per_value(self.planned.length)
        values = -(-len(rows) // together)
        with OpenFiles([self.build_dir / stream.path for stream in self.plan.streams]) as files:
            with writing(part, self.least_bytes(), self.doing):
                writer = ShardWriter(part, map_bytes(values, self.least_bytes()))
            with writer:
                for first in range(0, len(rows), together):
                    value = self._value(files, rows[first : first + together])
                    with writing(part, self.least_bytes() - writer.bytes, self.doing):
                        writer.add(value)
                    if progress is not None:
                        progress(min(first + together, len(rows)), len(rows))
                with writing(part, 0, self.doing):
                    writer.finish()

    def finish(self, hashes: FileHashes) -> SequenceReceipt:
        """See ShardWork."""
        key = self.plan.shard_key(self.index)
        receipt = SequenceReceipt(key=key, samples=self.planned.count, tokens=self.tokens, hashes=hashes)
        publish_json_of(receipt_path(self.build_dir, self.index), asdict(receipt))
        return receipt

    def _rows(self) -> Rows:
        """Its part of the table. Raises DatasetError where that is not the table that was planned."""
        path = rows_path(self.build_dir, self.planned.rows)
        try:
            if hash_file(path).blake3 != self.planned.listed:
                raise DatasetError(f"{path} is damaged: it is not what was planned; remove {self.build_dir} and build again")
            rows = np.fromfile(path, np.uint64, 3 * self.planned.count, offset=ROW_BYTES * self.planned.first)
        except OSError as error:
            raise DatasetError(f"{path} cannot be read: {error.strerror}; remove {self.build_dir} and build again") from error
        return rows.reshape(-1, 3)

    def _value(self, files: OpenFiles, rows: Rows) -> bytes:
        """These rows, filled up. Raises DatasetError for an id that the vocabulary does not have."""
        ids = np.full((len(rows), self.planned.length + 1), pad_of(self.plan.width), type_of(self.plan.width))
        for row, (number, first, count) in zip(ids, rows.tolist(), strict=True):
            stream = self.plan.streams[number]
            found = read_ids(files, number, stream, first, count)
            if found.max() >= self.plan.vocabulary:
                self._refuse(stream.path, first, found)
            row[:count] = found
            self.tokens += count - 1
        return ids.tobytes()

    def _refuse(self, path: str, first: int, found: Ids) -> None:
        at = int(np.argmax(found >= self.plan.vocabulary))
        raise DatasetError(
            f"{printable(path)}: the id at position {first + at} is {found[at]}, and the vocabulary has 0 to {self.plan.vocabulary - 1}; "
            "set vocabulary to the number of ids, id_type to what the file has, or tokenise it again"
        )
