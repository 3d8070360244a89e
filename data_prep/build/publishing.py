"""Publish the shards of a build: the directory with its manifest, and last `dataset.json`, which is what runs depend on."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Protocol

from base.errors import DatasetError, SlipwayError
from base.jsonfile import read_json
from base.publish import publish_directory, remove_tree
from base.typed import Check, Count, Digest, Name, read_as
from data_prep.build.locks import own_part, publish_json_of, remove_all_dead_parts, remove_dead_parts
from data_prep.build.receipt import not_older, shard_path
from data_prep.hashing import hash_file
from data_prep.manifest import DATA_NAME, FILE_NAME, Shard, digest_of, manifest_digest
from data_prep.space import is_full, not_enough_space

DATASET_FILE: Final = "dataset.json"
_DIRECTORY: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}-[0-9a-f]{12}")
DirectoryName = Annotated[str, Check("<name>-<12 hex digits>", lambda value: _DIRECTORY.fullmatch(value) is not None and ".." not in value)]


@dataclass(frozen=True, kw_only=True)
class BuiltDataset:
    """The content of `dataset.json`. `path` is the name of the dataset's directory below the datasets directory."""

    name: Name
    digest: Digest
    path: DirectoryName
    samples: Count | None
    bytes: Count
    spec12: str = ""


def read_dataset_file(build_dir: Path) -> BuiltDataset:
    """Read the finished dataset of `build_dir`. Raises DatasetError when it is not finished."""
    path = build_dir / DATASET_FILE
    return read_as(BuiltDataset, read_json(path, DatasetError), path, DatasetError, "remove it and run again")


def write_dataset_file(build_dir: Path, built: BuiltDataset) -> None:
    """Publish `dataset.json`, last of all."""
    publish_json_of(build_dir / DATASET_FILE, vars(built))


class Counted(Protocol):
    """The numbers of a manifest that `dataset.json` repeats."""

    @property
    def name(self) -> str: ...
    @property
    def samples(self) -> int: ...
    @property
    def bytes(self) -> int: ...


def finished(build_dir: Path, datasets_dir: Path) -> BuiltDataset | None:
    """Find the dataset that `dataset.json` names. The result is None if it is gone, and a stale file is removed."""
    if not (build_dir / DATASET_FILE).exists():
        return None
    built = read_dataset_file(build_dir)
    try:
        if manifest_digest(datasets_dir / built.path) == built.digest:
            for receipt in build_dir.glob("shard-*.json"):
                not_older(build_dir / DATASET_FILE, receipt)
            remove_all_dead_parts(build_dir)
            return built
    except DatasetError:
        (build_dir / DATASET_FILE).unlink(missing_ok=True)
        return None
    raise DatasetError(f"{datasets_dir / built.path} has been changed: its manifest is not the one that was built; remove it and run again")


def publish_built(
    build_dir: Path, datasets_dir: Path, spec12: str, content: bytes, manifest: Counted, shards: Sequence[tuple[Path, Shard]]
) -> BuiltDataset:
    """Publish `datasets_dir/<name>-<digest12>/` with `content` as its manifest, then `dataset.json`. `shards` are the paths at which the
    shards were built. Raises DatasetError, NotEnoughSpace."""
    digest = digest_of(content)
    target = datasets_dir / f"{manifest.name}-{digest[:12]}"
    _publish(target, content, shards)
    if manifest_digest(target) != digest:
        raise DatasetError(f"{target} is there already and holds another dataset; remove it and run again")
    path = target.name
    built = BuiltDataset(name=manifest.name, digest=digest, path=path, samples=manifest.samples, bytes=manifest.bytes, spec12=spec12)
    write_dataset_file(build_dir, built)
    return built


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
    """Link the same file under another name, or make a checked copy where the file system has no links."""
    try:
        os.link(built, target)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS):
            raise
        shutil.copyfile(built, target)
        target.chmod(0o444)
        if hash_file(target).blake3 != shard.blake3:
            raise SlipwayError(f"{built} was copied to {target.parent}, and other bytes arrived") from error


def clear(build_dir: Path, shards: int) -> None:
    """Remove what the published dataset has made superfluous. Plan, lists and receipts stay."""
    for index in range(shards):
        remove_tree(shard_path(build_dir, index))
    remove_tree(build_dir / "spool")
    remove_all_dead_parts(build_dir)
