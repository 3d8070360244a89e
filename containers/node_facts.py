"""Probe what a container gets from its node and from the job there: user, limits, memory, devices. Deciding is pure."""

import dataclasses
import grp
import os
import pwd
import resource
from pathlib import Path
from typing import Final

from base.system import machine_number, umask
from cluster.machine import memory_bytes, memory_cgroups
from containers.spec import ContainerSpec, User

NO_LIMIT: Final = -1
STACK_BYTES: Final = 64 << 20
OPEN_FILES: Final = 1 << 20
INFINIBAND: Final = Path("/dev/infiniband")
LIMITS: Final = (
    ("memlock", resource.RLIMIT_MEMLOCK, NO_LIMIT),  # what network cards read must not move
    ("nofile", resource.RLIMIT_NOFILE, OPEN_FILES),
    ("stack", resource.RLIMIT_STACK, STACK_BYTES),
)
PID_MAX: Final = Path("/proc/sys/kernel/pid_max")


def with_facts(spec: ContainerSpec, granted: int | None = None) -> ContainerSpec:
    """Return the specification with the facts of this node as this process finds them: to be called in the job, on the node. `granted`:
    memory, as the scheduler says. No network storage is touched, nothing is started."""
    machine = memory_bytes()
    limit = min((value for value in (memory_limit(), granted) if value is not None), default=None)
    limited = limit if limit is not None and (machine is None or limit < machine) else None
    return dataclasses.replace(
        spec,
        user=user_here(),
        rootless=os.geteuid() != 0,
        umask=umask(),
        memory_bytes=limited,
        shm_bytes=(limited or machine or 16 << 30) // 2,
        limits=limits_here(),
        devices=(str(INFINIBAND),) if INFINIBAND.is_dir() and any(INFINIBAND.iterdir()) else (),
    )


def limits_here() -> tuple[tuple[str, int], ...]:
    """Return the limits that training wants. Of processes as many as there are numbers: podman takes more for no limit, and cannot set
    that."""
    wanted = (*LIMITS, ("nproc", resource.RLIMIT_NPROC, machine_number(PID_MAX) or NO_LIMIT))
    return tuple((name, _limit(number, value)) for name, number, value in wanted)


def user_here() -> User:
    """Return the user of this process, by number where this node knows no name."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = f"user{uid}"
    others = sorted(set(os.getgroups()) - {gid})
    return User(uid=uid, name=name, groups=tuple((number, _group_name(number)) for number in (gid, *others)))


def memory_limit(membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the least memory limit of our cgroup and those above it; None where there is none."""
    found = []
    for is_v1, place in memory_cgroups(membership, root):
        top, name = (root / "memory", "memory.limit_in_bytes") if is_v1 else (root, "memory.max")
        above = [directory for directory in (place, *place.parents) if directory == top or top in directory.parents]
        found += [machine_number(directory / name) for directory in above]
    return min((value for value in found if value is not None), default=None)


def _limit(number: int, wanted: int) -> int:
    """Return at most the hard limit of this process: without root nobody may raise it, and a job's limits hold in its containers."""
    hard = resource.getrlimit(number)[1]
    if hard == resource.RLIM_INFINITY:
        return wanted
    return hard if wanted == NO_LIMIT else min(hard, wanted)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return f"group{gid}"
