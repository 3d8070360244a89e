"""One part of the chunks of a tree, hashed: what one job does. Its receipt is all that it leaves; a part without one is hashed again."""

from __future__ import annotations

import os
import stat
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import xxhash

from base.chunks import CHUNK_BYTES
from base.errors import DatasetError
from base.jsonfile import read_json
from base.typed import read_as
from data_prep.build.locks import publish_json_of
from data_prep.build.receipt import made_once, receipt_path
from data_prep.hashing import CHUNK, require
from data_prep.manifest import Progress
from data_prep.sources.files import retried
from data_prep.sources.naming import printable
from data_prep.staging.files import open_file, read_into
from data_prep.tree.listing import ListedFile
from data_prep.tree.names import advice_of
from data_prep.tree.plan import MAX_BYTES, TreePlan, read_tree_plan

SCHEMA: Final = "slipway.tree-part/1"


@dataclass(frozen=True, kw_only=True)
class PartReceipt:
    """`key`: TreePlan.key; `chunks`: xxh3_128 of each, hex."""

    key: str
    chunks: tuple[str, ...]
    schema: str = SCHEMA

    def __post_init__(self) -> None:
        require(all(map(CHUNK.fullmatch, self.chunks)), "a hash has the wrong form")


def hash_part(build_dir: Path, index: int, progress: Progress | None = None) -> PartReceipt:
    """Read and hash part `index`, unless its receipt is there; `progress(bytes done, bytes in all)`. Raises DatasetError for a file that is
    not as it was listed, before, while and after it is read, StorageError."""
    plan = read_tree_plan(build_dir)
    if not 0 <= index < plan.parts:
        raise DatasetError(f"{build_dir} has parts 0 to {plan.parts - 1}, not {index}")

    def make() -> PartReceipt:
        made = PartReceipt(key=plan.key(index), chunks=tuple(_hashes(plan, index, progress)))
        publish_json_of(receipt_path(build_dir, index), asdict(made))
        return made

    receipt = made_once(build_dir, index, lambda: finished_part(build_dir, index, plan), make)
    if progress is not None:
        progress(plan.share_bytes(index), plan.share_bytes(index))
    return receipt


def finished_part(build_dir: Path, index: int, plan: TreePlan) -> PartReceipt | None:
    """The receipt of a part of this plan; None where there is no whole one."""
    path = receipt_path(build_dir, index)
    try:
        receipt = read_as(PartReceipt, read_json(path, DatasetError, MAX_BYTES), path, DatasetError)
    except DatasetError:
        return None
    expected = sum(last - first for _, first, last in plan.share(index))
    return receipt if (receipt.schema, receipt.key, len(receipt.chunks)) == (SCHEMA, plan.key(index), expected) else None


def _hashes(plan: TreePlan, index: int, progress: Progress | None) -> list[str]:
    found: list[str] = []
    done, total = 0, plan.share_bytes(index)
    buffer = memoryview(bytearray(CHUNK_BYTES))
    for file, first, last in plan.share(index):
        for begin in range(first, last, _AT_ONCE):
            end = min(begin + _AT_ONCE, last)
            found += retried(str(_path(plan, file)), lambda file=file, begin=begin, end=end: _read(plan, file, begin, end, buffer))  # type: ignore[misc]
            done += min(end * CHUNK_BYTES, file.bytes) - begin * CHUNK_BYTES
            if progress is not None:
                progress(done, total)
    return found


_AT_ONCE: Final = 64
"""Chunks between two looks at the file's size and time."""


def _read(plan: TreePlan, file: ListedFile, first: int, last: int, buffer: memoryview) -> list[str]:
    """The hashes of its chunks from `first` to before `last`. Raises DatasetError, OSError."""
    path, found = _path(plan, file), []
    try:
        descriptor = open_file(path, os.O_RDONLY, direct=False)
    except PermissionError as error:
        raise DatasetError(f"{printable(str(path))} cannot be read: permission denied") from error
    except FileNotFoundError as error:
        raise _changed(plan, file, "it is gone") from error
    try:
        _check(plan, file, os.fstat(descriptor))
        for chunk in range(first, last):
            offset = chunk * CHUNK_BYTES
            num_bytes = min(CHUNK_BYTES, file.bytes - offset)
            if read_into(descriptor, buffer, num_bytes, offset) != num_bytes:
                raise _changed(plan, file, "it was cut")
            found.append(xxhash.xxh3_128_hexdigest(buffer[:num_bytes]))
        _check(plan, file, os.fstat(descriptor))
    finally:
        os.close(descriptor)
    return found


def _path(plan: TreePlan, file: ListedFile) -> Path:
    return Path(plan.root, file.at or file.name)


def _check(plan: TreePlan, file: ListedFile, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or (status.st_size, status.st_mtime_ns) != (file.bytes, file.mtime_ns):
        raise _changed(plan, file, f"size or time differ: {status.st_size} bytes, then {file.bytes}")


def _changed(plan: TreePlan, file: ListedFile, how: str) -> DatasetError:
    return DatasetError(f"{printable(str(_path(plan, file)))} has changed since the tree was listed ({how}); {advice_of(plan.name)}")
