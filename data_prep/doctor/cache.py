"""`cache.path` of the site file, looked at where runs are: really local, there after the job, ours to write, large and fast enough."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Final

from base.finding import Finding
from base.trusted import why_distrusted, why_way_distrusted
from base.units import counted, format_size
from cluster.detection import SIGNS
from data_prep.doctor.judging import Room, judge_refusal, judge_room, judge_speed, room_of
from data_prep.doctor.mounts import Mount, place_of
from data_prep.doctor.trial import try_out

SUBJECT: Final = "cache"
SLOW_ADVICE: Final = "another disk of the node: training reads from here"
TEMPORARY: Final = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - names to compare with
OWN: Final = ("datasets", "leases", "locks", "used", "verified", "runs")


@dataclass(frozen=True, kw_only=True)
class CachePlace:
    """Where the cache is, and what the job has to do with it. `place`: the nearest directory that exists."""

    path: Path
    place: Path
    mount: Mount | None
    alone: bool
    private_tmp: bool = False
    """The scheduler gives each job a /tmp of its own."""
    environ: Mapping[str, str] = field(default_factory=dict)


def judge_mount(cache: CachePlace) -> Iterator[Finding]:
    """Pure: whether the file system is one of this node alone."""
    mount = cache.mount
    if mount is None:
        yield Finding(SUBJECT, "note", f"the file system of {cache.place} does not show in /proc/self/mountinfo")
    elif mount.kind == "network":
        text = f"{cache.path} is not local: {mount.describe()}; all nodes would fill and lock the same directory, over the network"
        advice = "cache.path on a local disk of every node (`df -T` on one; often /local, /scratch/local, /nvme)"
        yield Finding(SUBJECT, "warning" if cache.alone else "error", text, advice)
    elif mount.kind == "memory":
        text = (
            f"{cache.path} is memory, not a disk ({mount.describe()}): what is cached is missing to training, and may count against the job"
        )
        yield Finding(SUBJECT, "warning", text, "cache.path on a local disk; if this is meant, set cache.max_bytes")
    elif mount.kind == "other":
        yield Finding(SUBJECT, "note", f"{cache.path}: {mount.describe()}; a container's root file system is slow and small")
    else:
        yield Finding(SUBJECT, "ok", f"{cache.path} is local: {mount.describe()}")


def judge_survival(cache: CachePlace) -> Iterator[Finding]:
    """Pure: whether what one job puts there is there for the next."""
    why = None if cache.alone else next(iter(_reasons(cache)), None)
    if why:
        text = f"{cache.path} does not survive the job: {why}; each job would stage its datasets again"
        yield Finding(
            SUBJECT, "warning", text, "cache.path outside of what belongs to one job; `slipway submit` stages once per node for all runs"
        )
    elif not cache.alone and _below(cache.path, TEMPORARY):
        text = f"{cache.path} is below {_below(cache.path, TEMPORARY)}: some sites clear it after each job or at night"
        yield Finding(SUBJECT, "note", text, "nothing is lost then: what is gone is staged again")


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
    """Pure: the site's cache.max_bytes against the disk."""
    if max_bytes is not None and max_bytes > room.total_bytes:
        text = f"cache.max_bytes {format_size(max_bytes)} of the site file, but the disk has {format_size(room.total_bytes)}"
        yield Finding(SUBJECT, "note", text, "nothing breaks: the disk's own limit holds")


def judge_owner(owners: Mapping[str, tuple[int, int]], uid: int) -> Iterator[Finding]:
    """Pure: directory -> (owner, mode) of the cache's own directories: somebody else could change the data in them."""
    for name, (owner, mode) in owners.items():
        group = mode & stat.S_ISGID and mode & stat.S_IWGRP and not mode & stat.S_IWOTH
        if not group and (owner != uid or mode & (stat.S_IWGRP | stat.S_IWOTH)):
            text = f"{name} in the cache belongs to uid {owner}, mode {stat.S_IMODE(mode):o}: it is not ours alone, runs refuse it"
            yield Finding(SUBJECT, "error", text, "another cache.path, such as one with your name in it, or remove that directory")
            return


def check_way(path: Path, *, group: bool) -> Iterator[Finding]:
    """Whether the cache, or the nearest directory that is there, is one that nobody else can exchange."""
    there = path
    while not os.path.lexists(there):
        there = there.parent
    problem = why_distrusted(there, group=group) if there == path else why_way_distrusted(there)
    if problem is not None:
        text = f"{path} cannot be the cache, since somebody else could change the data in it: {problem}"
        yield Finding(SUBJECT, "error", text, "another cache.path, or have its owner mend that")


def check_cache_path(path: Path, storage: Path, private_tmp: bool) -> tuple[Finding, ...]:
    """Pure: what the path alone tells, on a machine where no run is started."""
    if path == storage or path.is_relative_to(storage):
        text = f"cache.path {path} lies in storage {storage}: nothing would be local"
        return (Finding(SUBJECT, "error", text, "cache.path on a local disk of every node"),)
    cache = CachePlace(path=path, place=path, mount=None, alone=False, private_tmp=private_tmp)
    text = f"{path} is looked at on compute nodes only, since it is a disk of theirs"
    return (Finding(SUBJECT, "ok", text), *judge_survival(cache))


def check_cache(path: Path, max_bytes: int | None, alone: bool, private_tmp: bool, group: bool = False) -> tuple[Finding, ...]:
    """Look at the cache of this machine, made or not."""
    try:
        place, mount = place_of(path)
    except PermissionError as error:
        return (judge_refusal(SUBJECT, error, path, None, "cache.path"),)
    cache = CachePlace(path=path, place=place, mount=mount, alone=alone, private_tmp=private_tmp, environ=dict(os.environ))
    found = [*judge_mount(cache), *judge_survival(cache), *check_way(path, group=group), *judge_owner(_owners(path), os.geteuid())]
    if not path.exists():
        found.append(Finding(SUBJECT, "ok", f"{path} is not there yet; it is made by the first run, in {place}"))
    else:
        found += _held(path)
    room = room_of(place)
    found += [*judge_room(SUBJECT, room, "cache.path"), *judge_size(max_bytes, room)]
    try:
        trial = try_out(place)
    except OSError as error:
        return (*found, judge_refusal(SUBJECT, error, place, mount, "cache.path"))
    if trial.locks is not True:
        found.append(Finding(SUBJECT, "error", f"flock does not work in {place}: stagers of one node would collide", "another cache.path"))
    return (*found, *judge_speed(SUBJECT, trial, SLOW_ADVICE))


def _held(path: Path) -> Iterator[Finding]:
    """What lies there; with the local scheduler one cache per node below `path`."""
    roots = [path, *path.glob("local-*")]
    datasets = [entry for root in roots for entry in _entries(root / "datasets")]
    waiting = sum(1 for root in roots for _ in (root / "runs").glob("*/pending.json"))
    if datasets:
        whole = sum(1 for name in datasets if not name.startswith("."))
        said = f"{counted(whole, 'dataset')}, {counted(len(datasets) - whole, 'unfinished copy', 'unfinished copies')}"
        yield Finding(SUBJECT, "ok", f"it holds {said}; `slipway cache ls` lists them")
    if waiting:
        text = f"{counted(waiting, 'result waits', 'results wait')} in the cache, because storage did not take them"
        yield Finding(SUBJECT, "warning", text, "`slipway reap --push` delivers them")


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
