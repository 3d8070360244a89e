"""Build one shard of token sequences: gather the ids of its rows, fill them up to one length, write them as values of many rows each."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from blake3 import blake3

from base import errors, jsonfile, typed
from data_prep.build.lmdb_writer import LmdbWriter
from data_prep.build.steps import Kind, ShardReceipt, end_file, has_shard, make_shard, publish_shards, source_facts
from data_prep.free_space import writing
from data_prep.hashing import FileHashes, hash_file
from data_prep.manifest import DATA_NAME, Progress
from data_prep.sequences import plan as planning
from data_prep.sequences.manifest import SequenceManifest, SequenceShard, SequenceSplit, pad_of, type_of
from data_prep.sequences.plan import ROW_BYTES, Ids, Rows, SequencePlan, read_ids, rows_path, streams_again
from data_prep.sources.files import OpenFiles, check_unchanged
from data_prep.sources.naming import printable

SCHEMA: Final = "slipway.sequences-shard/2"


@dataclass(frozen=True, kw_only=True)
class SequenceReceipt(ShardReceipt):
    """The receipt of a shard of sequences."""

    tokens: typed.Count


def _build(build_dir: Path, index: int, plan: SequencePlan, progress: Progress) -> SequenceReceipt:
    return make_shard(build_dir, index, _Shard(plan, build_dir, index), progress)


class _Shard:
    def __init__(self, plan: SequencePlan, build_dir: Path, index: int) -> None:
        self.plan, self.build_dir, self.index = plan, build_dir, index
        self.planned = plan.shards[index]
        self.doing = f"shard {index} of {plan.name}"
        self.tokens = 0

    def least_bytes(self) -> int:
        return self.plan.part_bytes(self.index)

    def check_source(self) -> None:
        """Check that the source is unchanged. Text that has become a stream is not read any more, and so not checked."""
        if self.plan.spec["source"] == "tokens":
            check_unchanged(file.watched for file in self.plan.files)

    def write(self, part: Path, progress: Progress) -> FileHashes:
        rows = self._rows()
        if any(not (self.build_dir / stream.path).exists() for stream in self.plan.streams):
            streams_again(self.plan, self.build_dir)
        together = self.plan.rows_per_value(self.planned.length)
        with OpenFiles([self.build_dir / stream.path for stream in self.plan.streams]) as files:
            with writing(part, self.least_bytes(), self.doing):
                writer = LmdbWriter(part / DATA_NAME)
            with writer:
                for first in range(0, len(rows), together):
                    value = self._value(files, rows[first : first + together])
                    with writing(part, self.least_bytes() - writer.bytes, self.doing):
                        writer.add(value)
                    progress(min(first + together, len(rows)), len(rows))
                with writing(part, 0, self.doing):
                    return end_file(writer, part)

    def receipt(self, hashes: FileHashes) -> SequenceReceipt:
        key = self.plan.part_key(self.index)
        return SequenceReceipt(key=key, samples=self.planned.count, tokens=self.tokens, hashes=hashes)

    def _rows(self) -> Rows:
        path = rows_path(self.build_dir, self.planned.rows)
        try:
            if hash_file(path).blake3 != self.planned.listed:
                raise errors.DatasetError(f"{path} is damaged: it is not what was planned; remove {self.build_dir} and build again")
            rows = np.fromfile(path, np.uint64, 3 * self.planned.count, offset=ROW_BYTES * self.planned.first)
        except OSError as error:
            raise errors.DatasetError(f"{path} cannot be read: {error.strerror}; remove {self.build_dir} and build again") from error
        return rows.reshape(-1, 3)

    def _value(self, files: OpenFiles, rows: Rows) -> bytes:
        """Fill up rows to one length and encode them. Raises DatasetError for an id outside the vocabulary."""
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
        raise errors.DatasetError(
            f"{printable(path)}: the id at position {first + at} is {found[at]}, and the vocabulary has 0 to {self.plan.vocabulary - 1}; "
            "set vocabulary to the number of ids, id_type to what the file has, or tokenise it again"
        )


# Finish


_PROVENANCE: Final = ("splits", "documents", "vocabulary", "words", "end", "sequence_length", "buckets")


def _manifest(plan: SequencePlan, receipts: Sequence[SequenceReceipt]) -> tuple[SequenceManifest, list[int]]:
    """Make the manifest without empty shards, and list for each of its shards the number in the plan."""
    kept = [index for index, receipt in enumerate(receipts) if receipt.samples]
    shards = tuple(_shard(plan, number, index, receipts[index]) for number, index in enumerate(kept))
    listing = [(file.name, file.split, file.bytes) for file in plan.files]
    manifest = SequenceManifest(
        name=plan.name,
        vocabulary=plan.vocabulary,
        words=plan.words,
        id_bytes=plan.width,
        end=plan.end,
        lengths=tuple(plan.spec.get("buckets") or [plan.spec["sequence_length"]]),
        splits={split: _split(split, shards) for split in dict.fromkeys(shard.split for shard in shards)},
        samples=sum(shard.samples for shard in shards),
        tokens=sum(shard.tokens for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
        shards=shards,
        source=source_facts(plan.spec, _PROVENANCE, blake3(jsonfile.canonical_json(listing)).hexdigest()),
        rejected=plan.rejected,
        rejected_count=plan.rejected_count,
    )
    return manifest, kept


def _shard(plan: SequencePlan, number: int, index: int, receipt: SequenceReceipt) -> SequenceShard:
    planned = plan.shards[index]
    return SequenceShard(
        name=f"shard-{number:05d}.lmdb",
        split=planned.split,
        length=planned.length,
        rows=plan.rows_per_value(planned.length),
        samples=receipt.samples,
        tokens=receipt.tokens,
        **vars(receipt.hashes),
    )


def _split(name: str, shards: Sequence[SequenceShard]) -> SequenceSplit:
    own = [(position, shard) for position, shard in enumerate(shards) if shard.split == name]
    return SequenceSplit(
        samples=sum(shard.samples for _, shard in own),
        tokens=sum(shard.tokens for _, shard in own),
        shards=tuple(position for position, _ in own),
    )


KIND: Final = Kind(
    plan_type=SequencePlan,
    plan_schema=planning.SCHEMA,
    receipt_type=SequenceReceipt,
    receipt_schema=SCHEMA,
    make_plan=planning.make_plan,
    make_part=_build,
    is_whole=has_shard,
    publish=partial(publish_shards, _manifest),
    alone_bytes=32 << 20,
)
"""Datasets of token sequences."""
