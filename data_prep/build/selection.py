"""Keep the samples of a listing in little memory, select those that are used, and assign them to splits and shards."""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from base.errors import DatasetError
from base.humanize import and_more, counted
from data_prep import hashing, manifest
from data_prep.sources.naming import TRAIN, printable, sorted_classes, to_raw, to_text
from data_prep.sources.types import BadSample, ListedSample, Reader

if TYPE_CHECKING:
    from data_prep.spec import DatasetSpec

# Keep all samples of a source in little memory, and decide their order, duplicates, bounds per class, splits and shards.
#
# The decisions are pure functions. A sample takes some 200 bytes: one packed record, the numbers in arrays.


Mask = NDArray[np.bool_]
Numbers = NDArray[np.int64]
Hashes = NDArray[np.uint64]
_ORDER = b"slipway.order/1"


class Listing:
    """The samples in the order in which they were listed. `freeze` turns the arrays into numpy's."""

    def __init__(self) -> None:
        self.records: list[bytes] = []
        self.labels: dict[str, int] = {}
        self.origins: dict[str | None, int] = {}
        self._numbers = array("q")  # label, origin, size
        self._keys = bytearray()  # 16 bytes each: where in the order

    def add(self, found: ListedSample, root: int) -> None:
        label = self.labels.setdefault(found.label, len(self.labels))
        origin = self.origins.setdefault(found.split, len(self.origins))
        self._numbers.extend((label, origin, found.size))
        self._keys += blake3(b"\0".join((_ORDER, (found.split or "").encode(), to_raw(found.name)))).digest(length=16)
        self.records.append(record_of(found, root))

    def __len__(self) -> int:
        return len(self.records)

    @property
    def numbers(self) -> Numbers:
        """Return an array (n, 3) of label, origin and size."""
        return np.frombuffer(self._numbers, np.int64).reshape(-1, 3)

    @property
    def keys(self) -> Hashes:
        """Return an array (n, 2) of places in the order. They are hashes of the names, so that classes are mixed and the order of listing
        has no influence."""
        return np.frombuffer(bytes(self._keys), ">u8").reshape(-1, 2).astype(np.uint64)


def in_order(keys: Hashes, *groups: Numbers) -> Numbers:
    """Sort positions by `groups`, the first one most significant, then by key. Equal ones keep their order."""
    return np.lexsort((keys[:, 1], keys[:, 0], *reversed(groups)))


def repeated(keys: Hashes) -> Mask:
    """Mark samples that have the name of an earlier one."""
    order = in_order(keys)
    mask = np.zeros(len(keys), bool)
    same = (keys[order[1:]] == keys[order[:-1]]).all(axis=1)
    mask[order[1:][same]] = True
    return mask


def too_many(keys: Hashes, labels: Numbers, origins: Numbers, kept: Mask, maximum: int) -> Mask:
    """Mark samples beyond the first `maximum` of their class and origin, in the order of the keys."""
    positions = np.flatnonzero(kept)
    order = positions[in_order(keys[positions], origins[positions], labels[positions])]
    mask = np.zeros(len(keys), bool)
    if len(order) == 0:
        return mask
    group = np.stack([origins[order], labels[order]])
    starts = np.flatnonzero(np.r_[True, (group[:, 1:] != group[:, :-1]).any(axis=0)])
    rank = np.arange(len(order)) - np.repeat(starts, np.diff(np.r_[starts, len(order)]))
    mask[order[rank >= maximum]] = True
    return mask


def by_content(hashes: Hashes, fractions: Mapping[str, float]) -> dict[str, Mask]:
    """Assign samples to splits by where the hash of their content lies in 0 to 2^64, so that equal images stay together. A split that got
    nothing gets the sample with the smallest hash that is left for train. Raises ValueError when there are too few."""
    taken: dict[str, Mask] = {}
    free = np.ones(len(hashes), bool)
    start = 0.0
    for name in sorted(fractions):
        end = start + fractions[name]
        taken[name] = (hashes >= _threshold(start)) & (hashes < _threshold(end))
        free &= ~taken[name]
        start = end
    for name in sorted(fractions):
        if not taken[name].any() and free.any():
            taken[name] = free & (hashes == hashes[free].min())
            free &= ~taken[name]
    if not free.any() or not all(mask.any() for mask in taken.values()):
        different = counted(len(np.unique(hashes)), "different image is", "different images are")
        raise ValueError(f"{different} too few to share out over train, {', '.join(sorted(fractions))}")
    return taken


def _threshold(fraction: float) -> np.uint64:
    return np.uint64(min(int(fraction * 2**64), 2**64 - 1))


def shards_per_split(samples: Mapping[str, int], shards: int) -> dict[str, int]:
    """Divide `shards` among the splits in proportion to their samples, at least one each. Raises ValueError for too few."""
    if shards < len(samples):
        raise ValueError(f"{shards} shards for {len(samples)} splits ({', '.join(samples)}): each needs one of its own")
    counts = dict.fromkeys(samples, 1)
    for _ in range(shards - len(samples)):
        counts[max(counts, key=lambda name: (samples[name] / counts[name], name))] += 1
    return counts


def slices(count: int, parts: int) -> list[tuple[int, int]]:
    """Divide `count` items into `parts` runs whose lengths differ by one at most."""
    bounds = [count * part // parts for part in range(parts + 1)]
    return list(zip(bounds[:-1], bounds[1:], strict=True))


def listing_digest(keys: Hashes, labels: Numbers, sizes: Numbers, order: Numbers, classes: Sequence[str]) -> str:
    """Compute the identity of the source's listing. It is the blake3 over names (by their hash), classes and sizes of the selected samples,
    in order."""
    digest = blake3(json.dumps(list(classes)).encode())
    digest.update(keys[order].astype(">u8").tobytes())
    digest.update(np.stack([labels[order], sizes[order]], axis=1).astype(">i8").tobytes())
    return digest.hexdigest()


# Count rejected samples and keep the first names and reasons, so that a million of them do not fill the memory.


KEPT = 1000
_SHOWN = 5


class Rejections:
    """A collector of (name, reason). The entries that it keeps do not depend on their order of arrival."""

    def __init__(self) -> None:
        self.count = 0
        self._entries: list[tuple[str, str]] = []

    def add(self, name: str, reason: str) -> None:
        """Add an entry. Names may hold any bytes."""
        self.count += 1
        self._entries.append((printable(name), reason))
        if len(self._entries) > 4 * KEPT:
            self._entries = sorted(self._entries)[:KEPT]

    def merge(self, entries: Iterable[Mapping[str, str]], count: int) -> None:
        self._entries += [(entry["name"], entry["reason"]) for entry in entries]
        self.count += count

    def to_json(self) -> list[dict[str, str]]:
        """Return the first entries by name."""
        return [{"name": name, "reason": reason} for name, reason in sorted(self._entries)[:KEPT]]

    def error(self, what: str) -> DatasetError:
        """Make the error for a build that accepts no rejected samples."""
        lines = [f"{entry['name']}: {entry['reason']}" for entry in self.to_json()[:_SHOWN]]
        listed = "".join(f"\n  {line}" for line in filter(None, [*lines, and_more(self.count, _SHOWN)]))
        return DatasetError(f"{what}: {counted(self.count, 'entry', 'entries')} of the source cannot be used:{listed}")


# Read and write the lists of samples between plan and shards: blocks of msgpack, each an array of arrays [label, [name, size, mtime_ns,
# root, *at]] behind its length. Names may hold any bytes, so text is packed as bytes.


class ShardSample(NamedTuple):
    """A sample of a shard. `label` is the position of its class, `root` the number of the place it lies in."""

    label: int
    root: int
    found: ListedSample


_BLOCK_SAMPLES = 1024
_LENGTH = struct.Struct("<I")
_pack = msgspec.msgpack.Encoder().encode
_unpack_block = msgspec.msgpack.Decoder(list[tuple[int, list[bytes | int]]]).decode
_unpack = msgspec.msgpack.Decoder(list[bytes | int]).decode


def record_of(found: ListedSample, root: int) -> bytes:
    """Pack a sample without its label, which is known only when all classes are."""
    at = [to_raw(part) if isinstance(part, str) else part for part in found.at] if found.at else ()
    return _pack((to_raw(found.name), found.size, found.mtime_ns, root, *at))


def unpack_sample(record: bytes, label: str = "") -> ListedSample:
    """Unpack a record without a label."""
    return _listed(0, _unpack(record), label).found


def _listed(number: int, record: Sequence[Any], label: str) -> ShardSample:
    name, size, mtime_ns, root, *at = record
    places = tuple(to_text(part) if isinstance(part, bytes) else part for part in at) if at else ()
    return ShardSample(number, root, ListedSample(to_text(name), label, size, mtime_ns, places))


def write_samples(file: BinaryIO, records: Sequence[bytes], labels: Sequence[int]) -> None:
    """Write the list of a shard's samples."""
    for start in range(0, len(records), _BLOCK_SAMPLES):
        chosen = slice(start, start + _BLOCK_SAMPLES)
        block = _pack([(label, msgspec.Raw(record)) for label, record in zip(labels[chosen], records[chosen], strict=True)])
        file.write(_LENGTH.pack(len(block)) + block)


def read_samples(path: Path, classes: Sequence[str], digest: str) -> Iterator[ShardSample]:
    """Read the samples of a shard's list. Raises DatasetError when it is missing, or its blake3 is not the planned `digest`."""
    try:
        if hashing.hash_file(path).blake3 != digest:
            raise DatasetError(f"{path} is damaged: it is not the list that was planned; remove {path.parent.parent} and build again")
        with path.open("rb") as file:
            while head := file.read(_LENGTH.size):
                for label, record in _unpack_block(file.read(_LENGTH.unpack(head)[0])):
                    yield _listed(label, record, classes[label])
    except OSError as error:
        raise DatasetError(f"{path} cannot be read: {error.strerror}; remove {path.parent.parent} and build again") from error


# Choose the samples of train that mean and deviation are made of.


STATISTICS_SAMPLES = 1000
"""So many photographs tell a channel's mean to about one level of 255."""
STATISTICS_BYTES = 16 << 20
"""Small images cost little: all that make up so much of the source are taken."""


def measured_samples(samples: int, stored_bytes: int) -> int:
    """Return how many of train's `samples`, which have `stored_bytes` in the source, mean and deviation are made of."""
    return min(samples, max(STATISTICS_SAMPLES, samples * STATISTICS_BYTES // max(stored_bytes, 1)))


def is_measured(position: int, samples: int, measured: int) -> bool:
    """Return True if the sample at `position` in the order of train is among the `measured` of its `samples`, which lie evenly in it. The
    order is that of hashes of the names, so they are a random choice, the same whatever the number of shards."""
    return (position + 1) * measured // samples > position * measured // samples


HEAD_BYTES = 64 << 10
_THREADS = 8  # reading the heads of files waits for storage, not for the processor
_BLOCK_READ = 64  # to hand each file to a thread by itself takes longer than to read it from memory
_REPORT_EVERY = 1000

OpenReader = Callable[[], AbstractContextManager[Reader]]


class Selection:
    """The samples of a listing on their way to splits. Every array is parallel to the listing's records."""

    def __init__(self, listing: Listing, rejections: Rejections) -> None:
        self.listing = listing
        self.rejections = rejections
        self.labels: Numbers = listing.numbers[:, 0]
        self.origins: Numbers = listing.numbers[:, 1]
        self.sizes: Numbers = listing.numbers[:, 2]
        self.keys: Hashes = listing.keys
        twice = repeated(self.keys)
        for position in np.flatnonzero(twice).tolist():
            rejections.add(unpack_sample(listing.records[position]).name, "a second entry of this name")
        self.kept: Mask = ~twice

    def in_train(self) -> Mask:
        """Mark the samples of train, from which fractions are taken later."""
        origins = [number for name, number in self.listing.origins.items() if name in (None, TRAIN)]
        return self.kept & np.isin(self.origins, origins)

    def bound_classes(self, minimum: int, maximum: int | None) -> list[str]:
        """Apply per_class; returns the names of the classes that have too few samples to train on."""
        counts = np.bincount(self.labels[self.in_train()], minlength=len(self.listing.labels))
        few = counts < minimum
        self.kept &= ~few[self.labels]
        if maximum is not None:
            self.kept &= ~too_many(self.keys, self.labels, self.origins, self.kept, maximum)
        return sorted_classes({name for name, number in self.listing.labels.items() if few[number]})

    def classes(self) -> list[str]:
        """List the classes that are kept, in the order of their final labels."""
        names = {number: name for name, number in self.listing.labels.items()}
        return sorted_classes({names[label] for label in np.unique(self.labels[self.kept]).tolist()})

    def final_labels(self, classes: list[str]) -> Numbers:
        """Return the label of every sample as a position in `classes`, -1 where its class was left out."""
        positions = {name: position for position, name in enumerate(classes)}
        table = np.array([positions.get(name, -1) for name in self.listing.labels], np.int64)
        return table[self.labels]


def share_out(selection: Selection, spec: DatasetSpec, open_reader: OpenReader, progress: manifest.Progress) -> dict[str, Mask]:
    """Assign the samples to splits, train first: the source's own splits, those with a path of their own, and the requested fractions.
    Contents are read, by `open_reader`, only where fractions are requested."""
    own = {name: number for name, number in selection.listing.origins.items() if name not in (None, TRAIN)}
    splits = {str(name): selection.kept & (selection.origins == number) for name, number in own.items()}
    splits = {name: mask for name, mask in splits.items() if mask.any()}
    for name, path in spec.split_paths.items():
        if name not in splits:
            raise DatasetError(f"split {name!r} at {path} holds no usable images of the classes of {TRAIN}")
    of_source = bool(set(own) - set(spec.split_paths)) or TRAIN in selection.listing.origins
    fractions = {name: part for name, part in spec.fractions(source_has_splits=of_source).items() if name not in own}
    if fractions:
        with open_reader() as reader:
            splits.update(_fractions(selection, fractions, spec, reader, progress))
    rest = selection.in_train()
    for mask in splits.values():
        rest &= ~mask
    return {TRAIN: rest, **{name: splits[name] for name in sorted(splits)}}


def _fractions(
    selection: Selection, fractions: Mapping[str, float], spec: DatasetSpec, reader: Reader, progress: manifest.Progress
) -> dict[str, Mask]:
    positions = np.flatnonzero(selection.in_train())
    hashes = _content_hashes(selection, positions, reader, spec.source in ("folder", "list"), progress)
    readable = selection.kept[positions]
    positions = positions[readable]
    try:
        chosen = by_content(hashes[readable], fractions)
    except ValueError as error:
        raise DatasetError(f"{spec.path or spec.source}: {error}; add images, or set splits: {{}}") from error
    masks = {}
    for name, part in chosen.items():
        masks[name] = np.zeros(len(selection.kept), bool)
        masks[name][positions[part]] = True
    return masks


def _content_hashes(selection: Selection, positions: Numbers, reader: Reader, parallel: bool, progress: manifest.Progress) -> Hashes:
    """Hash the size and the first 64 KiB of each sample to 64 bits of blake3. A sample that cannot be read is not kept any more."""
    names = {number: name for name, number in selection.listing.labels.items()}

    def content(position: int) -> int | BadSample:
        found = unpack_sample(selection.listing.records[position], names[int(selection.labels[position])])
        return _hash(found, reader)

    hashes = np.zeros(len(positions), np.uint64)
    for index, value in enumerate(_mapped(content, positions.tolist(), parallel)):
        if isinstance(value, BadSample):
            position = int(positions[index])
            selection.kept[position] = False
            selection.rejections.add(unpack_sample(selection.listing.records[position]).name, str(value))
        else:
            hashes[index] = value
        if (index + 1) % _REPORT_EVERY == 0 or index + 1 == len(positions):
            progress(index + 1, len(positions))
    return hashes


def _hash(found: ListedSample, reader: Reader) -> int | BadSample:
    try:
        head = reader.head(found, HEAD_BYTES)
    except BadSample as error:
        return error
    return int.from_bytes(blake3(found.size.to_bytes(8, "big") + head).digest(length=8), "big")


def _mapped(function: Callable[[int], int | BadSample], positions: list[int], parallel: bool) -> Iterator[int | BadSample]:
    if not parallel:
        yield from map(function, positions)
        return
    blocks = [positions[start : start + _BLOCK_READ] for start in range(0, len(positions), _BLOCK_READ)]
    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, len(blocks), 4 * _THREADS):
            for values in pool.map(lambda block: [function(position) for position in block], blocks[start : start + 4 * _THREADS]):
                yield from values
