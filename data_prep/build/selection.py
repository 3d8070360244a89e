"""Select the samples of a listing, and assign them to splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import numpy as np
from blake3 import blake3

from base.errors import DatasetError
from data_prep.build.listing import Hashes, Listing, Mask, Numbers, by_content, repeated, too_many
from data_prep.build.rejections import Rejections
from data_prep.build.samples import found_of
from data_prep.manifest import Progress
from data_prep.sources.naming import sorted_classes
from data_prep.sources.types import BadSample, Found, Reader
from data_prep.spec import TRAIN, DatasetSpec

HEAD_BYTES = 64 << 10
_THREADS = 8  # reading the heads of files waits for storage, not for the processor
_REPORT_EVERY = 1000

OpenReader = Callable[[], AbstractContextManager[Reader]]


class Selection:
    """The samples of a listing on their way to splits. Every array is parallel to the listing's lines."""

    def __init__(self, listing: Listing, rejections: Rejections) -> None:
        self.listing = listing
        self.rejections = rejections
        self.labels: Numbers = listing.numbers[:, 0]
        self.origins: Numbers = listing.numbers[:, 1]
        self.sizes: Numbers = listing.numbers[:, 2]
        self.keys: Hashes = listing.keys
        twice = repeated(self.keys)
        for position in np.flatnonzero(twice).tolist():
            rejections.add(found_of(listing.lines[position]).name, "a second entry of this name")
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


def share_out(selection: Selection, spec: DatasetSpec, open_reader: OpenReader, progress: Progress) -> dict[str, Mask]:
    """Assign the samples to splits, train first: the source's own splits, those with a path of their own, and the requested fractions.

    Contents are read, by `open_reader`, only where fractions are requested.
    """
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
    selection: Selection, fractions: Mapping[str, float], spec: DatasetSpec, reader: Reader, progress: Progress
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


def _content_hashes(selection: Selection, positions: Numbers, reader: Reader, parallel: bool, progress: Progress) -> Hashes:
    """Hash the size and the first 64 KiB of each sample to 64 bits of blake3. A sample that cannot be read is not kept any more."""
    names = {number: name for name, number in selection.listing.labels.items()}

    def content(position: int) -> int | BadSample:
        found = found_of(selection.listing.lines[position], names[int(selection.labels[position])])
        return _hash(found, reader)

    hashes = np.zeros(len(positions), np.uint64)
    for index, value in enumerate(_mapped(content, positions.tolist(), parallel)):
        if isinstance(value, BadSample):
            position = int(positions[index])
            selection.kept[position] = False
            selection.rejections.add(found_of(selection.listing.lines[position]).name, str(value))
        else:
            hashes[index] = value
        if (index + 1) % _REPORT_EVERY == 0 or index + 1 == len(positions):
            progress(index + 1, len(positions))
    return hashes


def _hash(found: Found, reader: Reader) -> int | BadSample:
    try:
        head = reader.head(found, HEAD_BYTES)
    except BadSample as error:
        return error
    return int.from_bytes(blake3(found.size.to_bytes(8, "big") + head).digest(length=8), "big")


def _mapped(function: Callable[[int], int | BadSample], positions: list[int], parallel: bool) -> Iterator[int | BadSample]:
    if not parallel:
        yield from map(function, positions)
        return
    step = 64 * _THREADS
    with ThreadPoolExecutor(_THREADS) as pool:
        for start in range(0, len(positions), step):
            yield from pool.map(function, positions[start : start + step])
