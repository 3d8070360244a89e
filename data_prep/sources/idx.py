"""Read IDX files, as MNIST comes: a directory with train-images-idx3-ubyte[.gz] and its companions, or one images file and its labels."""

import math
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from base.errors import DatasetError
from data_prep.sources.files import OffsetReader, OpenFiles
from data_prep.sources.spool import plain_file
from data_prep.sources.types import MAX_MEMBER_BYTES, MAX_MEMBERS, ListedSample, Pixels, Prepared, Root

_PARTS = {"train": "train", "t10k": "test"}
_UBYTE = 8


class _Header(NamedTuple):
    shape: tuple[int, ...]
    offset: int


def prepare(root: Root) -> Prepared:
    """Find the pairs of files, unpack what is compressed, check that images and labels agree in number."""
    parts = []
    files: list[Path] = []
    for split, images, labels in _pairs(root.path):
        pair = [plain_file(path, root.scratch / split) for path in (images, labels)]
        shape, offset = _header(pair[0], images, dimensions=3)
        count, labels_offset = _header(pair[1], labels, dimensions=1)
        if count != shape[:1]:
            raise DatasetError(f"{images} holds {shape[0]} images, {labels} {count[0]} labels: they do not belong together")
        parts.append({"split": split, "file": len(files), "shape": shape, "offset": offset, "labels_offset": labels_offset})
        files += pair
    return Prepared(files=tuple(files), facts={"parts": parts})


def scan(root: Root, prepared: Prepared) -> Iterator[ListedSample]:
    """List one sample per image; classes are the labels, 0 to 255."""
    with OpenFiles(prepared.files) as files:
        for part in prepared.facts["parts"]:
            count, height, width = part["shape"]
            labels = files.read_exactly(part["labels_offset"], count, part["file"] + 1)
            split = None if part["split"] == "all" else part["split"]
            size = height * width
            for index, label in enumerate(labels):
                at = (part["file"], part["offset"] + index * size, height, width)
                yield ListedSample(f"{part['split']}/{index:06d}", str(label), size, 0, at, root.whole or split)


def open_reader(_root: Root, prepared: Prepared) -> AbstractContextManager["IdxReader"]:
    """Open a reader, which reads images by offset."""
    return IdxReader(prepared.files)


class IdxReader(OffsetReader):
    """A reader of images; `at` is (file, offset, height, width)."""

    def read(self, found: ListedSample) -> Pixels:
        """Return the pixels (H, W)."""
        number, offset, height, width = (int(value) for value in found.at)
        return np.frombuffer(self.files.read_exactly(offset, found.size, number), np.uint8).reshape(height, width)


def _pairs(path: Path) -> list[tuple[str, Path, Path]]:
    """Find the files as (split, images, labels). The split is `all` for a file given by itself."""
    if path.is_file():
        labels = _companion(path)
        if labels is None:
            raise DatasetError(f"{path}: its labels are not beside it; an images file ...-images-idx3-ubyte needs a ...-labels-idx1-ubyte")
        return [("all", path, labels)]
    if not path.is_dir():
        raise DatasetError(f"{path} does not exist: source: idx wants a directory with train-images-idx3-ubyte[.gz] and its companions")
    found = []
    for prefix, split in _PARTS.items():
        images = _first(path, [f"{prefix}-images-idx3-ubyte", f"{prefix}-images.idx3-ubyte"])
        labels = _first(path, [f"{prefix}-labels-idx1-ubyte", f"{prefix}-labels.idx1-ubyte"])
        if (images is None) != (labels is None):
            raise DatasetError(f"{path} holds {images or labels}, but not its companion: images and labels come in pairs")
        if images is not None and labels is not None:
            found.append((split, images, labels))
    if not found:
        raise DatasetError(f"{path} holds no IDX files: train-images-idx3-ubyte[.gz], train-labels-idx1-ubyte[.gz], the same with t10k")
    return found


def _first(directory: Path, names: list[str]) -> Path | None:
    candidates = [directory / (name + suffix) for name in names for suffix in ("", ".gz")]
    return next((path for path in candidates if path.is_file()), None)


def _companion(images: Path) -> Path | None:
    name = images.name.removesuffix(".gz")
    labels = name.replace("images", "labels").replace("idx3", "idx1")
    return _first(images.parent, [labels]) if labels != name else None


def _header(path: Path, shown: Path, dimensions: int) -> _Header:
    wanted = 4 + 4 * dimensions
    with path.open("rb") as file:
        head = file.read(wanted)
    if len(head) < wanted or head[:2] != b"\0\0" or head[2] != _UBYTE or head[3] != dimensions:
        raise DatasetError(f"{shown} is no IDX file of unsigned bytes in {dimensions} dimension(s): it starts with {head[:4].hex(' ')}")
    shape = struct.unpack(f">{dimensions}I", head[4:])
    if shape[0] > MAX_MEMBERS or math.prod(shape[1:]) > MAX_MEMBER_BYTES or 0 in shape[1:]:
        raise DatasetError(f"{shown} claims the shape {shape}: this is no set of images")
    expected = wanted + math.prod(shape)
    size = path.stat().st_size
    if size != expected:
        raise DatasetError(f"{shown} holds {size} bytes, its header promises {expected}: it was cut or is damaged; fetch it again")
    return _Header(shape, wanted)
