"""All steps for token sequences: put the shards together, or all from the plan on in one call, as `slipway dataset build` does it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from base.jsonfile import canonical_json
from data_prep.build.dataset_file import BuiltDataset
from data_prep.build.locks import held
from data_prep.build.publishing import clear, finished, publish_built
from data_prep.build.receipt import shard_path
from data_prep.build.workers import build_shards
from data_prep.manifest import Progress
from data_prep.sequences.manifest import SequenceManifest, SequenceShard, SequenceSplit, to_bytes
from data_prep.sequences.plan import SequencePlan, plan_sequences, read_sequence_plan
from data_prep.sequences.shard import SequenceReceipt, build_sequence_shard, finished_shard
from data_prep.spec import DatasetSpec

ALONE_BYTES: Final = 32 << 20
"""So much is written here, faster than processes are started for it."""
_PROVENANCE: Final = ("splits", "documents", "vocabulary", "words", "end", "sequence_length", "buckets")


def build_sequences(
    spec: DatasetSpec, name: str, build_dir: Path, datasets_dir: Path, jobs: int | None = None, progress: Progress | None = None
) -> BuiltDataset:
    """See data_prep.build.dataset.build_dataset."""
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
    """Empty shards are left out."""
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
    """Where it came from, without a word about the place."""
    chosen = {key: plan.spec[key] for key in _PROVENANCE if plan.spec.get(key) is not None}
    if "splits" in chosen:
        chosen["splits"] = {name: "apart" if isinstance(split, dict) else split for name, split in chosen["splits"].items()}
    listing = [(file.name, file.split, file.bytes) for file in plan.files]
    return {"kind": plan.spec["source"], "listing_blake3": blake3(canonical_json(listing)).hexdigest(), **chosen}
