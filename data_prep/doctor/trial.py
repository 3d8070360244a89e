"""Try out directories for storage and cache: permissions, O_EXCL, rename, locks, speed and clock, and judge the results.

A trial works in a hidden directory of its own that is removed at the end. It may hang where the storage does: callers limit it.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import secrets
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final

from base.finding import Finding
from base.lock import try_lock
from base.publish import create_exclusive, publish, remove_tree
from base.storage_clock import now_at
from base.trusted import why_distrusted
from base.units import counted, format_size
from cluster.detection import SIGNS
from data_prep.limits import TRIAL_DEAD_S, TRIAL_S
from data_prep.mounts import Mount, mount_of, place_of, read_mounts
from data_prep.space import free_bytes, free_inodes

PREFIX: Final = ".slipway-doctor-"
BLOCK: Final = 1 << 20
MOST_BYTES: Final = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The results of a trial.

    `locks` is None where the file system refuses flock. Speeds are of one stream in blocks of 1 MiB, written durably.
    """

    exclusive: bool
    replaces: bool
    locks: bool | None
    skew_s: float
    """The file system's clock less ours."""
    num_bytes: int
    write_bytes_per_s: float
    read_bytes_per_s: float
    direct: bool
    """True if the file was read around the page cache; otherwise the figure may be that of memory."""


@contextmanager
def own_directory(parent: Path) -> Iterator[Path]:
    """Create a hidden directory in `parent` and remove it in the end, with those that killed checks have left there."""
    for old in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            status = old.lstat()
            if status.st_uid == os.geteuid() and now_at(parent) - status.st_mtime > TRIAL_DEAD_S:
                remove_tree(old)
    path = parent / f"{PREFIX}{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}"
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        remove_tree(path)


def try_out(parent: Path, most_bytes: int = MOST_BYTES) -> Trial:
    """Try out everything in a few seconds. Raises OSError where this user may not write, or the disk is full."""
    with own_directory(parent) as directory:
        marker = directory / "marker"
        before = time.time()
        exclusive = create_exclusive(marker, b"one") and not create_exclusive(marker, b"two")
        skew = _skew(marker.stat().st_mtime, before, time.time())
        publish(marker, b"three")
        replaces = marker.read_bytes() == b"three"
        locks = _locks(marker)
        written, write_s = _write(directory / "speed", most_bytes)
        read, read_s, direct = _read(directory / "speed")
    return Trial(
        exclusive=exclusive,
        replaces=replaces,
        locks=locks,
        skew_s=skew,
        num_bytes=written,
        write_bytes_per_s=written / max(write_s, 1e-9),
        read_bytes_per_s=read / max(read_s, 1e-9),
        direct=direct,
    )


def _skew(stamp: float, before: float, after: float) -> float:
    """Compute the clock skew.

    It is 0 where the stamp can lie between the two moments, since a file system may keep whole seconds only, or those of the last tick.
    """
    if stamp > after:
        return stamp - after
    return min(0.0, stamp - before + 0.02) if stamp % 1 else min(0.0, stamp + 1 - before)


def _locks(path: Path) -> bool | None:
    """Return True if a second lock on the same file is refused."""
    with path.open("rb") as first, path.open("rb") as second:
        try:
            return try_lock(first.fileno()) and not try_lock(second.fileno())
        except OSError:
            return None


def _write(path: Path, most_bytes: int) -> tuple[int, float]:
    block = memoryview(secrets.token_bytes(BLOCK))  # no file system can compress it
    start = time.monotonic()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        written = 0
        while written < most_bytes and time.monotonic() - start < TRIAL_S:
            written += os.write(descriptor, block[: most_bytes - written])
        os.fsync(descriptor)
        taken = time.monotonic() - start
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    return written, taken


def _read(path: Path) -> tuple[int, float, bool]:
    descriptor, direct = _open_direct(path)
    try:
        with mmap.mmap(-1, BLOCK) as buffer:  # page-aligned, as O_DIRECT wants it
            start = time.monotonic()
            read = 0
            while time.monotonic() - start < TRIAL_S:
                got = os.readv(descriptor, [buffer])
                read += got
                if got < BLOCK:
                    break
            return read, time.monotonic() - start, direct
    finally:
        os.close(descriptor)


def _open_direct(path: Path) -> tuple[int, bool]:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT), True
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC), False


def writable(mounts: Iterable[Mount]) -> list[Mount]:
    """Select the mounts that are not read-only and that this user may write."""
    return [mount for mount in mounts if "rw" in mount.options and os.access(mount.point, os.W_OK | os.X_OK)]


# Judgements for storage and cache


LITTLE_BYTES: Final = 10**9
SOME_BYTES: Final = 10**10
FEW_INODES: Final = 10_000
SLOW: Final = 50_000_000
NOTABLE_SKEW_S: Final = 1.0
LARGE_SKEW_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class Room:
    """The free room for an ordinary user. `inodes` is None where they are not counted."""

    free_bytes: int
    total_bytes: int
    inodes: int | None


def room_of(directory: Path) -> Room:
    """Ask the file system for its free room, which may hang."""
    status = os.statvfs(directory)
    return Room(free_bytes=free_bytes(directory), total_bytes=status.f_blocks * status.f_frsize, inodes=free_inodes(directory))


def judge_room(subject: str, room: Room, key: str) -> Iterator[Finding]:
    """Judge free room. `key` is what to change in the site file where it is too little."""
    said = f"{format_size(room.free_bytes)} of {format_size(room.total_bytes)} free"
    advice = f"free room there, or another {key} in the site file"
    if room.inodes == 0:
        yield Finding(subject, "error", f"no inodes are left, although {said}", advice)
    elif room.inodes is not None and room.inodes < FEW_INODES:
        yield Finding(subject, "warning", f"only {room.inodes} more files can be created there", advice)
    if room.free_bytes < LITTLE_BYTES:
        yield Finding(subject, "error" if room.free_bytes < LITTLE_BYTES // 100 else "warning", f"nearly full: {said}", advice)
    elif room.free_bytes < SOME_BYTES:
        yield Finding(subject, "note", f"{said}: little for datasets and results", advice)
    else:
        yield Finding(subject, "ok", said)


def judge_speed(subject: str, trial: Trial, slow_advice: str) -> Iterator[Finding]:
    """Judge the speed of one stream with a small file. The result is a hint, not a benchmark."""
    around = "around the page cache" if trial.direct else "perhaps from memory"
    text = (
        f"{format_size(trial.num_bytes)} in one stream: written durably at {format_size(trial.write_bytes_per_s)}/s, "
        f"read {around} at {format_size(trial.read_bytes_per_s)}/s"
    )
    slow = min(trial.write_bytes_per_s, trial.read_bytes_per_s) < SLOW
    yield Finding(subject, "note" if slow else "ok", text, slow_advice if slow else "")


def judge_clock(trial: Trial) -> Iterator[Finding]:
    """Compare the clock that stamps files on storage with this machine's."""
    if abs(trial.skew_s) < NOTABLE_SKEW_S:
        yield Finding("clock", "ok", "files on storage are stamped with our time (to a second)")
        return
    way = "ahead of" if trial.skew_s > 0 else "behind"
    text = f"the clock of storage is {abs(trial.skew_s):.1f} s {way} ours: Snakemake compares file times, make and rsync too"
    yield Finding("clock", "warning" if abs(trial.skew_s) > LARGE_SKEW_S else "note", text, "ask for chrony or ntp on both")


def judge_refusal(subject: str, error: OSError, directory: Path, mount: Mount | None, key: str) -> Finding:
    """Explain why nothing can be written."""
    where = f"{directory} ({mount.describe()})" if mount else str(directory)
    advice = {
        errno.EROFS: f"it is mounted read-only here: another {key}, or ask why",
        errno.EACCES: f"`ls -ld {directory}`: a directory of yours, or {key} elsewhere",
        errno.EPERM: f"`ls -ld {directory}`: a directory of yours, or {key} elsewhere",
        errno.ENOSPC: f"free room there, or another {key}",
        errno.EDQUOT: f"your quota is used up: remove something there, or another {key}",
    }.get(error.errno or 0, f"another {key}, or ask what is wrong with it")
    return Finding(subject, "error", f"cannot be written: {error.strerror}: {where}", advice)


# Judgements of the cache


CACHE: Final = "cache"
SLOW_CACHE: Final = "another disk of the node: training reads from here"
TEMPORARY: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - names to compare with
OWN: Final = ("datasets", "leases", "locks", "used", "verified", "runs")


@dataclass(frozen=True, kw_only=True)
class CachePlace:
    """The place of the cache, and what the job has to do with it. `place` is the nearest directory that exists."""

    path: Path
    place: Path
    mount: Mount | None
    alone: bool
    private_tmp: bool = False
    """The scheduler gives each job a /tmp of its own."""
    environ: Mapping[str, str] = field(default_factory=dict)


def judge_cache_mount(cache: CachePlace) -> Iterator[Finding]:
    """Judge whether the file system belongs to this node alone."""
    mount = cache.mount
    if mount is None:
        yield Finding(CACHE, "note", f"the file system of {cache.place} does not show in /proc/self/mountinfo")
    elif mount.kind == "network":
        text = f"{cache.path} is not local: {mount.describe()}; all nodes would fill and lock the same directory, over the network"
        advice = "cache.path on a local disk of every node (`df -T` on one; often /local, /scratch/local, /nvme)"
        yield Finding(CACHE, "warning" if cache.alone else "error", text, advice)
    elif mount.kind == "memory":
        text = (
            f"{cache.path} is memory, not a disk ({mount.describe()}): what is cached is missing to training, and may count against the job"
        )
        yield Finding(CACHE, "warning", text, "cache.path on a local disk; if this is meant, set cache.max_bytes")
    elif mount.kind == "other":
        yield Finding(CACHE, "note", f"{cache.path}: {mount.describe()}; a container's root file system is slow and small")
    else:
        yield Finding(CACHE, "ok", f"{cache.path} is local: {mount.describe()}")


def judge_survival(cache: CachePlace) -> Iterator[Finding]:
    """Judge whether the next job still finds what one job puts there."""
    why = None if cache.alone else next(iter(_reasons(cache)), None)
    if why:
        text = f"{cache.path} does not survive the job: {why}; each job would stage its datasets again"
        yield Finding(
            CACHE, "warning", text, "cache.path outside of what belongs to one job; `slipway submit` stages once per node for all runs"
        )
    elif not cache.alone and _below(cache.path, TEMPORARY):
        text = f"{cache.path} is below {_below(cache.path, TEMPORARY)}: some sites clear it after each job or at night"
        yield Finding(CACHE, "note", text, "nothing is lost then: what is gone is staged again")


def _reasons(cache: CachePlace) -> Iterator[str]:
    scratch = cache.environ.get("TMPDIR", "")
    if scratch and scratch not in TEMPORARY and _below(cache.path, (scratch,)):
        yield f"it is below $TMPDIR ({scratch}), which belongs to this job"
    jobs = {job.partition(".")[0] for signs in SIGNS.values() if (job := cache.environ.get(signs.variables[0]))}
    if jobs & set(PurePath(cache.path).parts):
        yield "the job's id is a part of the path"
    root = cache.mount.root if cache.mount else ""
    if "systemd-private" in root:
        yield f"it lies in a private /tmp (PrivateTmp; really {root})"
    if cache.mount and jobs & {part.lstrip(".") for part in PurePath(root).parts}:
        yield f"this job sees a directory of its own there (really {root})"
    if cache.private_tmp and _below(cache.path, ("/tmp", "/dev/shm")):  # noqa: S108 - names to compare with
        yield "the scheduler gives each job its own /tmp and /dev/shm (job_container/tmpfs)"


def judge_size(max_bytes: int | None, room: Room) -> Iterator[Finding]:
    """Compare the site's cache.max_bytes with the disk."""
    if max_bytes is not None and max_bytes > room.total_bytes:
        text = f"cache.max_bytes {format_size(max_bytes)} of the site file, but the disk has {format_size(room.total_bytes)}"
        yield Finding(CACHE, "note", text, "nothing breaks: the disk's own limit holds")


def judge_owner(owners: Mapping[str, tuple[int, int]], uid: int) -> Iterator[Finding]:
    """Judge the owners and modes of the cache's own directories, through which another user could change the data."""
    for name, (owner, mode) in owners.items():
        group = mode & stat.S_ISGID and mode & stat.S_IWGRP and not mode & stat.S_IWOTH
        if not group and (owner != uid or mode & (stat.S_IWGRP | stat.S_IWOTH)):
            text = f"{name} in the cache belongs to uid {owner}, mode {stat.S_IMODE(mode):o}: it is not ours alone, runs refuse it"
            yield Finding(CACHE, "error", text, "another cache.path, such as one with your name in it, or remove that directory")
            return


def check_way(path: Path, *, group: bool) -> Iterator[Finding]:
    """Check that nobody else can exchange the cache, or the nearest directory that exists."""
    problem = why_distrusted(path, group=group)
    if problem is not None:
        text = f"{path} cannot be the cache, since somebody else could change the data in it: {problem}"
        yield Finding(CACHE, "error", text, "another cache.path, or have its owner mend that")


def check_cache_path(path: Path, storage: Path, private_tmp: bool) -> tuple[Finding, ...]:
    """Check what the path alone shows, on a machine where no run is started."""
    if path == storage or path.is_relative_to(storage):
        text = f"cache.path {path} lies in storage {storage}: nothing would be local"
        return (Finding(CACHE, "error", text, "cache.path on a local disk of every node"),)
    cache = CachePlace(path=path, place=path, mount=None, alone=False, private_tmp=private_tmp)
    text = f"{path} is looked at on compute nodes only, since it is a disk of theirs"
    return (Finding(CACHE, "ok", text), *judge_survival(cache))


def check_cache(path: Path, max_bytes: int | None, alone: bool, private_tmp: bool, group: bool = False) -> tuple[Finding, ...]:
    """Look at the cache of this machine, made or not."""
    try:
        place, mount = place_of(path)
    except PermissionError as error:
        return (judge_refusal(CACHE, error, path, None, "cache.path"),)
    cache = CachePlace(path=path, place=place, mount=mount, alone=alone, private_tmp=private_tmp, environ=dict(os.environ))
    found = [*judge_cache_mount(cache), *judge_survival(cache), *check_way(path, group=group), *judge_owner(_owners(path), os.geteuid())]
    if not path.exists():
        found.append(Finding(CACHE, "ok", f"{path} is not there yet; it is made by the first run, in {place}"))
    else:
        found += _held(path)
    room = room_of(place)
    found += [*judge_room(CACHE, room, "cache.path"), *judge_size(max_bytes, room)]
    try:
        trial = try_out(place)
    except OSError as error:
        return (*found, judge_refusal(CACHE, error, place, mount, "cache.path"))
    if trial.locks is not True:
        found.append(Finding(CACHE, "error", f"flock does not work in {place}: stagers of one node would collide", "another cache.path"))
    return (*found, *judge_speed(CACHE, trial, SLOW_CACHE))


def _held(path: Path) -> Iterator[Finding]:
    """Report what lies in the cache. With the local scheduler there is one cache per node below `path`."""
    roots = [path, *path.glob("local-*")]
    datasets = [entry for root in roots for entry in _entries(root / "datasets")]
    waiting = sum(1 for root in roots for _ in (root / "runs").glob("*/pending.json"))
    if datasets:
        whole = sum(1 for name in datasets if not name.startswith("."))
        said = f"{counted(whole, 'dataset')}, {counted(len(datasets) - whole, 'unfinished copy', 'unfinished copies')}"
        yield Finding(CACHE, "ok", f"it holds {said}; `slipway cache ls` lists them")
    if waiting:
        text = f"{counted(waiting, 'result waits', 'results wait')} in the cache, because storage did not take them"
        yield Finding(CACHE, "warning", text, "`slipway reap --push` delivers them")


def _entries(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []


def _owners(path: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for name in OWN:
        try:
            status = (path / name).lstat()
        except OSError:
            continue
        found[name] = (status.st_uid, status.st_mode)
    return found


def _below(path: Path, places: tuple[str, ...]) -> str | None:
    return next((place for place in places if path.is_relative_to(place)), None)


# Suggested places


VARIABLES: Final = ("SCRATCH", "WORK", "PROJECT", "WORKDIR", "GROUP_SCRATCH")
USUAL: Final = (
    *("/local/scratch", "/local", "/scratch/local", "/localscratch", "/lscratch", "/nvme", "/nvme0", "/mnt/nvme", "/mnt/nvme0", "/ssd"),
    *("/mnt/ssd", "/mnt/local", "/data/local", "/raid", "/disk/scratch", "/var/scratch"),
)
"""The usual mount points of the local disks of compute nodes."""
SYSTEM: Final = ("/", "/boot", "/usr", "/var", "/home", "/root", "/tmp", "/run", "/dev", "/etc", "/sys", "/proc", "/opt")


def shared_places(environ: Mapping[str, str]) -> list[tuple[Path, str]]:
    """Find directories of network storage that this user may write, best first, each with its origin. It may hang."""
    mounts = read_mounts()
    found = [
        (Path(environ[name]), f"${name}")
        for name in VARIABLES
        if environ.get(name, "").startswith("/") and os.access(environ[name], os.W_OK | os.X_OK)
    ]
    home = environ.get("HOME", "")
    for mount in writable(mount for mount in mounts if mount.kind == "network"):
        if mount.point != home and not home.startswith(f"{mount.point}/"):
            found.append((Path(mount.point), f"{mount.type} from {mount.source}, and writable"))
    own = mount_of(mounts, os.path.realpath(home)) if home else None
    if own is not None and own.kind == "network" and os.access(home, os.W_OK):
        found.append((Path(home), f"your home, {own.type} from {own.source}"))
    return found


def local_places() -> list[Path]:
    """Find directories on local disks that this user may write, best first."""
    mounts = read_mounts()
    usual = [Path(name) for name in USUAL if os.path.isdir(name) and os.access(name, os.W_OK | os.X_OK)]
    chosen = [path for path in usual if _is_local(mounts, path)]
    others = [Path(mount.point) for mount in writable(mounts) if mount.kind == "local" and os.path.isdir(mount.point)]
    return list(dict.fromkeys([*chosen, *(path for path in others if not _is_system(path))]))


def _is_local(mounts: Sequence[Mount], path: Path) -> bool:
    mount = mount_of(mounts, os.path.realpath(path))
    return mount is not None and mount.kind == "local"


def _is_system(path: Path) -> bool:
    return str(path) in SYSTEM or path.is_relative_to("/run") or path.is_relative_to("/etc") or path.is_relative_to("/tmp")  # noqa: S108


# Judgements of storage


STORAGE: Final = "storage"
SLOW_STORAGE: Final = "nothing: each dataset is read from it once; other users may be at it now"
ATTRIBUTE_CACHE: Final = ("acdirmax", "acregmax", "actimeo")


def judge_storage_mount(mount: Mount | None, alone: bool, inside: bool) -> Iterator[Finding]:
    """Judge the mount of storage.

    `alone` means that runs stay on this machine, so that nothing is shared; `inside`, that the nodes are asked whether they see it.
    """
    if mount is None:
        yield Finding(STORAGE, "note", "its file system does not show in /proc/self/mountinfo")
        return
    if mount.kind == "network":
        yield Finding(STORAGE, "ok", f"{mount.describe()}; a quota does not show here")
    elif alone or (inside and mount.kind != "memory"):
        yield Finding(STORAGE, "ok", mount.describe())
    elif mount.kind == "memory":
        text = f"{mount.describe()}: it is memory of this machine, no other sees it, and a reboot empties it"
        yield Finding(STORAGE, "error", text, "storage: on network storage that all nodes see")
    else:
        text = f"{mount.describe()}: looks like a local disk of this machine"
        yield Finding(STORAGE, "note", text, "inside an allocation this command asks the nodes whether they see it")
    if mount.type.startswith("nfs"):
        yield _judge_nfs(mount)


def _judge_nfs(mount: Mount) -> Finding:
    if mount.option("noac") is not None:
        return Finding(STORAGE, "ok", "NFS without attribute cache (noac): nodes see each other's files at once; small files are slow")
    longest = next((mount.option(name) for name in ATTRIBUTE_CACHE if mount.option(name)), "60")
    text = f"NFS keeps attributes up to {longest} s: so late may another node's file appear"
    return Finding(STORAGE, "ok", f"{text}; Slipway's nodes talk over sockets, and Snakemake waits (latency-wait)")


def judge_trial(trial: Trial) -> Iterator[Finding]:
    """Judge the promises on which leases and publishing rely."""
    if not trial.exclusive:
        text = "O_EXCL does not hold: a file that exists was created again; two writers of one run could not be told apart"
        yield Finding(STORAGE, "error", text, "other storage: this one is not safe for leases")
    if not trial.replaces:
        yield Finding(STORAGE, "error", "rename over a file leaves the old content: results cannot be published", "other storage")
    if trial.exclusive and trial.replaces:
        yield Finding(STORAGE, "ok", "files are created once (O_EXCL) and replaced whole (rename)")
    if not trial.locks:
        text = "flock is refused" if trial.locks is None else "flock does not lock"
        yield Finding(STORAGE, "note", f"{text} here", "nothing: Slipway does not rely on locks on shared storage")
    yield from judge_speed(STORAGE, trial, SLOW_STORAGE)


def judge_group(mode: int, shared: str, path: Path) -> Iterator[Finding]:
    """Judge whether new files belong to the group, where the site file says `shared: group`."""
    if shared == "group" and not (mode & stat.S_ISGID and mode & stat.S_IWGRP):
        text = f"the site file says shared: group, but {path} is mode {stat.S_IMODE(mode):o}: new files do not belong to its group"
        yield Finding(STORAGE, "warning", text, f"chmod g+ws {path}, with the right group")
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        text = f"everybody may write in {path} (mode {stat.S_IMODE(mode):o}): anybody can replace datasets and results"
        yield Finding(STORAGE, "warning", text, f"chmod o-w {path}")


def check_storage(storage: Path, shared: str, alone: bool, inside: bool) -> tuple[Finding, ...]:
    """Look at `storage`, or, where it is not made yet, at the directory it will be made in."""
    try:
        place, mount = place_of(storage)
    except PermissionError as error:
        return (judge_refusal(STORAGE, error, storage, None, "storage"),)
    found = [*judge_storage_mount(mount, alone, inside)]
    if place != storage.resolve():
        found.append(Finding(STORAGE, "ok", f"{storage} is not there yet; it is made by the first run or build, in {place}"))
    elif not place.is_dir():
        return (Finding(STORAGE, "error", f"{storage} is not a directory", "storage: a directory, in the site file"),)
    else:
        found += judge_group(place.stat().st_mode, shared, place)
    room: Room = room_of(place)
    found += judge_room(STORAGE, room, "storage")
    try:
        trial = try_out(place)
    except OSError as error:
        return (*found, judge_refusal(STORAGE, error, place, mount, "storage"))
    return (*found, *judge_trial(trial), *judge_clock(trial))
