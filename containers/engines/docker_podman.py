"""Build the command lines of docker and podman, which take the same options. Pure.

The command line and not docker's SDK, because it serves better: one plan for three engines (podman without a service and apptainer have no
API to talk to); what `slipway plan --cell` prints is what is executed, and can be pasted; contexts, TLS, DOCKER_HOST and rootless sockets
are the client's own business; nothing is imported into the node program (the SDK with requests takes longer than the client runs); and a
client that hangs is a process, which a time limit ends, whatever it hangs in.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from base.errors import UnsupportedRequest
from containers import limits, rank_variables
from containers.spec import CHECKPOINT, PARAMETERS, STOP, ContainerPlan, ContainerSpec, EnginePlan, Paths, ProcessPlan, User

# What is executed for each program of a node, whether it runs in a container or not: argv and environment, in terms of where it sees its
# files. Pure.


ALLOWED_PREFIXES: Final = ("LC_", "NCCL_", "UCX_", "FI_")
"""What every program may see of the user's environment: the language, and what network libraries read."""


def inherited(host_env: Mapping[str, str], allowed: Sequence[str]) -> dict[str, str]:
    """Return what a program gets of the node program's environment: the variables `allowed`, and those of ALLOWED_PREFIXES."""
    return {key: value for key, value in host_env.items() if key in allowed or key.startswith(ALLOWED_PREFIXES)}


def plan_processes(spec: ContainerSpec, places: Paths, python: str, base_env: Mapping[str, str]) -> tuple[ProcessPlan, ...]:
    """Plan the processes. `places`: the paths of `spec` as its programs see them; `base_env`: what they get besides what is the same
    everywhere."""
    data = places.data if spec.paths.data else None
    values = {**dict(spec.words), "python": python, "folder": places.program, "out": places.out, "cell": places.cell, "lib": places.lib}
    values |= {"data": data} if data else {}
    env = {
        **base_env,
        "PYTHONPATH": places.lib,
        "PYTHONFAULTHANDLER": "1",
        "SLIPWAY_CELL": places.cell,
        **({"SLIPWAY_DATA": data} if data else {}),
        "SLIPWAY_LIB": places.lib,
        "SLIPWAY_BEAT": places.beat,
        "SLIPWAY_OUT": places.out,
        "SLIPWAY_STOP": f"{places.resume}/{STOP}",
        **({"SLIPWAY_CHECKPOINT": f"{places.resume}/{CHECKPOINT}"} if spec.resumed else {}),
        **({"SLIPWAY_PARAMETERS": f"{places.resume}/{PARAMETERS}"} if spec.has_parameters else {}),
        "CUDA_VISIBLE_DEVICES": ",".join(spec.gpus),
        **dict(spec.env),
    }
    return tuple(
        ProcessPlan(
            name=process.name,
            ranks=process.ranks,
            argv=tuple(rank_variables.fill(word, values) for word in process.command),
            env=tuple(sorted({**env, **dict(process.env)}.items())),
            cwd=places.out,
            sidecar=process.sidecar,
            may_end=process.may_end,
            launcher=process.launcher,
        )
        for process in spec.processes
    )


# What is the same inside every container, whichever engine makes it: places, environment of the ranks, the watchdog's orders. Pure.


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
    """Return (source, target, whether it may be written): all that a cell needs and what its program asks for, nothing else. Raises
    UnsupportedRequest.
    """
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
    """Return the arguments of the interpreter: nothing of the image's site packages, of PYTHONPATH or the working directory gets into
    it."""
    return ("-I", "-S", "-B", WATCHDOG, INSIDE.control)


def gpu_environment(spec: ContainerSpec) -> dict[str, str]:
    """Return what the container itself is told of GPUs: images say NVIDIA_VISIBLE_DEVICES=all, which a default runtime would take at its
    word."""
    if spec.device != "cuda":
        return {"NVIDIA_VISIBLE_DEVICES": "void"}
    return {"NVIDIA_VISIBLE_DEVICES": ",".join(spec.gpus), "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}


def plan_inside(spec: ContainerSpec, host_env: Mapping[str, str]) -> tuple[ProcessPlan, ...]:
    """Return argv and environment of each process; the environment is added to the image's own."""
    name = {} if spec.user is None else {"USER": spec.user.name, "LOGNAME": spec.user.name}
    own = {"HOME": _home(spec.user), **name, "TMPDIR": TEMPORARY, "CUDA_DEVICE_ORDER": "PCI_BUS_ID", **gpu_environment(spec)}
    return plan_processes(spec, INSIDE, spec.python, {**inherited(host_env, ALLOWED), **own})


def _home(user: User | None) -> str:
    return user.home if user else f"{TEMPORARY}/home"


def watchdog_plan(spec: ContainerSpec, processes: tuple[ProcessPlan, ...]) -> str:
    """Return plan.json, which containers/lib/slipway_watchdog.py reads. The ranks' environment stands here, so that no engine shows it."""
    value = {
        "beat": INSIDE.beat,
        "beat_s": spec.beat_s,
        "deadline": spec.deadline,
        "grace_s": limits.WATCHDOG_TERM_S,
        "home": _home(spec.user),
        "umask": spec.umask,
        "list_gpus": spec.device == "cuda",
        "processes": [{"name": one.name, "argv": list(one.argv), "env": dict(one.env), "cwd": one.cwd} for one in processes],
    }
    return json.dumps(value, sort_keys=True, indent=1) + "\n"


def passwd_text(user: User) -> str:
    """Return /etc/passwd of the container: root, nobody, the user."""
    lines = {0: "root:x:0:0:root:/root:/sbin/nologin", 65534: "nobody:x:65534:65534:nobody:/nonexistent:/sbin/nologin"}
    lines[user.uid] = f"{user.name}:x:{user.uid}:{user.gid}::{user.home}:/bin/sh"
    return "".join(f"{line}\n" for line in lines.values())


def group_text(user: User) -> str:
    """Return /etc/group of the container: the groups of the user."""
    names = {0: "root", 65534: "nogroup", **dict(user.groups)}
    return "".join(f"{name}:x:{gid}:{user.name if gid != user.gid else ''}\n" for gid, name in names.items())


CDI_KIND: Final = "nvidia.com/gpu"


def plan_container(client: str, spec: ContainerSpec, host_env: Mapping[str, str], own: tuple[str, ...]) -> EnginePlan:
    """Plan a container of docker or podman. `own`: options of this engine alone. Raises UnsupportedRequest for a specification that only
    bare can start."""
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
    """Return True for podman without root. Docker's containers are dockerd's, whoever starts them: it knows none of these options."""
    return spec.rootless and client == "podman"


def _as_user(user: User, rootless: bool) -> tuple[str, ...]:
    if rootless:
        return ("--user", f"{user.uid}:{user.gid}", "--userns", "keep-id", "--group-add", "keep-groups")
    others = (word for gid, _ in user.groups[1:] for word in ("--group-add", str(gid)))
    return ("--user", f"{user.uid}:{user.gid}", *others)


def _limits(spec: ContainerSpec, rootless: bool) -> tuple[str, ...]:
    shared = ("--shm-size", str(spec.shm_bytes), *(word for name, most in spec.limits for word in ("--ulimit", f"{name}={most}:{most}")))
    if rootless:
        return ("--cgroups", "disabled", *shared)  # stays in the cgroup of the node program, which is the job's
    memory = () if spec.memory_bytes is None else ("--memory", str(spec.memory_bytes), "--memory-swap", str(spec.memory_bytes))
    cores = ("--cpuset-cpus", ",".join(map(str, spec.cores))) if spec.cores else ()
    return ("--pids-limit", str(spec.pids), *memory, *cores, *shared)


def _mounts(spec: ContainerSpec) -> tuple[str, ...]:
    control = spec.paths.control
    files = ((f"{control}/passwd", "/etc/passwd", False), (f"{control}/group", "/etc/group", False))
    return tuple(
        word
        for source, target, writable in (*mounts(spec), *files)
        for word in ("--mount", f"type=bind,source={source},target={target}{'' if writable else ',readonly'}")
    )


# Engines whose containers are descendants of the job: their image is a file, and when the client ends nothing is left to remove. Pure.


SCRATCH: Final = "scratch"
"""A directory on the node's disk, for the container's own /tmp."""


def plan_of_job(name: str, spec: ContainerSpec, host_env: Mapping[str, str], control: ContainerPlan) -> EnginePlan:
    """Complete `control`, in which an engine gives what is its own, with the processes and the files that all of them read. Raises
    UnsupportedRequest without an image."""
    if spec.image is None:
        raise UnsupportedRequest(f"{name}: {spec.name!r} has no image: only bare can do without")
    processes = plan_inside(spec, host_env)
    files = (("plan.json", watchdog_plan(spec, processes)), (f"{SCRATCH}/.made", ""), *control.files)
    return EnginePlan(engine=name, spec=spec, processes=processes, container=replace(control, files=files, sees_all_gpus=True))


def enroot_mounts(name: str, spec: ContainerSpec, form: str) -> list[str]:
    """Return mounts and devices as enroot, or pyxis, takes them: by `form`, of source, target and mode. Raises UnsupportedRequest for a
    path that they cannot carry."""
    scratch = (f"{spec.paths.control}/{SCRATCH}", TEMPORARY, True)
    places = (scratch, *mounts(spec), *((device, device, True) for device in spec.devices))
    for path in (path for source, target, _ in places for path in (source, target)):
        if any(sign in path for sign in ": \t"):
            raise UnsupportedRequest(
                f"{name}: {path!r} is to be mounted, and must be a path without colon or space: choose another place, or another engine"
            )
    return [form.format(source, target, "rw" if writable else "ro") for source, target, writable in places]
