"""Plan how enroot starts a container (container_start.py starts it): our descendant, as the user, without a daemon.

The image is a squashfs file, which is mounted and not unpacked. The container stays in the job's cgroup, whose limits and devices hold.
/dev is the node's, so that every GPU is seen that the job's device cgroup leaves; CUDA_VISIBLE_DEVICES says by UUID which of
them the ranks use. The client becomes the first process of the container.
"""

from collections.abc import Mapping
from typing import Final

from containers.engines import container_start, docker_podman
from containers.spec import ContainerPlan, ContainerSpec, EnginePlan

NAME = "enroot"

_PLACES: Final = ("CONFIG", "CACHE", "DATA", "RUNTIME")
"""Directories that it makes at every call, where it can: of the last three some default to what only root may write."""
_OFF: Final = ("LOGIN_SHELL", "MOUNT_HOME", "REMAP_ROOT", "ROOTFS_WRITABLE", "UNSHARE_NET", "UNSHARE_PID")
"""What the files of the site may have switched on, and the environment overrules."""

HIDDEN: Final = ("NVIDIA_",)
"""Prefixes of variables that are hidden from enroot: its hook would use those of the node, not of the container."""
RC: Final = ("rc", 'exec "$@"\n')
"""Name and text of the command script, in the place of the image's own, which is its entry point."""
OWN: Final = "enroot"


def client_argv(place: str) -> tuple[str, ...]:
    """Return the client, with its own files below `place`, and nothing of the user's configuration."""
    return ("env", *(f"ENROOT_{name}_PATH={place}" for name in _PLACES), *(f"ENROOT_{name}=no" for name in _OFF), NAME)


VERSION = (*client_argv("/tmp"), "version")  # noqa: S108 - it is there, and nothing is put into it

start, close, remove = container_start.start, container_start.close, container_start.remove


def plan(spec: ContainerSpec, host_env: Mapping[str, str]) -> EnginePlan:
    """Plan what the engine will execute. Raises UnsupportedRequest without an image, and for a path that its command line cannot carry.

    An own /tmp on the node's disk and an own /dev/shm: enroot's are in memory without a limit, and the node's, where what ranks leave would
    stay.
    """
    control = spec.paths.control
    places = docker_podman.enroot_mounts(NAME, spec, "{}:{}:none:x-create=auto,rbind,{},nosuid,nodev")
    run = (
        *client_argv(f"{control}/{OWN}"),
        *("start", "--rc", f"{control}/{RC[0]}"),
        *("--mount", f"tmpfs:/dev/shm:tmpfs:rw,nosuid,nodev,mode=1777,size={spec.shm_bytes}"),
        *(word for place in places for word in ("--mount", place)),
        *(word for name, value in docker_podman.gpu_environment(spec).items() for word in ("--env", f"{name}={value}")),
        *(spec.image_id or str(spec.image), spec.python),
        *docker_podman.watchdog_argv(),
    )
    files = (RC, (f"{OWN}/.made", ""))
    return docker_podman.plan_of_job(NAME, spec, host_env, ContainerPlan(run=run, files=files, hidden=HIDDEN))
