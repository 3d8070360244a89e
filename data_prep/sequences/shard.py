"""Build one shard of token sequences: gather the ids of its rows, fill them up to one length, write them as values of many rows each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from blake3 import blake3

from base.errors import DatasetError
from base.jsonfile import canonical_json, read_json
from base.typed import Count, read_as
from data_prep.build.locks import held, publish_json_of
from data_prep.build.publishing import DATASET_FILE, BuiltDataset, clear, finished, publish_built
from data_prep.build.receipt import made_once, receipt_path, shard_path
from data_prep.build.shard_file import ShardWriter, make_shard, map_bytes, writing
from data_prep.build.workers import build_shards
from data_prep.hashing import FileHashes, hash_file
from data_prep.manifest import DATA_NAME, Progress
from data_prep.sequences.manifest import SequenceManifest, SequenceShard, SequenceSplit, pad_of, to_bytes, type_of
from data_prep.sequences.plan import (
    ROW_BYTES,
    Ids,
    Rows,
    SequencePlan,
    check_unchanged,
    plan_sequences,
    read_ids,
    read_sequence_plan,
    rows_path,
    streams_again,
)
from data_prep.sources.files import OpenFiles
from data_prep.sources.naming import printable
from data_prep.spec import DatasetSpec

SCHEMA: Final = "slipway.sequences-shard/1"


@dataclass(frozen=True, kw_only=True)
class SequenceReceipt:
    """The receipt of a shard. `key` is the plan's name for the content."""

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
    """Find the receipt of a shard that needs no more work, since it is there or in the finished dataset."""
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
    def __init__(self, plan: SequencePlan, build_dir: Path, index: int) -> None:
        self.plan, self.build_dir, self.index = plan, build_dir, index
        self.planned = plan.shards[index]
        self.doing = f"shard {index} of {plan.name}"
        self.tokens = 0

    def least_bytes(self) -> int:
        return self.planned.count * (self.planned.length + 1) * self.plan.width

    def check_source(self) -> None:
        """Check that the source is unchanged. Text that has become a stream is not read any more, and so not checked."""
        if self.plan.spec["source"] == "tokens":
            check_unchanged(self.plan.files)

    def write(self, part: Path, progress: Progress | None) -> None:
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
        key = self.plan.shard_key(self.index)
        receipt = SequenceReceipt(key=key, samples=self.planned.count, tokens=self.tokens, hashes=hashes)
        publish_json_of(receipt_path(self.build_dir, self.index), asdict(receipt))
        return receipt

    def _rows(self) -> Rows:
        path = rows_path(self.build_dir, self.planned.rows)
        try:
            if hash_file(path).blake3 != self.planned.listed:
                raise DatasetError(f"{path} is damaged: it is not what was planned; remove {self.build_dir} and build again")
            rows = np.fromfile(path, np.uint64, 3 * self.planned.count, offset=ROW_BYTES * self.planned.first)
        except OSError as error:
            raise DatasetError(f"{path} cannot be read: {error.strerror}; remove {self.build_dir} and build again") from error
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
        raise DatasetError(
            f"{printable(path)}: the id at position {first + at} is {found[at]}, and the vocabulary has 0 to {self.plan.vocabulary - 1}; "
            "set vocabulary to the number of ids, id_type to what the file has, or tokenise it again"
        )


# Build


ALONE_BYTES: Final = 32 << 20
"""The limit of bytes that this process writes alone, faster than it would start others."""
_PROVENANCE: Final = ("splits", "documents", "vocabulary", "words", "end", "sequence_length", "buckets")


def build_sequences(
    spec: DatasetSpec, name: str, build_dir: Path, datasets_dir: Path, jobs: int | None = None, progress: Progress | None = None
) -> BuiltDataset:
    """Build token sequences as build_dataset does images."""
    plan = plan_sequences(spec, name, build_dir, progress)
    left = [index for index in range(len(plan.shards)) if finished_shard(build_dir, index, plan) is None]
    done = [0 if index in set(left) else shard.count for index, shard in enumerate(plan.shards)]

    def on_samples(index: int, samples: int) -> None:
        done[index] = samples
        if progress is not None:
            progress(sum(done), plan.samples)

    if sum(plan.shards[index].count * (plan.shards[index].length + 1) * plan.width for index in left) <= ALONE_BYTES:
        for index in left:
            build_sequence_shard(build_dir, index, lambda samples, _total, index=index: on_samples(index, samples))  # type: ignore[misc]
    else:
        build_shards(build_dir, left, jobs or len(os.sched_getaffinity(0)), on_samples)
    return finish_sequences(build_dir, datasets_dir)


def finish_sequences(build_dir: Path, datasets_dir: Path, progress: Progress | None = None) -> BuiltDataset:
    """Publish `datasets_dir/<name>-<digest12>/` and write `build_dir/dataset.json`. A shard that is missing is built here. Raises
    DatasetError, NotEnoughSpace."""
    with held(build_dir / "locks" / "finish"):
        built = finished(build_dir, datasets_dir)
        if built is not None:
            return built
        plan = read_sequence_plan(build_dir)
        receipts = []
        for index in range(len(plan.shards)):
            receipts.append(build_sequence_shard(build_dir, index))
            if progress is not None:
                progress(index + 1, len(plan.shards))
        kept = [index for index, receipt in enumerate(receipts) if receipt.samples]
        manifest = _manifest(plan, [(index, receipts[index]) for index in kept])
        places = [(shard_path(build_dir, index), shard) for index, shard in zip(kept, manifest.shards, strict=True)]
        built = publish_built(build_dir, datasets_dir, plan.spec12, to_bytes(manifest), manifest, places)
        clear(build_dir, len(plan.shards))
        return built


def _manifest(plan: SequencePlan, receipts: Sequence[tuple[int, SequenceReceipt]]) -> SequenceManifest:
    shards = tuple(_shard(plan, number, index, receipt) for number, (index, receipt) in enumerate(receipts))
    return SequenceManifest(
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
        source=_source(plan),
        rejected=plan.rejected,
        rejected_count=plan.rejected_count,
    )


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


def _source(plan: SequencePlan) -> dict[str, Any]:
    """Describe the source without its place."""
    chosen = {key: plan.spec[key] for key in _PROVENANCE if plan.spec.get(key) is not None}
    if "splits" in chosen:
        chosen["splits"] = {name: "apart" if isinstance(split, dict) else split for name, split in chosen["splits"].items()}
    listing = [(file.name, file.split, file.bytes) for file in plan.files]
    return {"kind": plan.spec["source"], "listing_blake3": blake3(canonical_json(listing)).hexdigest(), **chosen}
