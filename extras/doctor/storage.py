"""Check storage and cache: permissions, links and room.

Files are tried in a hidden directory that is removed at the end.
"""

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from base.humanize import expanded_path, format_size, has_variables
from base.lock import try_lock
from base.publish import publish, remove_tree
from base.system import now_at
from base.untrusted import why_distrusted
from data_prep.free_space import free_bytes, free_inodes
from data_prep.mounts import Mount, nearest_mount
from extras.doctor.types import Context, Finding

PREFIX: Final = ".slipway-doctor-"
DEAD_S: Final = 3600.0
"""The age at which the remains of a killed check are removed."""


@contextmanager
def own_directory(parent: Path) -> Iterator[Path]:
    """Create a hidden directory in `parent` and remove it in the end, with those that killed checks have left there."""
    for old in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = old.lstat()
            if status.st_uid == os.geteuid() and now_at(parent) - status.st_mtime > DEAD_S:
                remove_tree(old)
    path = parent / f"{PREFIX}{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}"
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        remove_tree(path)


def locks_work(path: Path) -> bool | None:
    """Return True if a second lock on the same file is refused, and None where the file system refuses flock."""
    with path.open("rb") as first, path.open("rb") as second:
        try:
            return try_lock(first.fileno()) and not try_lock(second.fileno())
        except OSError:
            return None


LITTLE_BYTES: Final = 10**9


def check_room(subject: str, directory: Path, key: str) -> Iterator[Finding]:
    """Judge the free room for an ordinary user. `key` is what to change in the site file where it is too little."""
    status = os.statvfs(directory)
    yield judge_room(subject, free_bytes(directory), status.f_blocks * status.f_frsize, free_inodes(directory), key)


def judge_room(subject: str, free: int, total: int, inodes: int | None, key: str) -> Finding:
    """Judge free bytes and inodes; None where the file system does not count those."""
    said = f"{format_size(free)} of {format_size(total)} free"
    advice = f"free room there, or another {key} in the site file"
    if inodes == 0:
        return Finding(subject, "error", f"no inodes are left, although {said}", advice)
    if free < LITTLE_BYTES:
        return Finding(subject, "error" if free < LITTLE_BYTES // 100 else "warning", f"nearly full: {said}", advice)
    return Finding(subject, "ok", said)


def judge_refusal(subject: str, error: OSError, directory: Path, mount: Mount | None, key: str) -> Finding:
    """Explain why nothing can be written."""
    where = f"{directory} ({mount.describe()})" if mount else str(directory)
    advice = f"`ls -ld {directory}`, `df {directory}`: mend that, or another {key} in the site file"
    return Finding(subject, "error", f"cannot be written: {error.strerror}: {where}", advice)


SEEN_S: Final = 15.0


def check_storage(context: Context) -> Iterator[Finding]:
    """Look at `storage`, or, where it is not made yet, at the directory it will be made in."""
    storage = context.site.storage
    try:
        place, mount = nearest_mount(storage)
    except PermissionError as error:
        yield judge_refusal("storage", error, storage, None, "storage")
        return
    if not place.is_dir():
        yield Finding("storage", "error", f"{storage} is not a directory", "storage: a directory, in the site file")
        return
    yield from judge_storage_mount(mount, context.place)
    if place == storage.resolve():
        yield from judge_group(place.stat().st_mode, context.site.shared, place)
    else:
        yield Finding("storage", "ok", f"{storage} is not there yet; it is made by the first run or build, in {place}")
    yield from check_room("storage", place, "storage")
    try:
        yield from try_storage(place)
    except OSError as error:
        yield judge_refusal("storage", error, place, mount, "storage")


def judge_storage_mount(mount: Mount | None, place: str) -> Iterator[Finding]:
    """Judge the mount of storage. Inside of a job its nodes are asked whether they see it."""
    if mount is None:
        yield Finding("storage", "note", "its file system does not show in /proc/self/mountinfo")
    elif mount.kind == "network":
        yield Finding("storage", "ok", f"{mount.describe()}; a quota does not show here")
    elif place == "alone" or (place == "job" and mount.kind != "memory"):
        yield Finding("storage", "ok", mount.describe())
    elif mount.kind == "memory":
        text = f"{mount.describe()}: it is memory of this machine, no other sees it, and a reboot empties it"
        yield Finding("storage", "error", text, "storage: on network storage that all nodes see")
    else:
        text = f"{mount.describe()}: looks like a local disk of this machine"
        yield Finding("storage", "note", text, "inside an allocation this command asks the nodes whether they see it")


def judge_group(mode: int, shared: str, path: Path) -> Iterator[Finding]:
    """Judge whether new files belong to the group, where the site file says `shared: group`."""
    if shared == "group" and not (mode & stat.S_ISGID and mode & stat.S_IWGRP):
        text = f"the site file says shared: group, but {path} is mode {stat.S_IMODE(mode):o}: new files do not belong to its group"
        yield Finding("storage", "warning", text, f"chmod g+ws {path}, with the right group")
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        text = f"everybody may write in {path} (mode {stat.S_IMODE(mode):o}): anybody can replace datasets and results"
        yield Finding("storage", "warning", text, f"chmod o-w {path}")


def try_storage(parent: Path) -> Iterator[Finding]:
    """Try hard links, on which leases rely. Raises OSError where this user may not write."""
    with own_directory(parent) as directory:
        publish(directory / "marker", b"one")
        try:
            os.link(directory / "marker", directory / "link")
        except OSError:
            text = "no hard links: a start that is killed just when it takes its run leaves an empty lease.json, which stops the next one"
            yield Finding("storage", "warning", text, "other storage, or remove the file, which the next start names")
        else:
            yield Finding("storage", "ok", "files can be written, and have hard links")


def check_seen(context: Context, limit_s: float = SEEN_S) -> Iterator[Finding]:
    """Check whether this node sees a file that another machine has just made; an attribute cache may hide it for a while."""
    if not context.token_file:
        return
    path = Path(context.token_file)
    start = time.monotonic()
    while True:
        try:
            os.listdir(path.parent.parent)
            if path.read_text() == context.token:
                break
            reason = "it holds something else"
        except OSError as error:
            reason = error.strerror or str(error)
        if time.monotonic() - start > limit_s:
            text = f"a file just made on storage is not there on this node ({reason}): {path}"
            yield Finding("storage", "error", text, "storage: network storage that all nodes mount at the same place")
            return
        time.sleep(0.2)  # the attribute cache of a network file system tells nobody when it is renewed
    waited = time.monotonic() - start
    yield Finding("storage", "ok", f"the nodes see what is made on storage{f', after {waited:.0f} s' if waited >= 1 else ''}")


def check_cache_path(context: Context) -> Iterator[Finding]:
    """Check what the path alone shows, on a machine where no run is started."""
    path, storage = context.site.cache.path, context.site.storage
    if has_variables(str(path)):
        text = f"{path} holds variables, which have their values on the nodes"
        yield Finding("cache", "note", text, "inside an allocation this command looks at the path that they make")
    elif path.is_relative_to(storage):
        text = f"cache.path {path} lies in storage {storage}: nothing would be local"
        yield Finding("cache", "error", text, "cache.path on a local disk of every node")
    else:
        yield Finding("cache", "ok", f"{path} is looked at on compute nodes only, since it is a disk of theirs")


def check_cache(context: Context) -> Iterator[Finding]:
    """Look at the cache of this machine, made or not."""
    site, alone = context.site, context.place == "alone"
    try:
        path = site.cache.path if alone else expanded_path(str(site.cache.path), os.environ)
    except ValueError as error:
        advice = "a variable that the scheduler or `setup` of the site file sets on every node, or a path without one"
        yield Finding("cache", "error", f"cache.path {error}", advice)
        return
    try:
        place, mount = nearest_mount(path)
    except PermissionError as error:
        yield judge_refusal("cache", error, path, None, "cache.path")
        return
    yield judge_cache_mount(path, mount, alone)
    if problem := why_distrusted(path, group=site.shared == "group"):
        text = f"{path} cannot be the cache, since somebody else could change the data in it: {problem}"
        yield Finding("cache", "error", text, "another cache.path, or have its owner mend that")
    if not path.exists():
        yield Finding("cache", "ok", f"{path} is not there yet; it is made by the first run, in {place}")
    yield from check_room("cache", place, "cache.path")
    try:
        with own_directory(place) as directory:
            publish(directory / "marker", b"one")
            if locks_work(directory / "marker") is not True:
                text = f"flock does not work in {place}: stagers of one node would collide"
                yield Finding("cache", "error", text, "another cache.path")
    except OSError as error:
        yield judge_refusal("cache", error, place, mount, "cache.path")


def judge_cache_mount(path: Path, mount: Mount | None, alone: bool) -> Finding:
    """Judge whether the file system belongs to this node alone."""
    if mount is None:
        return Finding("cache", "note", f"the file system of {path} does not show in /proc/self/mountinfo")
    if mount.kind == "network":
        text = f"{path} is not local: {mount.describe()}; all nodes would fill and lock the same directory, over the network"
        advice = "cache.path on a local disk of every node (`df -T` on one; often /local, /scratch/local, /nvme)"
        return Finding("cache", "warning" if alone else "error", text, advice)
    if mount.kind == "memory":
        text = f"{path} is memory, not a disk ({mount.describe()}): what is cached is missing to training, and may count against the job"
        return Finding("cache", "warning", text, "cache.path on a local disk; if this is meant, set cache.max_bytes")
    if mount.kind == "other":
        return Finding("cache", "note", f"{path}: {mount.describe()}; a container's root file system is slow and small")
    return Finding("cache", "ok", f"{path} is local: {mount.describe()}")
