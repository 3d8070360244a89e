"""What the shell or the batch system leaves us: open files, locked memory, processes, shared memory."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from base.finding import Finding, Level
from base.units import format_size

SUBJECT: Final = "limits"
FILES: Final = 65536
SOME_FILES: Final = 8192
PROCESSES: Final = 4096
SHARED_MEMORY: Final = 1 << 30
NAMES: Final[Mapping[str, int]] = {
    "files": resource.RLIMIT_NOFILE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "processes": resource.RLIMIT_NPROC,
    "core": resource.RLIMIT_CORE,
    "memory": resource.RLIMIT_AS,
}
Limits = Mapping[str, tuple[int | None, int | None]]
"""Soft and hard limit; None: unlimited."""


def read_limits() -> dict[str, tuple[int | None, int | None]]:
    """Those of this process."""
    return {name: (_value(soft), _value(hard)) for name, (soft, hard) in ((n, resource.getrlimit(k)) for n, k in NAMES.items())}


def judge_limits(limits: Limits, infiniband: bool) -> tuple[Finding, ...]:
    """Pure. `infiniband`: whether the machine has such devices, which need locked memory."""
    found = []
    soft, hard = limits["files"]
    if soft is not None and soft < FILES:
        enough = hard is None or hard >= FILES
        text = f"open files: {soft}{'' if enough else f', hard limit {hard}'}; many ranks and loaders want {FILES}"
        advice = f'setup: ["ulimit -n {FILES}"] in the site file' if enough else "ask for a higher hard limit (nofile)"
        found.append(Finding(SUBJECT, "note" if soft >= (1024 if enough else SOME_FILES) else "warning", text, advice))
    soft, hard = limits["memlock"]
    if soft is not None:
        level: Level = "warning" if infiniband else "note"
        text = f"locked memory: {format_size(soft)}; InfiniBand (RDMA) needs it unlimited"
        advice = (
            'setup: ["ulimit -l unlimited"] in the site file'
            if hard is None
            else "ask for memlock unlimited, for the scheduler's daemon on the nodes too (LimitMEMLOCK of its service)"
        )
        found.append(Finding(SUBJECT, level, text + ("" if infiniband else ", and there is none here"), advice if infiniband else ""))
    soft, hard = limits["processes"]
    if soft is not None and soft < PROCESSES:
        text = f"processes and threads of this user: {soft}; a node program, ranks and their loaders need more with many GPUs"
        found.append(Finding(SUBJECT, "warning", text, f"ulimit -u {PROCESSES} or more"))
    if limits["core"][0] != 0:
        size = "unlimited" if limits["core"][0] is None else format_size(limits["core"][0])
        text = f"core files: {size}; a crash of all ranks writes as many, each as large as a rank's memory"
        found.append(Finding(SUBJECT, "note", text, 'setup: ["ulimit -c 0"] in the site file'))
    if limits["memory"][0] is not None:
        text = f"address space: {format_size(limits['memory'][0])}; CUDA and memory-mapped datasets want far more than they use"
        found.append(Finding(SUBJECT, "warning", text, "ulimit -v unlimited"))
    return tuple(found) or (Finding(SUBJECT, "ok", "open files, locked memory and processes are enough"),)


def judge_shared_memory(size_bytes: int | None, free_bytes: int) -> tuple[Finding, ...]:
    """Pure: /dev/shm, through which the ranks of a node and their loaders exchange data; None where it is missing."""
    if size_bytes is None:
        return (
            Finding(
                SUBJECT, "error", "/dev/shm is missing: loaders with workers and NCCL fail with a bus error", "ask for it to be mounted"
            ),
        )
    if size_bytes < SHARED_MEMORY:
        text = f"/dev/shm has {format_size(size_bytes)}: loaders with workers and NCCL end with a bus error when it is full"
        return (Finding(SUBJECT, "warning", text, "ask for half of the memory; in a container --ipc=host or --shm-size"),)
    if free_bytes < SHARED_MEMORY:
        text = f"/dev/shm is nearly full: {format_size(free_bytes)} of {format_size(size_bytes)} free"
        return (Finding(SUBJECT, "warning", text, "`ls -l /dev/shm`: leftovers of dead jobs?"),)
    return (Finding(SUBJECT, "ok", f"/dev/shm has {format_size(size_bytes)}"),)


def check_limits() -> tuple[Finding, ...]:
    """Those of this process, and /dev/shm. Our own umask is 077, or 027 with `shared: group`, whatever the shell says."""
    try:
        status = os.statvfs("/dev/shm")  # noqa: S108 - the file system is looked at, nothing is written
        size, free = status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize
        shared = judge_shared_memory(size if os.path.ismount("/dev/shm") else None, free)  # noqa: S108
    except FileNotFoundError:
        shared = judge_shared_memory(None, 0)
    return (*judge_limits(read_limits(), Path("/dev/infiniband").is_dir()), *shared)


def _value(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit
