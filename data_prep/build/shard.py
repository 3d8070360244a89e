"""Build one shard of images: read, convert, write LMDB, hash, publish, and last the receipt; in the end put the shards together.

Any number of these run at once, also of the same shard.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from base.errors import DatasetError
from base.typed import Count, FromOne
from data_prep import hashing
from data_prep.build import plan as planning
from data_prep.build.images import Converted, PixelCounter, PixelSums, convert, mean_and_std, mean_image
from data_prep.build.lmdb_writer import Buffer, LmdbWriter
from data_prep.build.plan import Plan, open_reader, samples_path
from data_prep.build.selection import Rejections, ShardSample, is_measured, read_samples
from data_prep.build.steps import Kind, ShardReceipt, end_file, has_shard, make_shard, publish_shards, source_facts
from data_prep.free_space import write_failed, writing
from data_prep.manifest import DATA_NAME, Manifest, Progress, Shard, Split
from data_prep.reader.datum import encode_parts
from data_prep.sources.files import check_unchanged
from data_prep.sources.naming import TRAIN
from data_prep.sources.types import BadSample, Reader

SCHEMA: Final = "slipway.shard/3"
_REPORT_EVERY = 64
_STRICT_SHOWN = 5
_DECODER_BYTES = 4 << 30


@dataclass(frozen=True, kw_only=True)
class Receipt(ShardReceipt):
    """The receipt of a shard of images. `measured` samples are in `pixel_sums`. `size` is (height, width) where all images have the same,
    else None."""

    measured: Count
    class_counts: tuple[Count, ...]
    pixel_sums: PixelSums
    size: tuple[FromOne, FromOne] | None
    rejected: tuple[Mapping[str, str], ...]
    rejected_count: Count


def _build(build_dir: Path, index: int, plan: Plan, progress: Progress) -> Receipt:
    return make_shard(build_dir, index, _Shard(plan, build_dir, index), progress)


class _Shard:
    def __init__(self, plan: Plan, build_dir: Path, index: int) -> None:
        self.plan = plan
        self.build_dir = build_dir
        self.index = index
        self.doing = f"shard {index} of {plan.name}"
        self.planned = plan.shards[index]
        self.samples = 0
        self.measured = 0
        of_train = [shard.samples for shard in plan.shards if shard.split == TRAIN]
        self.in_train = sum(of_train) if self.planned.split == TRAIN else 0
        self.first = sum(of_train[: sum(shard.split == TRAIN for shard in plan.shards[:index])])
        self.class_counts = [0] * len(plan.classes)
        with_image = bool(plan.spec.get("mean_image")) and self.planned.split == TRAIN
        self.counter = PixelCounter(plan.conversion.channels, with_image=with_image)
        self.rejections = Rejections()
        self.size: tuple[int, int] | None = None
        self.sizes_differ = False

    def least_bytes(self) -> int:
        """Return what the shard takes at least, if no image is rejected."""
        conversion = self.plan.conversion
        if conversion.encoding == "raw":
            return self.planned.samples * conversion.channels * conversion.size[0] * conversion.size[1] if conversion.size else 0
        return 0

    def write(self, part: Path, progress: Progress) -> hashing.FileHashes:
        listed = read_samples(samples_path(self.build_dir, self.index), self.plan.classes, self.planned.listed)
        with contextlib.ExitStack() as stack:
            readers: dict[int, Reader] = {}
            with writing(part, self.least_bytes(), self.doing):
                writer = stack.enter_context(LmdbWriter(part / DATA_NAME))
            for number, sample in enumerate(listed):
                if sample.root not in readers:
                    root = open_reader(self.plan.roots[sample.root], self.build_dir, sample.root)
                    readers[sample.root] = stack.enter_context(root)
                measured = self.in_train > 0 and is_measured(self.first + number, self.in_train, self.plan.measured)
                converted = self._convert(sample, readers[sample.root], measured)
                if converted is not None:
                    value = self._take(sample, converted, measured)
                    try:
                        writer.add(*value)
                    except OSError as error:
                        raise write_failed(part, self._left_bytes(writer), self.doing, error) from error
                if (number + 1) % _REPORT_EVERY == 0:
                    progress(number + 1, self.planned.samples)
            if self.plan.spec["strict"] and self.rejections.count:
                raise self.rejections.error(f"{self.doing}, strict")
            with writing(part, self._left_bytes(writer), self.doing):
                return end_file(writer, part)

    def check_source(self) -> None:
        check_unchanged(self.plan.watched)

    def receipt(self, hashes: hashing.FileHashes) -> Receipt:
        return Receipt(
            key=self.plan.part_key(self.index),
            samples=self.samples,
            measured=self.measured,
            class_counts=tuple(self.class_counts),
            pixel_sums=self.counter.total(),
            size=None if self.sizes_differ else self.size,
            hashes=hashes,
            rejected=tuple(self.rejections.to_json()),
            rejected_count=self.rejections.count,
        )

    def _convert(self, sample: ShardSample, reader: Reader, measured: bool) -> Converted | None:
        try:
            return convert(reader.read(sample.found), self.plan.conversion, with_pixels=measured)
        except BadSample as error:
            self.rejections.add(sample.found.name, str(error))
            if self.plan.spec["strict"] and self.rejections.count >= _STRICT_SHOWN:
                raise self.rejections.error(f"{self.doing}, strict") from error
            return None

    def _take(self, sample: ShardSample, converted: Converted, measured: bool) -> tuple[Buffer, ...]:
        """Count a sample, and return the parts of its Datum."""
        data, height, width, pixels = converted
        self._check_size(sample, (height, width))
        if measured and pixels is not None:
            self.counter.add(pixels)
            self.measured += 1
        self.class_counts[sample.label] += 1
        self.samples += 1
        conversion = self.plan.conversion
        return encode_parts(conversion.channels, height, width, data, sample.label, conversion.encoding == "jpeg")

    def _check_size(self, sample: ShardSample, size: tuple[int, int]) -> None:
        if self.size is None:
            self.size = size
        elif self.size != size:
            self.sizes_differ = True
            if self.plan.conversion.encoding == "raw":
                raise differing_sizes(self.plan.name, self.size, size, sample.found.name)

    def _left_bytes(self, writer: LmdbWriter) -> int:
        return (self.planned.samples - writer.samples) * (writer.bytes // max(writer.samples, 1))


def differing_sizes(name: str, one: tuple[int, int], other: tuple[int, int], where: str) -> DatasetError:
    """Make the error for raw images of different sizes."""
    found = f"{one[0]}x{one[1]} and {other[0]}x{other[1]} (height x width; {where})"
    return DatasetError(f"{name}: images of different sizes, {found}; raw images need one: set size, or encoding: jpeg")


# Finish


_PROVENANCE = ("splits", "per_class", "quality", "samples", "classes", "seed")


def _manifest(plan: Plan, receipts: Sequence[Receipt]) -> tuple[Manifest, list[int]]:
    """Make the manifest without empty shards, and list for each of its shards the number in the plan."""
    rejections = Rejections()
    rejections.merge(plan.rejected, plan.rejected_count)
    for receipt in receipts:
        rejections.merge(receipt.rejected, receipt.rejected_count)
    kept = [index for index, receipt in enumerate(receipts) if receipt.samples]
    shards = tuple(_numbered(number, plan.shards[index].split, receipts[index]) for number, index in enumerate(kept))
    splits = {split: _split(split, shards, [receipts[index] for index in kept]) for split in dict.fromkeys(s.split for s in plan.shards)}
    _check_usable(plan, splits, rejections)
    conversion = plan.conversion
    of_train = [receipt.pixel_sums for receipt, planned in zip(receipts, plan.shards, strict=True) if planned.split == TRAIN]
    measured = sum(receipt.measured for receipt in receipts)
    if not measured:
        raise rejections.error(f"{plan.name}: of the {plan.measured} images for mean and deviation none is usable; set statistics: all")
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
        check=conversion.check,
        statistics_samples=None if measured == splits[TRAIN].samples else measured,
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


def _numbered(number: int, split: str, receipt: Receipt) -> Shard:
    return Shard(name=f"shard-{number:05d}.lmdb", split=split, samples=receipt.samples, **vars(receipt.hashes))


def _split(name: str, shards: Sequence[Shard], receipts: Sequence[Receipt]) -> Split:
    positions = tuple(position for position, shard in enumerate(shards) if shard.split == name)
    columns = zip(*(receipts[position].class_counts for position in positions), strict=True)
    return Split(samples=sum(shards[position].samples for position in positions), shards=positions, class_counts=tuple(map(sum, columns)))


def _check_usable(plan: Plan, splits: dict[str, Split], rejections: Rejections) -> None:
    for name, split in splits.items():
        if split.samples == 0:
            raise rejections.error(f"{plan.name}: no usable image is left in split {name}")
    limit = plan.spec["max_rejected_ratio"]
    in_all = rejections.count + sum(split.samples for split in splits.values())
    if limit is not None and rejections.count > limit * in_all:
        raise rejections.error(f"{plan.name}: {rejections.count} of {in_all} rejected is more than max_rejected_ratio, {limit:g}")


def _size(plan: Plan, receipts: Sequence[Receipt]) -> tuple[int, int] | None:
    sizes = sorted({receipt.size for receipt in receipts if receipt.size is not None})
    if len(sizes) > 1 and plan.conversion.encoding == "raw":
        raise differing_sizes(plan.name, sizes[0], sizes[1], "in two shards")
    return sizes[0] if len(sizes) == 1 and all(receipt.size for receipt in receipts) else None


KIND: Final = Kind(
    plan_type=Plan,
    plan_schema=planning.SCHEMA,
    receipt_type=Receipt,
    receipt_schema=SCHEMA,
    make_plan=planning.make_plan,
    make_part=_build,
    is_whole=has_shard,
    publish=partial(publish_shards, _manifest),
    own_memory=_DECODER_BYTES,
)
"""Datasets of images."""
