"""Whether storage can be where the site says, before anything is written there. Writes nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from base.errors import StorageError
from base.limited import call_limited
from data_prep.doctor.mounts import Mount, place_of
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
    """In a child with a time limit."""
    for path in paths:
        problem = why_unusable(*place_of(Path(path)), to_write=to_write)
        if problem is not None:
            return problem
    return None
