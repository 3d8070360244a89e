"""Whether storage can be where the site says, and has room, before anything is written there. Writes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from base.errors import NotEnoughSpace, StorageError
from base.limited import call_limited
from base.units import counted, format_size, some
from cluster.schedulers.local import NAME as LOCAL
from data_prep.cache.stored import allocated_bytes
from data_prep.doctor.mounts import Mount, place_of
from data_prep.space import free_bytes, free_inodes, not_enough_space
from workflow.dag.requirements import DatasetRequirements
from workflow.study.cell import Cell
from workflow.study.study import Study

LOOK_S: Final = 60.0
"""For a look at a few directories: network storage may hang."""
KERNEL: Final = frozenset(
    ("proc", "sysfs", "cgroup", "cgroup2", "devpts", "mqueue", "debugfs", "tracefs", "securityfs", "configfs", "bpf", "pstore", "nsfs")
)
"""File systems in which nobody makes files."""


def refuse_unusable_storage(study: Study) -> None:
    """Raise StorageError when datasets and results cannot be written where the site says."""
    _refuse(study, [study.results_dir, study.datasets_dir], to_write=True)


def refuse_unreadable_storage(study: Study) -> None:
    """Raise StorageError when no results can be where the site says. Storage that is not there yet is empty, and no error."""
    _refuse(study, [study.results_dir], to_write=False)


def refuse_too_little_space(study: Study, datasets: Iterable[DatasetRequirements], cells: Sequence[Cell]) -> None:
    """Raise NotEnoughSpace for a dataset that a node's cache may not hold, or cannot where this machine is the node; and where storage has
    no room for those that are still to be built; and where either may hold no more files. In a child with a time limit."""
    _refuse_missing_inodes(study)
    site, known = study.site, [needs for needs in datasets if needs.bytes is not None]
    for needs in known:
        size, most = needs.bytes or 0, site.cache.max_bytes
        what = f"{study.path}: dataset {needs.name} takes {format_size(size)} ({needs.bytes_are})"
        if most is not None and size > most:
            raise NotEnoughSpace(
                f"{what}, and cache.max_bytes of the site {site.name!r} is {format_size(most)}: no node could hold it; raise "
                "cache.max_bytes, or make the dataset smaller"
            )
        if site.scheduler == LOCAL:
            nodes = max(cell.nodes for cell in cells if cell.dataset == needs.name)
            _refuse_room(f"{what} on each of {counted(nodes, 'node')}", site.cache.path, size * nodes)
    unbuilt = [needs for needs in known if needs.root is None and not needs.spec.is_tree]
    if unbuilt:
        size = sum(needs.bytes or 0 for needs in unbuilt)
        names = some([needs.name for needs in unbuilt], 8)
        _refuse_room(f"{study.path}: {names} would take {format_size(size)} on storage when built", study.datasets_dir, size)


def _refuse_missing_inodes(study: Study) -> None:
    """A cache that holds something may make room."""
    cache = study.site.cache.path
    for directory in (study.results_dir, *([cache] if study.site.scheduler == LOCAL else [])):
        place = place_of(directory)[0]
        if free_inodes(place) == 0 and not (directory == cache and allocated_bytes(cache)):
            raise not_enough_space(place, 0, f"{study.path}: the runs write files there")


def _refuse_room(what: str, directory: Path, need: int) -> None:
    """Raise NotEnoughSpace unless `need` bytes fit on the file system of `directory`, whose own content counts as room."""
    place = place_of(directory)[0]
    room = free_bytes(place)
    if need > room:
        room += allocated_bytes(directory)
    if need > room:
        raise NotEnoughSpace(
            f"{what}, and {place} has room for {format_size(room)}: make room there, or choose another place in the site file"
        )


def why_unusable(place: Path, mount: Mount | None, to_write: bool) -> str | None:
    """What is wrong with `place`, the nearest thing above a path that is there, on `mount`. None: nothing."""
    if not place.is_dir():
        return f"{place} is not a directory"
    if mount is not None and mount.type in KERNEL:
        return f"{place} is on {mount.describe()}, which is the kernel's and keeps no files"
    if not os.access(place, os.R_OK | os.X_OK):
        return f"{place} cannot be read by you"
    if not to_write:
        return None
    if mount is not None and "ro" in mount.options:
        return f"{place} is on {mount.describe()}, which is mounted read-only"
    return None if os.access(place, os.W_OK) else f"{place} cannot be written by you"


def _refuse(study: Study, paths: Sequence[Path], to_write: bool) -> None:
    site = study.site
    found = call_limited(f"storage {site.storage}", _first_problem, [str(path) for path in paths], to_write, timeout_s=LOOK_S)
    if found is not None:
        raise StorageError(
            f"storage {site.storage} of the site {site.name!r} cannot be used: {found}; mend that, or `storage` of the site file"
        )


def _first_problem(paths: Sequence[str], to_write: bool) -> str | None:
    """Return why one of `paths` cannot be used. It is called in a child with a time limit."""
    for path in paths:
        problem = why_unusable(*place_of(Path(path)), to_write=to_write)
        if problem is not None:
            return problem
    return None
