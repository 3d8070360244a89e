"""What storage and cache have in common when they are judged: room, speed, clock, what the directory can do. Only `room_of` asks
the file system."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.finding import Finding
from base.units import format_size
from data_prep.doctor.mounts import Mount
from data_prep.doctor.trial import Trial
from data_prep.space import free_bytes, free_inodes

LITTLE_BYTES: Final = 10**9
SOME_BYTES: Final = 10**10
FEW_INODES: Final = 10_000
SLOW: Final = 50_000_000
NOTABLE_SKEW_S: Final = 1.0
LARGE_SKEW_S: Final = 30.0


@dataclass(frozen=True, kw_only=True)
class Room:
    """What is free for an ordinary user; `inodes` None: not counted."""

    free_bytes: int
    total_bytes: int
    inodes: int | None


def room_of(directory: Path) -> Room:
    """Asked of the file system; may hang."""
    status = os.statvfs(directory)
    return Room(free_bytes=free_bytes(directory), total_bytes=status.f_blocks * status.f_frsize, inodes=free_inodes(directory))


def judge_room(subject: str, room: Room, key: str) -> Iterator[Finding]:
    """`key`: what to change in the site file where it is too little."""
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
    """One stream, a small file: a hint, not a benchmark."""
    around = "around the page cache" if trial.direct else "perhaps from memory"
    text = (
        f"{format_size(trial.num_bytes)} in one stream: written durably at {format_size(trial.write_bytes_per_s)}/s, "
        f"read {around} at {format_size(trial.read_bytes_per_s)}/s"
    )
    slow = min(trial.write_bytes_per_s, trial.read_bytes_per_s) < SLOW
    yield Finding(subject, "note" if slow else "ok", text, slow_advice if slow else "")


def judge_clock(trial: Trial) -> Iterator[Finding]:
    """The clock that stamps files on storage against ours."""
    if abs(trial.skew_s) < NOTABLE_SKEW_S:
        yield Finding("clock", "ok", "files on storage are stamped with our time (to a second)")
        return
    way = "ahead of" if trial.skew_s > 0 else "behind"
    text = f"the clock of storage is {abs(trial.skew_s):.1f} s {way} ours: Snakemake compares file times, make and rsync too"
    yield Finding("clock", "warning" if abs(trial.skew_s) > LARGE_SKEW_S else "note", text, "ask for chrony or ntp on both")


def judge_refusal(subject: str, error: OSError, directory: Path, mount: Mount | None, key: str) -> Finding:
    """Why nothing can be written."""
    where = f"{directory} ({mount.describe()})" if mount else str(directory)
    advice = {
        errno.EROFS: f"it is mounted read-only here: another {key}, or ask why",
        errno.EACCES: f"`ls -ld {directory}`: a directory of yours, or {key} elsewhere",
        errno.EPERM: f"`ls -ld {directory}`: a directory of yours, or {key} elsewhere",
        errno.ENOSPC: f"free room there, or another {key}",
        errno.EDQUOT: f"your quota is used up: remove something there, or another {key}",
    }.get(error.errno or 0, f"another {key}, or ask what is wrong with it")
    return Finding(subject, "error", f"cannot be written: {error.strerror}: {where}", advice)
