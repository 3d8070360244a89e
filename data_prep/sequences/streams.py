"""Streams of token ids, one file each: where they lie, which split they are of. Files of ids are read where they lie, text is turned into
a stream first (text.py)."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from base.errors import DatasetError
from base.typed import Count, FromOne, PathText
from base.units import some
from data_prep.build.rejections import Rejections
from data_prep.sequences.ids import type_of
from data_prep.sources.naming import SPLIT_NAMES, printable
from data_prep.sources.pread import OpenFiles
from data_prep.spec import TRAIN, DatasetSpec
from data_prep.tree.listing import list_tree

Ids = NDArray[Any]
SUFFIXES: Final = (".bin", ".npy")
SCANNED_IDS: Final = 1 << 20
_IN_NAMES: Final = re.compile(r"[._\- ]")
_SHOWN: Final = 3
_NPY_HEADER_BYTES: Final = 64 << 10
"""More than numpy takes; of a damaged length it would first read gigabytes."""
_OF_HEADERS: Final = (ValueError, TypeError, IndexError, SyntaxError, TokenError, Warning)
"""What numpy says of the header of a .npy, which it reads as words of Python: a damaged one may be any. A warning, where it is an error."""


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file of the source. `name` is its path below the place that the study gives."""

    name: str
    path: PathText
    bytes: Count
    mtime_ns: int
    split: str


@dataclass(frozen=True, kw_only=True)
class Stream:
    """`path` is relative to the build directory where the stream was made there. `offset`: bytes before the first id; `width`: of an id."""

    split: str
    path: PathText
    offset: Count
    width: FromOne
    ids: Count


def source_files(spec: DatasetSpec, rejections: Rejections) -> list[SourceFile]:
    """The files of all splits that the source has itself or a path of their own, in the order of their names. Raises DatasetError."""
    assert spec.path is not None
    files = _listed(Path(spec.path), None, rejections)
    of_names = {file.split for file in files}
    for split, path in spec.split_paths.items():
        if split in of_names - {TRAIN}:
            raise DatasetError(f"the source at {spec.path} has a split {split!r} of its own; remove {split} from splits")
        files += _listed(Path(path), split, rejections)
    return files


def _listed(path: Path, whole: str | None, rejections: Rejections) -> list[SourceFile]:
    """`whole`: the split that all of it belongs to."""
    tree = list_tree(path)
    shown = []
    for file in tree.files:
        hidden = any(part.startswith(".") for part in file.name.split("/"))
        reason = "hidden file" if hidden else "zero bytes" if file.bytes == 0 else None
        if reason is None:
            shown.append(file)
        else:
            rejections.add(file.name, reason)
    words = {file.name: _split_in(file.name) for file in shown}
    own = whole is None and TRAIN in words.values()
    found = []
    for file in shown:
        split = words[file.name] if own else whole or TRAIN
        if split is None:
            rejections.add(file.name, "its name tells no split, and those of others do")
            continue
        place = str(tree.root / (file.at or file.name))
        found.append(SourceFile(name=file.name, path=place, bytes=file.bytes, mtime_ns=file.mtime_ns, split=split))
    return found


def _split_in(name: str) -> str | None:
    """`train.bin`, `ptb.valid.txt` and all below `test/` say of which split they are."""
    words = _IN_NAMES.split(name.partition("/")[0].lower())
    return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), None)


def check_unchanged(files: Sequence[SourceFile]) -> None:
    """Raises DatasetError naming the first file that is not what was listed."""
    for file in files:
        try:
            status = Path(file.path).stat()
        except OSError as error:
            raise DatasetError(f"{printable(file.path)} cannot be read: {error.strerror}; if it was moved, build it afresh") from error
        if (status.st_size, status.st_mtime_ns) != (file.bytes, file.mtime_ns):
            raise DatasetError(
                f"{printable(file.path)} has changed since the source was listed: {status.st_size} bytes, then {file.bytes}; "
                "leave the source alone while it is built, and build it afresh (`slipway dataset build --fresh`)"
            )


def streams_of_ids(spec: DatasetSpec, files: Sequence[SourceFile], rejections: Rejections) -> tuple[list[SourceFile], list[Stream]]:
    """The files of ids among `files`, and a stream for each. Raises DatasetError for one that is damaged, or none at all."""
    kept = [file for file in files if file.name.endswith(SUFFIXES)]
    for file in set(files) - set(kept):
        rejections.add(file.name, "neither .bin nor .npy")
    if not kept:
        names = some([printable(file.name) for file in files], _SHOWN)
        raise DatasetError(f"{spec.path} holds no file of token ids: source: tokens wants names that end in .bin or .npy; found {names}")
    return kept, [_npy(file) if file.name.endswith(".npy") else _bin(file, 4 if spec.id_type == "uint32" else 2) for file in kept]


def _bin(file: SourceFile, width: int) -> Stream:
    if file.bytes % width:
        raise DatasetError(
            f"{printable(file.path)} holds {file.bytes} bytes, which is no whole number of ids of {width} bytes: it was cut, or set id_type"
        )
    return Stream(split=file.split, path=file.path, offset=0, width=width, ids=file.bytes // width)


def _npy(file: SourceFile) -> Stream:
    """Of one dimension, or more in the order of C: they are read as they lie."""
    try:
        with Path(file.path).open("rb") as whole:
            content = io.BytesIO(whole.read(_NPY_HEADER_BYTES))
        version = np.lib.format.read_magic(content)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(content)
        offset = content.tell()
    except (OSError, *_OF_HEADERS) as error:
        raise DatasetError(f"{printable(file.path)} is no .npy file that can be read: {printable(str(error))}") from error
    if dtype not in (type_of(2), type_of(4)) or (fortran and len(shape) > 1):
        raise DatasetError(f"{printable(file.path)} holds {dtype} of shape {shape}; source: tokens wants uint16 or uint32, little-endian")
    if file.bytes != offset + int(np.prod(shape, dtype=object)) * dtype.itemsize:
        raise DatasetError(f"{printable(file.path)} holds {file.bytes} bytes, and its header promises others: it was cut or is damaged")
    return Stream(split=file.split, path=file.path, offset=offset, width=dtype.itemsize, ids=(file.bytes - offset) // dtype.itemsize)


def blocks_of(build_dir: Path, stream: Stream) -> Iterator[tuple[int, Ids]]:
    """The ids of a stream in parts, each with the number of its first one. Raises DatasetError, StorageError."""
    with OpenFiles([build_dir / stream.path]) as files:
        for first in range(0, stream.ids, SCANNED_IDS):
            yield first, read_ids(files, 0, stream, first, min(SCANNED_IDS, stream.ids - first))


def read_ids(files: OpenFiles, number: int, stream: Stream, first: int, count: int) -> Ids:
    """`count` ids from the one with number `first` on. `number`: of the stream's file in `files`."""
    content = files.read_exactly(stream.offset + first * stream.width, count * stream.width, number)
    return np.frombuffer(content, type_of(stream.width))
