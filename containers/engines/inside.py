"""What is the same inside every container, whichever engine makes it: places, environment of the ranks, the watchdog's orders. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from base.errors import UnsupportedRequest
from containers.engines.programs import inherited, plan_processes
from containers.limits import WATCHDOG_TERM_S
from containers.spec import ContainerSpec, Paths, ProcessPlan, User

HERE: Final = "/slipway"
TEMPORARY: Final = "/tmp"  # noqa: S108 - the container's own
INSIDE: Final = Paths(
    cell=f"{HERE}/cell.json",
    data=f"{HERE}/data",
    lib=f"{HERE}/lib",
    beat=f"{HERE}/beat",
    out=f"{HERE}/out",
    resume=f"{HERE}/resume",
    program=f"{HERE}/program",
    control=f"{HERE}/control",
)
WATCHDOG: Final = f"{INSIDE.lib}/slipway_watchdog.py"

# What programs may see of the user's environment besides. Not where things are: inside, they are elsewhere.
ALLOWED: Final = ("LANG", "LANGUAGE", "TZ")
NOT_IN_A_PATH: Final = ',"\n\0'


def mounts(spec: ContainerSpec) -> tuple[tuple[str, str, bool], ...]:
    """(source, target, whether it may be written): all that a cell needs and what its program asks for, nothing else. Raises
    UnsupportedRequest."""
    names = ("cell", "data", "lib", "program", "beat", "resume", "control", "out")
    places = ((getattr(spec.paths, name), getattr(INSIDE, name), name == "out") for name in names)
    found = tuple(place for place in places if place[0] is not None)
    for source, target, _ in found:
        if not source.startswith("/") or any(sign in source for sign in NOT_IN_A_PATH):
            raise UnsupportedRequest(
                f"{source!r} is to be {target} of a container, and must be an absolute path without comma, quote or newline: "
                "choose another `cache` in the site file"
            )
    return (*found, *spec.mounts)


def watchdog_argv() -> tuple[str, ...]:
    """Arguments of the interpreter: nothing of the image's site packages, of PYTHONPATH or the working directory gets into it."""
    return ("-I", "-S", "-B", WATCHDOG, INSIDE.control)


def gpu_environment(spec: ContainerSpec) -> dict[str, str]:
    """For the container itself: images say NVIDIA_VISIBLE_DEVICES=all, which a default runtime would take at its word."""
    if spec.device != "cuda":
        return {"NVIDIA_VISIBLE_DEVICES": "void"}
    return {"NVIDIA_VISIBLE_DEVICES": ",".join(spec.gpus), "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


def plan_inside(spec: ContainerSpec, host_env: Mapping[str, str]) -> tuple[ProcessPlan, ...]:
    """argv and environment of each, the latter beside the image's own."""
    own = {**_user_environment(spec.user), "TMPDIR": TEMPORARY, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **gpu_environment(spec)}
    return plan_processes(spec, INSIDE, spec.python, {**inherited(host_env, ALLOWED), **own})


def _user_environment(user: User | None) -> dict[str, str]:
    return {"HOME": _home(user), **({"USER": user.name, "LOGNAME": user.name} if user else {})}


def _home(user: User | None) -> str:
    return user.home if user else f"{TEMPORARY}/home"


def watchdog_plan(spec: ContainerSpec, processes: tuple[ProcessPlan, ...]) -> str:
    """plan.json: see containers/lib/slipway_watchdog.py. The ranks' environment stands here, so that no engine shows it."""
    value = {
        "beat": INSIDE.beat,
        "beat_s": spec.beat_s,
        "deadline": spec.deadline,
        "grace_s": WATCHDOG_TERM_S,
        "home": _home(spec.user),
        "umask": spec.umask,
        "list_gpus": spec.device == "cuda",
        "processes": [{"name": one.name, "argv": list(one.argv), "env": dict(one.env), "cwd": one.cwd} for one in processes],
    }
    return json.dumps(value, sort_keys=True, indent=1) + "\n"


def passwd_text(user: User) -> str:
    """/etc/passwd of the container: root, nobody, the user."""
    lines = {0: "root:x:0:0:root:/root:/sbin/nologin", 65534: "nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin"}
    lines[user.uid] = f"{user.name}:x:{user.uid}:{user.gid}::{user.home}:/bin/sh"
    return "".join(f"{line}\n" for line in lines.values())


def group_text(user: User) -> str:
    """/etc/group of the container: those of the user."""
    names = {0: "root", 65534: "nogroup", **dict(user.groups)}
    return "".join(f"{name}:x:{gid}:{user.name if gid != user.gid else ''}\n" for gid, name in names.items())
