"""Put the shards together: write the manifest, publish the dataset, and last write `dataset.json`, the only file that runs depend on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from base.errors import DatasetError
from data_prep.build.images import mean_and_std, mean_image
from data_prep.build.plan_file import Plan, read_plan
from data_prep.build.selection import Rejections
from data_prep.build.shard import Receipt, build_shard, differing_sizes
from data_prep.build.steps import BuiltDataset, finish_shards, source_facts
from data_prep.manifest import Manifest, Progress, Shard, Split
from data_prep.spec import TRAIN

_PROVENANCE = ("splits", "per_class", "quality", "samples", "classes", "seed")


def finish_dataset(build_dir: Path, datasets_dir: Path, progress: Progress | None = None) -> BuiltDataset:
    """Publish `datasets_dir/<name>-<digest12>/` and write `build_dir/dataset.json`. A shard that is missing is built here. Raises
    DatasetError (no usable image in a split, sizes that differ, more rejected than allowed), NotEnoughSpace."""
    plan = read_plan(build_dir)
    return finish_shards(build_dir, datasets_dir, plan, lambda index: build_shard(build_dir, index), _manifest, progress)


def _manifest(plan: Plan, receipts: Sequence[Receipt]) -> tuple[Manifest, list[int]]:
    """Make the manifest without empty shards, and list for each of its shards the number in the plan."""
    rejections = Rejections()
    rejections.merge(plan.rejected, plan.rejected_count)
    for receipt in receipts:
        rejections.merge(receipt.rejected, receipt.rejected_count)
    kept = [index for index, receipt in enumerate(receipts) if receipt.samples]
    shards = tuple(_shard(number, plan.shards[index].split, receipts[index]) for number, index in enumerate(kept))
    splits = {split: _split(split, shards, [receipts[index] for index in kept]) for split in dict.fromkeys(s.split for s in plan.shards)}
    _check_usable(plan, splits, rejections)
    conversion = plan.conversion
    of_train = [receipt.pixel_sums for receipt, planned in zip(receipts, plan.shards, strict=True) if planned.split == TRAIN]
    mean, std = mean_and_std(of_train, conversion.channels)
    size = _size(plan, [receipts[index] for index in kept])
    has_image = bool(plan.spec.get("mean_image"))
    if has_image and size is None:
        raise DatasetError(f"{plan.name}: mean_image: true needs images of one size, and these differ; give size")
    provenance = [key for key in _PROVENANCE if key != "quality" or conversion.encoding != "raw"]
    manifest = Manifest(
        name=plan.name,
        encoding=conversion.encoding,
        layout=conversion.layout,
        channels=conversion.channels,
        size=size,
        resize=conversion.resize,
        classes=plan.classes,
        splits=splits,
        mean=mean,
        std=std,
        mean_image=mean_image(of_train, (*size, conversion.channels)) if has_image and size is not None else None,
        samples=sum(shard.samples for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
        shards=shards,
        source=source_facts(plan.spec, provenance, plan.listing_blake3),
        rejected=tuple(rejections.to_json()),
        rejected_count=rejections.count,
        left_out_classes=plan.left_out_classes,
    )
    return manifest, kept


def _shard(number: int, split: str, receipt: Receipt) -> Shard:
    return Shard(name=f"shard-{number:05d}.lmdb", split=split, samples=receipt.samples, **vars(receipt.hashes))


def _split(name: str, shards: Sequence[Shard], receipts: Sequence[Receipt]) -> Split:
    positions = tuple(position for position, shard in enumerate(shards) if shard.split == name)
    columns = zip(*(receipts[position].class_counts for position in positions), strict=True)
    return Split(samples=sum(shards[position].samples for position in positions), shards=positions, class_counts=tuple(map(sum, columns)))


def _check_usable(plan: Plan, splits: dict[str, Split], rejections: Rejections) -> None:
    for name, split in splits.items():
        if split.samples == 0:
            raise rejections.refuse(f"{plan.name}: no usable image is left in split {name}")
    limit = plan.spec["max_rejected_ratio"]
    in_all = rejections.count + sum(split.samples for split in splits.values())
    if limit is not None and rejections.count > limit * in_all:
        raise rejections.refuse(f"{plan.name}: {rejections.count} of {in_all} rejected is more than max_rejected_ratio, {limit:g}")


def _size(plan: Plan, receipts: Sequence[Receipt]) -> tuple[int, int] | None:
    sizes = sorted({receipt.size for receipt in receipts if receipt.size is not None})
    if len(sizes) > 1 and plan.conversion.encoding == "raw":
        raise differing_sizes(plan.name, sizes[0], sizes[1], "in two shards")
    return sizes[0] if len(sizes) == 1 and all(receipt.size for receipt in receipts) else None
