"""The command lines of docker and podman, which take the same options. Pure.

The command line and not docker's SDK, because it serves better: one plan for three engines (podman without a service and apptainer have no
API to talk to); what `slipway plan --cell` prints is what is executed, and can be pasted; contexts, TLS, DOCKER_HOST and rootless sockets
are the client's own business; nothing is imported into the node program (the SDK with requests takes longer than the client runs); and a
client that hangs is a process, which a time limit ends, whatever it hangs in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from base.errors import UnsupportedRequest
from containers.engines.inside import (
    TEMPORARY,
    gpu_environment,
    group_text,
    mounts,
    passwd_text,
    plan_inside,
    watchdog_argv,
    watchdog_plan,
)
from containers.spec import ContainerPlan, ContainerSpec, EnginePlan, User

CDI_KIND: Final = "nvidia.com/gpu"


def plan_container(client: str, spec: ContainerSpec, host_env: Mapping[str, str], where: str, own: tuple[str, ...]) -> EnginePlan:
    """`own`: options of this engine alone. Raises UnsupportedRequest for a specification that only bare can start."""
    if spec.image is None or spec.user is None:
        raise UnsupportedRequest(f"{client}: {spec.name!r} has no {'image' if spec.image is None else 'user'}: only bare can do without")
    processes = plan_inside(spec, host_env)
    run = (
        *(client, "run", "--rm", "--pull=never", "--name", spec.name),
        *(word for name, value in spec.labels for word in ("--label", f"{name}={value}")),
        *_as_user(spec.user, _rootless(client, spec)),
        *("--read-only", "--tmpfs", f"{TEMPORARY}:rw,exec,nosuid,nodev,mode=1777"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--security-opt", "label=disable"),
        *own,
        *_limits(spec, _rootless(client, spec)),
        *("--network", spec.network, "--log-driver", "none", "--sig-proxy=false"),
        *(word for device in spec.devices for word in ("--device", device)),
        *_mounts(spec),
        *(word for name, value in gpu_environment(spec).items() for word in ("--env", f"{name}={value}")),
        *("--workdir", "/", "--entrypoint", spec.python, spec.image_id or spec.image),
        *watchdog_argv(),
    )
    container = ContainerPlan(
        where=where,
        run=run,
        find=(client, "ps", "--all", "--quiet", "--filter", f"name=^{spec.name.replace('.', '[.]')}$"),
        remove=remove_argv(client, spec.name),
        files=(
            ("plan.json", watchdog_plan(spec, processes)),
            ("passwd", passwd_text(spec.user)),
            ("group", group_text(spec.user)),
        ),
    )
    return EnginePlan(engine=client, spec=spec, processes=processes, container=container)


def remove_argv(client: str, name: str) -> tuple[str, ...]:
    """Kill and remove at once: podman would wait for TERM first, 10 s."""
    return (client, "rm", "--force", *(("--time", "0") if client == "podman" else ()), "--volumes", name)


def _rootless(client: str, spec: ContainerSpec) -> bool:
    """Docker's containers are dockerd's, whoever asks for them: it knows none of these options."""
    return spec.rootless and client == "podman"


def _as_user(user: User, rootless: bool) -> tuple[str, ...]:
    if rootless:
        return ("--user", f"{user.uid}:{user.gid}", "--userns", "keep-id", "--group-add", "keep-groups")
    others = (word for gid, _ in user.groups[1:] for word in ("--group-add", str(gid)))
    return ("--user", f"{user.uid}:{user.gid}", *others)


def _limits(spec: ContainerSpec, rootless: bool) -> tuple[str, ...]:
    """Those of the job, copied; where the container is put into the job's cgroup, that has the last word."""
    shared = ("--shm-size", str(spec.shm_bytes), *(word for name, most in spec.limits for word in ("--ulimit", f"{name}={most}:{most}")))
    if rootless:
        return ("--cgroups", "disabled", *shared)  # stays in the cgroup of the node program, which is the job's
    parent = () if spec.cgroup_parent is None else ("--cgroup-parent", spec.cgroup_parent)
    memory = () if spec.memory_bytes is None else ("--memory", str(spec.memory_bytes), "--memory-swap", str(spec.memory_bytes))
    cores = ("--cpuset-cpus", ",".join(map(str, spec.cores))) if spec.cores else ()
    return (*parent, "--pids-limit", str(spec.pids), *memory, *cores, *shared)


def _mounts(spec: ContainerSpec) -> tuple[str, ...]:
    control = spec.paths.control
    files = ((f"{control}/passwd", "/etc/passwd", False), (f"{control}/group", "/etc/group", False))
    return tuple(
        word
        for source, target, writable in (*mounts(spec), *files)
        for word in ("--mount", f"type=bind,source={source},target={target}{'' if writable else ',readonly'}")
    )
