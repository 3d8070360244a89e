"""Put the shards together: the manifest, the published dataset, and last `dataset.json`, the only file that runs depend on."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from base.errors import DatasetError, SlipwayError
from base.publish import publish_directory, remove_tree
from data_prep.build.dataset_file import DATASET_FILE, BuiltDataset, read_dataset_file, write_dataset_file
from data_prep.build.locks import held, own_part, remove_all_dead_parts, remove_dead_parts
from data_prep.build.plan_file import Plan, read_plan
from data_prep.build.receipt import Receipt, not_older, shard_path
from data_prep.build.rejections import Rejections
from data_prep.build.shard import build_shard, differing_sizes
from data_prep.build.statistics import mean_and_std
from data_prep.hashing import hash_file
from data_prep.manifest import DATA_NAME, FILE_NAME, Manifest, Progress, Shard, Split, digest_of, manifest_digest, to_bytes
from data_prep.space import is_full, not_enough_space
from data_prep.spec import TRAIN

_PROVENANCE = ("splits", "per_class", "quality", "samples", "classes", "seed")


def finish_dataset(build_dir: Path, datasets_dir: Path, progress: Progress | None = None) -> BuiltDataset:
    """Publish `datasets_dir/<name>-<digest12>/` and write `build_dir/dataset.json`. A shard that is missing is built here.

    Raises DatasetError (no usable image in a split, sizes that differ, more rejected than allowed), NotEnoughSpace.
    """
    with held(build_dir / "locks" / "finish"):
        built = _finished(build_dir, datasets_dir)
        if built is not None:
            remove_all_dead_parts(build_dir)
            return built
        plan = read_plan(build_dir)
        receipts = []
        for index in range(len(plan.shards)):
            receipts.append(build_shard(build_dir, index))
            if progress is not None:
                progress(index + 1, len(plan.shards))
        try:
            manifest, sources = _manifest(plan, receipts)
        except (ValueError, ArithmeticError) as error:
            raise DatasetError(f"plan and receipts in {build_dir} contradict each other ({error}); remove it and build again") from error
        content = to_bytes(manifest)
        digest = digest_of(content)
        target = datasets_dir / f"{plan.name}-{digest[:12]}"
        _publish(target, content, [(shard_path(build_dir, index), shard) for index, shard in zip(sources, manifest.shards, strict=True)])
        if manifest_digest(target) != digest:
            raise DatasetError(f"{target} is there already and holds another dataset; remove it and run again")
        path = target.name
        built = BuiltDataset(name=plan.name, digest=digest, path=path, samples=manifest.samples, bytes=manifest.bytes, spec12=plan.spec12)
        write_dataset_file(build_dir, built)
        _clear(build_dir, len(plan.shards))
        return built


def _finished(build_dir: Path, datasets_dir: Path) -> BuiltDataset | None:
    """The dataset, if `dataset.json` names one that is still there; a stale file is removed."""
    if not (build_dir / DATASET_FILE).exists():
        return None
    built = read_dataset_file(build_dir)
    try:
        if manifest_digest(datasets_dir / built.path) == built.digest:
            for receipt in build_dir.glob("shard-*.json"):
                not_older(build_dir / DATASET_FILE, receipt)
            return built
    except DatasetError:
        (build_dir / DATASET_FILE).unlink(missing_ok=True)
        return None
    raise DatasetError(f"{datasets_dir / built.path} has been changed: its manifest is not the one that was built; remove it and run again")


def _manifest(plan: Plan, receipts: Sequence[Receipt]) -> tuple[Manifest, list[int]]:
    """The manifest, and which of the plan's shards each of its shards is: empty ones are left out."""
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
    manifest = Manifest(
        name=plan.name,
        encoding=conversion.encoding,
        layout=conversion.layout,
        channels=conversion.channels,
        size=_size(plan, [receipts[index] for index in kept]),
        resize=conversion.resize,
        classes=plan.classes,
        splits=splits,
        mean=mean,
        std=std,
        samples=sum(shard.samples for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
        shards=shards,
        source=_source(plan),
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


def _source(plan: Plan) -> dict[str, Any]:
    """Where it came from, without a word about the place."""
    chosen = {key: plan.spec[key] for key in _PROVENANCE if plan.spec[key] is not None}
    if plan.conversion.encoding == "raw":
        del chosen["quality"]
    if "splits" in chosen:
        chosen["splits"] = {name: "apart" if isinstance(split, dict) else split for name, split in chosen["splits"].items()}
    return {"kind": plan.spec["source"], "listing_blake3": plan.listing_blake3, **chosen}


def _publish(target: Path, content: bytes, shards: Sequence[tuple[Path, Shard]]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_dead_parts(target)
    with own_part(target) as part:
        try:
            for built, shard in shards:
                (part / shard.name).mkdir()
                _link(built / DATA_NAME, part / shard.name / DATA_NAME, shard)
            manifest = part / FILE_NAME
            manifest.write_bytes(content)
            manifest.chmod(0o444)
            publish_directory(part, target)
        except OSError as error:
            if is_full(target.parent, len(content)):
                raise not_enough_space(target.parent, len(content), f"publishing {target.name}") from error
            raise DatasetError(f"{target} cannot be published: {error}; run again") from error


def _link(built: Path, target: Path, shard: Shard) -> None:
    """The same file under another name; a checked copy where the file system has no such thing."""
    try:
        os.link(built, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            raise
        shutil.copyfile(built, target)
        target.chmod(0o444)
        if hash_file(target).blake3 != shard.blake3:
            raise SlipwayError(f"{built} was copied to {target.parent}, and other bytes arrived") from error


def _clear(build_dir: Path, shards: int) -> None:
    """What the published dataset has made superfluous; plan, lists and receipts stay."""
    for index in range(shards):
        remove_tree(shard_path(build_dir, index))
    remove_tree(build_dir / "spool")
    remove_all_dead_parts(build_dir)
