"""Lay out a node's cache, and refuse directories that cannot be trusted.

<cache>/datasets/<name>-<digest12>/       a whole dataset, files 0444; it appears by one rename
<cache>/datasets/.<name>-<digest12>.part-<uid>/ a copy in progress, or left by a kill: the next stager of this user resumes it
<cache>/leases/<dataset>/<token>.json     one file per user of a dataset
<cache>/locks/<dataset>.lock              flock: one process at a time stages, leases or removes a dataset
<cache>/used/<dataset>.json               bytes of the dataset; its time stamp is the last use
<cache>/verified/<dataset>-<uid>.json     what this user found when it was hashed last (staging/cache_check.py)
<cache>/runs/<run>-a<n>-<token>/          work directory of one attempt (the supervisor's); pending.json where its result is undelivered
"""

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from base.errors import StagingError
from base.untrusted import described, is_group_open, trusted_directory

DATASET = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}-[0-9a-f]{12}")
HIDDEN = re.compile(rf"\.({DATASET.pattern})\.(part|gone).*")


@dataclass(frozen=True, kw_only=True)
class Cache:
    """The directories of a node's cache. `shared` is true if the user's group works with it too."""

    root: Path
    shared: bool

    @property
    def datasets(self) -> Path:
        return self.root / "datasets"

    @property
    def leases(self) -> Path:
        return self.root / "leases"

    @property
    def locks(self) -> Path:
        return self.root / "locks"

    @property
    def used(self) -> Path:
        return self.root / "used"

    @property
    def verified(self) -> Path:
        return self.root / "verified"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def file_mode(self) -> int:
        return 0o660 if self.shared else 0o600

    def make_directory(self, path: Path) -> Path:
        """Create `path` in the cache, open to the group where the cache is; the umask has no say. Existing is fine. In `runs` everybody of
        the group has directories of his own, whose code his ranks import: only their owner may exchange them."""
        try:
            path.mkdir()
        except FileExistsError:
            return path
        path.chmod(0o700 if not self.shared else 0o3770 if path == self.runs else 0o2770)
        return path


def open_cache(root: Path, *, group: bool = False) -> Cache:
    """Open the cache in `root`, or create it.

    It is private to this user unless `root` is group-writable with the set-group-ID bit. Since it may lie under /tmp, StagingError is
    raised where `root`, a parent or a directory of it belongs to another user or can be written by others. `group` means that the site says
    `shared: group`, so that another member of the group may have made it.
    """
    with usable(root):
        root = trusted_directory(root, group=group)
        cache = Cache(root=root, shared=is_group_open(root.stat()))
        for path in (cache.datasets, cache.leases, cache.locks, cache.used, cache.verified, cache.runs):
            cache.make_directory(path)
            _check_owner(path)
    return cache


@contextmanager
def usable(root: Path) -> Iterator[None]:
    """Turn what the cache's disk refuses into a StagingError that says where, and what to do."""
    try:
        yield
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        raise StagingError(
            f"the cache {root} cannot be used: {error.strerror}{where}; mend that, or set cache.path of the site file"
        ) from error


def dataset_name(path: Path) -> str:
    """Return the directory name of a dataset, `<name>-<digest12>`. Raises StagingError for any other form, since it becomes paths in the
    cache."""
    if not DATASET.fullmatch(path.name) or ".." in path.name:
        raise StagingError(
            f"{path.name!r} is not a name of a dataset: expected <name>-<12 hex digits>, as `slipway dataset build` publishes it"
        )
    return path.name


def part_of(cache: Cache, name: str) -> Path:
    """Return the directory that this user's stager of `name` copies to."""
    return cache.datasets / f".{name}.part-{os.geteuid()}"


def mark_of(cache: Cache, name: str) -> Path:
    """Return the path of this user's note about the last check of a dataset."""
    return cache.verified / f"{name}-{os.geteuid()}.json"


def _check_owner(path: Path) -> None:
    status = path.lstat()
    ours = status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWOTH | stat.S_IWGRP)
    if not stat.S_ISDIR(status.st_mode) or not (ours or is_group_open(status)):
        raise StagingError(
            f"{described(path, status)} is not ours alone: somebody else could change the data in it; choose another cache.path, or remove "
            "that directory"
        )
