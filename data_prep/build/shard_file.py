"""Make a shard as a file, whatever its values mean: write it in a part of its own, hash it, publish it, and last write its receipt."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from base import errors, publish
from data_prep.build import locks, steps
from data_prep.build.lmdb_writer import LmdbWriter
from data_prep.free_space import RESERVE, is_full, not_enough_space, require_space
from data_prep.hashing import FileHashes, hash_file
from data_prep.manifest import DATA_NAME, Progress

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")


class ShardWork(Protocol[R_co]):
    """The work for a shard."""

    doing: str

    def least_bytes(self) -> int:
        """Return what the shard takes at least."""

    def check_source(self) -> None:
        """Check that the source has not changed since the dataset was planned. Raises DatasetError."""

    def write(self, part: Path, progress: Progress) -> FileHashes:
        """Write all values durably into an LMDB in `part`, and return its hashes."""

    def finish(self, hashes: FileHashes) -> R_co:
        """Write the receipt, and return it."""


def make_shard(build_dir: Path, index: int, work: ShardWork[R], progress: Progress) -> R:
    """Make `build_dir/shard-NNNNN.lmdb/` and its receipt. Raises DatasetError, NotEnoughSpace, StorageError."""
    locks.remove_dead_parts(steps.shard_path(build_dir, index))
    steps.receipt_path(build_dir, index).unlink(missing_ok=True)
    work.check_source()
    require_space(build_dir, work.least_bytes(), work.doing)
    target = steps.shard_path(build_dir, index)
    with locks.own_part(target) as part:
        hashes = work.write(part, progress)
        with writing(build_dir, 0, work.doing):
            (part / DATA_NAME).chmod(0o444)
            work.check_source()
            _publish(part, target, hashes)
            return work.finish(hashes)


def _publish(part: Path, target: Path, hashes: FileHashes) -> None:
    """Publish a shard. A shard of another builder has the same bytes and stays; one of an older plan is removed."""
    if target.exists() and not _has_hashes(target, hashes):
        publish.remove_tree(target)
    if not publish.publish_directory(part, target) and not _has_hashes(target, hashes):
        raise errors.DatasetError(f"{target} was written by another builder with other bytes; remove it and run again")


def _has_hashes(target: Path, hashes: FileHashes) -> bool:
    try:
        return hash_file(target / DATA_NAME).blake3 == hashes.blake3
    except OSError:
        return False


@contextlib.contextmanager
def writing(directory: Path, need: int, doing: str) -> Iterator[None]:
    """Turn a failed write into the error for lack of space where the file system is full, whatever the kernel calls it."""
    try:
        yield
    except OSError as error:
        raise write_failed(directory, need, doing, error) from error


def write_failed(directory: Path, need: int, doing: str, error: Exception) -> errors.SlipwayError:
    """Make the error for a failed write."""
    if is_full(directory, need):
        return not_enough_space(directory, max(need, RESERVE), doing)  # no value may be left to add, and the last ones not written
    return errors.StorageError(f"{doing} in {directory} cannot be written: {error}; it is removed, and the same command makes it anew")


def end_file(writer: LmdbWriter, part: Path) -> FileHashes:
    """End the file of a shard, make it durable, and hash it meanwhile: the disk has the one to do, the processor the other."""
    writer.finish()
    with ThreadPoolExecutor(1) as pool:
        hashes = pool.submit(hash_file, part / DATA_NAME)
        writer.sync()
        return hashes.result()
