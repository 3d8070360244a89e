"""Lock the work of builders, so that two of them do not do the same work twice. The result is right without locks too.

Every builder of a shard writes the same bytes into a part of its own, and the first to publish wins; so a lock that the file system does
not honour, or whose holder is frozen, costs time only.
"""

import contextlib
import hashlib
import logging
import os
import platform
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from base import jsonfile, system
from base.lock import LockFile, try_lock
from base.publish import publish_directory, publish_file, remove_tree
from data_prep.limits import BUILDER_DEAD_S, BUILDER_WAIT_S

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the lock file `path`, or go on without it after a while, or where the file system has no locks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with LockFile(path) as lock:
        with contextlib.suppress(OSError):  # a file system without locks
            if not lock.try_take():
                logger.info("waiting for another builder that holds %s, at most %.0f s", lock.path, BUILDER_WAIT_S)
                if not lock.take(BUILDER_WAIT_S):
                    logger.warning("%s is held for more than %.0f s: continuing without it", lock.path, BUILDER_WAIT_S)
        yield


def _host() -> str:
    boot = system.machine_text("/proc/sys/kernel/random/boot_id")
    return hashlib.sha256(f"{platform.node()} {boot}\n".encode()).hexdigest()[:8]


@contextlib.contextmanager
def own_part(target: Path) -> Iterator[Path]:
    """Create a directory beside `target` and remove it in the end. While this process lives, `remove_dead_parts` leaves it alone."""
    part = target.parent / f".{target.name}.part-{_host()}-{secrets.token_hex(6)}"
    part.mkdir(parents=True)
    descriptor = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):  # a file system without locks: the part looks dead, and is judged by its age
            try_lock(descriptor)
        yield part
    finally:
        os.close(descriptor)
        if part.exists():
            remove_tree(part)


@contextlib.contextmanager
def replaced(target: Path) -> Iterator[Path]:
    """Create a directory that becomes `target` in the end, in place of what is there: whoever wrote that was killed before it counted."""
    remove_dead_parts(target)
    with own_part(target) as part:
        yield part
        if target.exists():
            remove_tree(target)
        publish_directory(part, target)


def publish_json_of(target: Path, value: Any) -> None:
    """Publish JSON from a part that others can see to be dead as soon as this process has ended."""
    with own_part(target) as part:
        jsonfile.publish_json(part / target.name, value)
        publish_file(part / target.name, target)


def remove_all_dead_parts(build_dir: Path) -> None:
    """Remove the dead parts of everything that is made in `build_dir`."""
    for part in build_dir.glob(".*.part-*"):
        remove_dead_parts(build_dir / part.name[1:].rpartition(".part-")[0])


def remove_dead_parts(target: Path) -> None:
    """Remove what killed builders of `target` left: parts of this host that nobody holds, parts of others that are long untouched."""
    for part in target.parent.glob(f".{target.name}.part-*"):
        with contextlib.suppress(FileNotFoundError):
            if _is_dead(part):
                logger.info("removing %s, left by a builder that was killed", part)
                if part.is_dir():
                    remove_tree(part)
                else:
                    part.unlink()


def _is_dead(part: Path) -> bool:
    inside = part.iterdir() if part.is_dir() else ()
    newest: float = max(path.stat().st_mtime for path in (part, *inside))
    untouched = system.now_at(part.parent) - newest > BUILDER_DEAD_S
    if f".part-{_host()}-" not in part.name or not part.is_dir():
        return untouched
    descriptor = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return try_lock(descriptor)
    except OSError:
        return untouched
    finally:
        os.close(descriptor)
