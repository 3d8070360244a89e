"""`storage` of the site file: there, ours to write, shared, with room, and with the promises that publishing relies on."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from base.finding import Finding
from data_prep.doctor.judging import Room, judge_clock, judge_refusal, judge_room, judge_speed, room_of
from data_prep.doctor.mounts import Mount, place_of
from data_prep.doctor.trial import Trial, try_out

SUBJECT: Final = "storage"
SLOW_ADVICE: Final = "nothing: each dataset is read from it once; other users may be at it now"
ATTRIBUTE_CACHE: Final = ("acdirmax", "acregmax", "actimeo")


def judge_mount(mount: Mount | None, alone: bool, inside: bool) -> Iterator[Finding]:
    """Pure. `alone`: runs stay on this machine, so that nothing needs to be shared. `inside`: the nodes are asked whether they see it."""
    if mount is None:
        yield Finding(SUBJECT, "note", "its file system does not show in /proc/self/mountinfo")
        return
    if mount.kind == "network":
        yield Finding(SUBJECT, "ok", f"{mount.describe()}; a quota does not show here")
    elif alone or (inside and mount.kind != "memory"):
        yield Finding(SUBJECT, "ok", mount.describe())
    elif mount.kind == "memory":
        text = f"{mount.describe()}: it is memory of this machine, no other sees it, and a reboot empties it"
        yield Finding(SUBJECT, "error", text, "storage: on network storage that all nodes see")
    else:
        text = f"{mount.describe()}: looks like a local disk of this machine"
        yield Finding(SUBJECT, "note", text, "inside an allocation this command asks the nodes whether they see it")
    if mount.type.startswith("nfs"):
        yield _judge_nfs(mount)


def _judge_nfs(mount: Mount) -> Finding:
    if mount.option("noac") is not None:
        return Finding(SUBJECT, "ok", "NFS without attribute cache (noac): nodes see each other's files at once; small files are slow")
    longest = next((mount.option(name) for name in ATTRIBUTE_CACHE if mount.option(name)), "60")
    text = f"NFS keeps attributes up to {longest} s: so late may another node's file appear"
    return Finding(SUBJECT, "ok", f"{text}; Slipway's nodes talk over sockets, and Snakemake waits (latency-wait)")


def judge_trial(trial: Trial) -> Iterator[Finding]:
    """Pure: the promises that leases and publishing rely on."""
    if not trial.exclusive:
        text = "O_EXCL does not hold: a file that exists was created again; two writers of one run could not be told apart"
        yield Finding(SUBJECT, "error", text, "other storage: this one is not safe for leases")
    if not trial.replaces:
        yield Finding(SUBJECT, "error", "rename over a file leaves the old content: results cannot be published", "other storage")
    if trial.exclusive and trial.replaces:
        yield Finding(SUBJECT, "ok", "files are created once (O_EXCL) and replaced whole (rename)")
    if not trial.locks:
        text = "flock is refused" if trial.locks is None else "flock does not lock"
        yield Finding(SUBJECT, "note", f"{text} here", "nothing: Slipway does not rely on locks on shared storage")
    yield from judge_speed(SUBJECT, trial, SLOW_ADVICE)


def judge_group(mode: int, shared: str, path: Path) -> Iterator[Finding]:
    """Pure: whether what we write belongs to the group, where the site file says `shared: group`."""
    if shared == "group" and not (mode & stat.S_ISGID and mode & stat.S_IWGRP):
        text = f"the site file says shared: group, but {path} is mode {stat.S_IMODE(mode):o}: new files do not belong to its group"
        yield Finding(SUBJECT, "warning", text, f"chmod g+ws {path}, with the right group")
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        text = f"everybody may write in {path} (mode {stat.S_IMODE(mode):o}): anybody can replace datasets and results"
        yield Finding(SUBJECT, "warning", text, f"chmod o-w {path}")


def check_storage(storage: Path, shared: str, alone: bool, inside: bool) -> tuple[Finding, ...]:
    """Look at `storage`, or, where it is not made yet, at the directory it will be made in."""
    try:
        place, mount = place_of(storage)
    except PermissionError as error:
        return (judge_refusal(SUBJECT, error, storage, None, "storage"),)
    found = [*judge_mount(mount, alone, inside)]
    if place != storage.resolve():
        found.append(Finding(SUBJECT, "ok", f"{storage} is not there yet; it is made by the first run or build, in {place}"))
    elif not place.is_dir():
        return (Finding(SUBJECT, "error", f"{storage} is not a directory", "storage: a directory, in the site file"),)
    else:
        found += judge_group(place.stat().st_mode, shared, place)
    room: Room = room_of(place)
    found += judge_room(SUBJECT, room, "storage")
    try:
        trial = try_out(place)
    except OSError as error:
        return (*found, judge_refusal(SUBJECT, error, place, mount, "storage"))
    return (*found, *judge_trial(trial), *judge_clock(trial))
