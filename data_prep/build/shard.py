"""Build one shard: read, convert, write LMDB, hash, publish, and last the receipt.

Any number of these run at once, also of the same shard.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from base.errors import DatasetError
from data_prep.build.images import Converted, PixelCounter, convert
from data_prep.build.plan_file import Plan, read_plan, samples_path
from data_prep.build.publishing import DATASET_FILE
from data_prep.build.receipt import Receipt, made_once, read_receipt, shard_path, write_receipt
from data_prep.build.roots import check_unchanged, open_reader
from data_prep.build.selection import Listed, Rejections, read_samples
from data_prep.build.shard_file import ShardWriter, make_shard, map_bytes, writing
from data_prep.hashing import FileHashes
from data_prep.manifest import DATA_NAME, Progress
from data_prep.reader.datum import encode
from data_prep.sources.types import BadSample, Reader
from data_prep.space import limit_address_space
from data_prep.spec import TRAIN

_REPORT_EVERY = 64
_STRICT_SHOWN = 5
_DECODER_BYTES = 4 << 30


def build_shard(build_dir: Path, index: int, progress: Progress | None = None, *, limit_memory: bool = False) -> Receipt:
    """Make `build_dir/shard-NNNNN.lmdb/` and its receipt `shard-NNNNN.json`; nothing is done where both are there.

    `progress(samples done, samples in all)`. `limit_memory` bounds the address space of this process, for one that does nothing else:
    decoders of hostile images then fail by themselves. Raises DatasetError (source at fault, or changed since the plan; strict),
    NotEnoughSpace, StorageError.
    """
    plan = read_plan(build_dir)
    if not 0 <= index < len(plan.shards):
        raise DatasetError(f"{build_dir} has shards 0 to {len(plan.shards) - 1}, not {index}")
    key = plan.shard_key(index)

    def make() -> Receipt:
        if limit_memory:
            limit_address_space(_Shard(plan, build_dir, index).map_bytes() * 4 + _DECODER_BYTES)
        return make_shard(build_dir, index, lambda: _Shard(plan, build_dir, index), progress)

    receipt = made_once(build_dir, index, lambda: finished(build_dir, index, key), make)
    if progress is not None:
        progress(plan.shards[index].samples, plan.shards[index].samples)
    return receipt


def finished(build_dir: Path, index: int, key: str) -> Receipt | None:
    """Find the receipt of a shard that needs no more work, since it is there or in the finished dataset."""
    receipt = read_receipt(build_dir, index, key)
    if receipt is None or (build_dir / DATASET_FILE).exists():
        return receipt
    data = shard_path(build_dir, index) / DATA_NAME
    return receipt if data.is_file() and data.stat().st_size == receipt.hashes.bytes else None


class _Shard:
    def __init__(self, plan: Plan, build_dir: Path, index: int) -> None:
        self.plan = plan
        self.build_dir = build_dir
        self.index = index
        self.doing = f"shard {index} of {plan.name}"
        self.planned = plan.shards[index]
        self.samples = 0
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

    def map_bytes(self) -> int:
        """Estimate the address space for LMDB. The map grows where this is too little."""
        conversion = self.plan.conversion
        values = 2 * self.planned.stored_bytes
        if conversion.size is not None:
            values = max(self.planned.stored_bytes, self.planned.samples * conversion.channels * conversion.size[0] * conversion.size[1])
        return map_bytes(self.planned.samples, values)

    def write(self, part: Path, progress: Progress | None) -> None:
        listed = read_samples(samples_path(self.build_dir, self.index), self.plan.classes, self.planned.listed)
        with contextlib.ExitStack() as stack:
            readers: dict[int, Reader] = {}
            with writing(part, self.least_bytes(), self.doing):
                writer = stack.enter_context(ShardWriter(part, self.map_bytes()))
            for number, sample in enumerate(listed, start=1):
                if sample.root not in readers:
                    root = open_reader(self.plan.roots[sample.root], self.build_dir, sample.root)
                    readers[sample.root] = stack.enter_context(root)
                converted = self._convert(sample, readers[sample.root])
                if converted is not None:
                    with writing(part, self._left_bytes(writer), self.doing):
                        self._take(sample, converted, writer)
                if progress is not None and number % _REPORT_EVERY == 0:
                    progress(number, self.planned.samples)
            if self.plan.spec["strict"] and self.rejections.count:
                raise self.rejections.refuse(f"{self.doing}, strict")
            with writing(part, self._left_bytes(writer), self.doing):
                writer.finish()

    def check_source(self) -> None:
        check_unchanged(self.plan.roots)

    def finish(self, hashes: FileHashes) -> Receipt:
        receipt = Receipt(
            key=self.plan.shard_key(self.index),
            samples=self.samples,
            class_counts=tuple(self.class_counts),
            pixel_sums=self.counter.total(),
            size=None if self.sizes_differ else self.size,
            hashes=hashes,
            rejected=tuple(self.rejections.to_json()),
            rejected_count=self.rejections.count,
        )
        write_receipt(self.build_dir, self.index, receipt)
        return receipt

    def _convert(self, sample: Listed, reader: Reader) -> Converted | None:
        try:
            return convert(reader.read(sample.found), self.plan.conversion)
        except BadSample as error:
            self.rejections.add(sample.found.name, str(error))
            if self.plan.spec["strict"] and self.rejections.count >= _STRICT_SHOWN:
                raise self.rejections.refuse(f"{self.doing}, strict") from error
            return None

    def _take(self, sample: Listed, converted: Converted, writer: ShardWriter) -> None:
        height, width, channels = converted.pixels.shape
        self._check_size(sample, (height, width))
        writer.add(encode(channels, height, width, converted.data, sample.label, self.plan.conversion.encoding == "jpeg"))
        self.counter.add(converted.pixels)
        self.class_counts[sample.label] += 1
        self.samples += 1

    def _check_size(self, sample: Listed, size: tuple[int, int]) -> None:
        if self.size is None:
            self.size = size
        elif self.size != size:
            self.sizes_differ = True
            if self.plan.conversion.encoding == "raw":
                raise differing_sizes(self.plan.name, self.size, size, sample.found.name)

    def _left_bytes(self, writer: ShardWriter) -> int:
        return (self.planned.samples - writer.samples) * (writer.bytes // max(writer.samples, 1))


def differing_sizes(name: str, one: tuple[int, int], other: tuple[int, int], where: str) -> DatasetError:
    """Make the error for raw images of different sizes."""
    found = f"{one[0]}x{one[1]} and {other[0]}x{other[1]} (height x width; {where})"
    return DatasetError(f"{name}: images of different sizes, {found}; raw images need one: set size, or encoding: jpeg")
