"""Read CIFAR-10 and CIFAR-100, binary and python version: the directory, the tar.gz it comes in, or one of its files.

The binary files are read in place. The python version is unpacked into the same record form in the build directory, so that both give the
same dataset.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from base import jsonfile, process
from base.errors import DatasetError
from data_prep.limits import UNPICKLE_S
from data_prep.sources import naming, spool, tar
from data_prep.sources.files import OffsetReader, OpenFiles
from data_prep.sources.types import MAX_MEMBER_BYTES, ListedSample, Pixels, Prepared, Refused, Root
from data_prep.sources.unpickle import MAX_NAMES_BYTES, PIXEL_BYTES

SIDE = 32
_TRAIN = re.compile(r"data_batch_\d{1,3}|train")
_TEST = re.compile(r"test_batch|test")
_META = ("batches.meta.txt", "fine_label_names.txt", "batches.meta", "meta")
_FILES = "data_batch_1.bin ... test_batch.bin, train.bin and test.bin, or the python version's files"


class _Blob(NamedTuple):
    """A file of CIFAR, by itself or inside a tar."""

    path: Path
    offset: int
    size: int

    def read(self, name: str, most: int) -> bytes:
        _check_size(self, name, most)
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.size)


def prepare(root: Root) -> Prepared:
    """Find the batches, the class names; bring the python version into record form."""
    blobs = _blobs(root)
    single = root.path.is_file() and not _is_archive(root)
    files: list[Path] = []
    parts: list[dict[str, Any]] = []
    for name in sorted(blobs):
        stem = name.removesuffix(".bin")
        split = "train" if _TRAIN.fullmatch(stem) else "test" if _TEST.fullmatch(stem) else None
        if split is None and not (single and name == root.path.name):
            continue
        blob, label_bytes = _as_records(blobs[name], name, root)
        part = _part(blob, name, label_bytes)
        parts.append({**part, "name": naming.printable(stem), "split": None if single else split, "file": len(files)})
        files.append(blob.path)
    if not parts:
        raise DatasetError(f"{root.path} holds no CIFAR files: {_FILES}")
    return Prepared(files=tuple(files), facts={"parts": parts, "classes": _class_names(blobs, root)})


def scan(root: Root, prepared: Prepared) -> Iterator[ListedSample | Refused]:
    """List one sample per record; classes have the names of the meta file, else numbers."""
    classes = prepared.facts["classes"]
    with OpenFiles(prepared.files) as files:
        for part in prepared.facts["parts"]:
            number, start, count, step = part["file"], part["offset"], part["records"], part["record_bytes"]
            records = np.frombuffer(files.read_exactly(start, count * step, number), np.uint8).reshape(count, step)
            labels = records[:, step - PIXEL_BYTES - 1].tolist()
            for index, label in enumerate(labels):
                name = f"{part['name']}/{index:05d}"
                if classes and label >= len(classes):
                    yield Refused(name, f"label {label} of {len(classes)} classes")
                    continue
                at = (number, start + index * step + step - PIXEL_BYTES)
                yield ListedSample(name, classes[label] if classes else str(label), PIXEL_BYTES, 0, at, root.whole or part["split"])


def open_reader(_root: Root, prepared: Prepared) -> AbstractContextManager["CifarReader"]:
    """Open a reader, which reads records by offset."""
    return CifarReader(prepared.files)


class CifarReader(OffsetReader):
    """A reader of records; `at` is (file, offset of the pixels)."""

    def read(self, found: ListedSample) -> Pixels:
        """Return the pixels (32, 32, 3)."""
        planes = np.frombuffer(self.files.read_exactly(int(found.at[1]), PIXEL_BYTES, int(found.at[0])), np.uint8)
        return planes.reshape(3, SIDE, SIDE).transpose(1, 2, 0)


def _blobs(root: Root) -> dict[str, _Blob]:
    path = root.path
    if path.is_dir():
        return _in_directory(path)
    if not path.is_file():
        raise DatasetError(f"{path} does not exist: source: cifar wants the directory or the tar.gz of CIFAR: {_FILES}")
    if not _is_archive(root):
        names = (path.name, *_META)
        return {name: _Blob(path.parent / name, 0, (path.parent / name).stat().st_size) for name in names if (path.parent / name).is_file()}
    return _in_archive(spool.plain_file(path, root.scratch))


def _is_archive(root: Root) -> bool:
    plain = spool.plain_file(root.path, root.scratch)
    with OpenFiles([plain]) as files:
        return tar.is_tar_header(files.read_at(0, tar.BLOCK))


def _in_directory(path: Path) -> dict[str, _Blob]:
    def files(directory: Path) -> dict[str, _Blob]:
        return {
            entry.name: _Blob(entry, 0, entry.stat().st_size) for entry in directory.iterdir() if entry.is_file() and _is_ours(entry.name)
        }

    found = files(path)
    inner = [entry for entry in path.iterdir() if entry.is_dir() and entry.name.startswith("cifar-")]
    return found if found or len(inner) != 1 else files(inner[0])


def _in_archive(archive: Path) -> dict[str, _Blob]:
    found: dict[str, _Blob] = {}
    try:
        with OpenFiles([archive]) as files:
            for member in tar.members(files.read_at, 0, files.size()):
                name = naming.to_text(member.name.rpartition(b"/")[2])
                if member.kind == "file" and _is_ours(name):
                    found.setdefault(name, _Blob(archive, member.offset, member.size))
    except tar.TarError as error:
        raise DatasetError(f"{archive} is damaged: {error}; fetch it again") from error
    return found


def _is_ours(name: str) -> bool:
    stem = name.removesuffix(".bin")
    return name in _META or _TRAIN.fullmatch(stem) is not None or _TEST.fullmatch(stem) is not None


def _label_bytes(name: str, size: int) -> int:
    """Return the number of label bytes: CIFAR-100 has a coarse label before the fine one, shown by file names, or by the size of a single
    file."""
    fine = name in ("train.bin", "test.bin") or size % (PIXEL_BYTES + 1) != 0
    return 2 if fine else 1


def _check_size(blob: _Blob, name: str, most: int) -> None:
    if blob.size > most:
        raise DatasetError(f"{blob.path}: {name} has {blob.size} bytes, more than {most}: this is not a file of CIFAR")


def _part(blob: _Blob, name: str, label_bytes: int) -> dict[str, int]:
    step = PIXEL_BYTES + label_bytes
    _check_size(blob, name, MAX_MEMBER_BYTES)
    if blob.size == 0 or blob.size % step:
        raise DatasetError(
            f"{blob.path}: {name} holds {blob.size} bytes, not a whole number of records of {step}: it was cut; fetch it again"
        )
    return {"offset": blob.offset, "records": blob.size // step, "record_bytes": step}


def _as_records(blob: _Blob, name: str, root: Root) -> tuple[_Blob, int]:
    """Convert a file to records of label and pixels, and return the number of label bytes."""
    if name.endswith(".bin"):
        return blob, _label_bytes(name, blob.size)
    target = root.scratch / f"{name}.records"
    answer = _unpickled(blob, name, target)
    if "records" not in answer:
        raise DatasetError(f"{blob.path}: {name} holds names of classes, not a batch of CIFAR")
    return _Blob(target, 0, answer["records"] * (1 + PIXEL_BYTES)), 1


def _unpickled(blob: _Blob, name: str, records: Path) -> dict[str, Any]:
    _check_size(blob, name, MAX_MEMBER_BYTES)
    words = (str(blob.path), str(blob.offset), str(blob.size), str(records))
    argv = [sys.executable, "-P", "-m", "data_prep.sources.unpickle", *words]
    result = process.run(argv, timeout_s=UNPICKLE_S, env={**os.environ, **process.packages_environ(os.environ)})
    if result.returncode < 0:
        died = signal.Signals(-result.returncode).name
        raise DatasetError(f"{blob.path}: {name} is no safe pickle of arrays, lists, numbers and strings: its reader died with {died}")
    if result.returncode:
        raise DatasetError(f"{blob.path}: {name} cannot be read: {process.last_lines(result.stderr, 1)}")
    answer: dict[str, Any] = jsonfile.parse_json(result.stdout.encode(), name, DatasetError)
    if "error" in answer:
        raise DatasetError(f"{blob.path}: {name} {answer['error']}")
    return answer


def _class_names(blobs: Mapping[str, _Blob], root: Root) -> list[str]:
    """Read the class names from the meta file in the order of the labels. They are empty without one."""
    for name in _META:
        if name not in blobs:
            continue
        if name.endswith(".txt"):
            lines = naming.to_text(blobs[name].read(name, MAX_NAMES_BYTES)).splitlines()
            return [naming.printable(line.strip()) for line in lines if line.strip()]
        names: list[str] = _unpickled(blobs[name], name, root.scratch / f"{name}.records").get("names", [])
        return names
    return []
