"""Pyxis: a container that Slurm makes of a step, for sites that allow nothing else. The image is a squashfs file, which pyxis unpacks.

The node program starts a step of its own node by srun, and pyxis, which the administrator has put into Slurm, has enroot make the container
around its one task, the watchdog. So it is slurmstepd's child, in the step's cgroup: the job's limits and its devices hold. Pyxis removes
what it unpacked when the task has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from base.errors import UnsupportedRequest
from cluster.schedulers.slurm.steps import INPUTS, OURS
from containers.engines import container
from containers.engines.inside import TEMPORARY, gpu_environment, mounts, plan_inside, watchdog_argv, watchdog_plan
from containers.limits import PYXIS_UNPACK_S
from containers.spec import ContainerPlan, ContainerSpec, EnginePlan

NAME = "pyxis"
CONTAINERS = True
STORE: Final = None
VERSION = ("srun", "--version")
"""Pyxis has no command: where it is not in Slurm, srun refuses its options."""

JOB: Final = "SLURM_JOB_ID"
SCRATCH: Final = "scratch"
EXPORTED: Final = ("HOME", "USER", "LOGNAME")
"""What enroot wants of the user's environment; all the rest of it stays outside."""
NOT_IN_A_MOUNT: Final = ": \t"

start, close, remove = container.start, container.close, container.remove


def plan(spec: ContainerSpec, host_env: Mapping[str, str]) -> EnginePlan:
    """Pure. Raises UnsupportedRequest without an image, outside of a job of Slurm, and for a path that its command line cannot carry."""
    if spec.image is None:
        raise UnsupportedRequest(f"{NAME}: {spec.name!r} has no image: only bare can do without")
    processes = plan_inside(spec, host_env)
    variables = gpu_environment(spec)
    scratch = (f"{spec.paths.control}/{SCRATCH}", TEMPORARY, True)
    bound = (scratch, *mounts(spec), *((device, device, True) for device in spec.devices))
    foreign = sorted(name for name in host_env if name.startswith(INPUTS) and name not in OURS)
    run = (
        "env",
        *(f"--unset={name}" for name in foreign),
        *(f"{name}={value}" for name, value in variables.items()),
        *_step(spec, host_env),
        f"--export={','.join((*EXPORTED, *variables))}",
        f"--container-env={','.join(variables)}",
        f"--container-mounts={','.join((_shared_memory(spec), *(_mount(*one) for one in bound)))}",
        *("--container-workdir=/", "--container-readonly", "--no-container-mount-home"),
        *("--no-container-remap-root", "--no-container-entrypoint"),
        *("--container-image", spec.image_id or spec.image, spec.python),
        *watchdog_argv(),
    )
    control = ContainerPlan(
        where=NAME,
        run=run,
        find=(),
        remove=(),
        files=(("plan.json", watchdog_plan(spec, processes)), (f"{SCRATCH}/.made", "")),
        sees_all_gpus=True,
        start_s=PYXIS_UNPACK_S,
    )
    return EnginePlan(engine=NAME, spec=spec, processes=processes, container=control)


def _step(spec: ContainerSpec, host_env: Mapping[str, str]) -> tuple[str, ...]:
    """One task on this node, beside the node program's and with all that that has."""
    cores = host_env.get("SLURM_CPUS_ON_NODE")
    return (
        "srun",
        f"--jobid={host_env.get(JOB, f'${JOB}')}",
        "--overlap",
        "--nodes=1",
        f"--nodelist={host_env.get('SLURMD_NODENAME', '$SLURMD_NODENAME')}",
        "--ntasks=1",
        *((f"--cpus-per-task={cores}",) if cores else ()),
        *((f"--gres=gpu:{len(spec.gpus)}",) if spec.gpus else ()),
        *("--mem=0", "--mpi=none", "--cpu-bind=none", "--input=none"),
    )


def _shared_memory(spec: ContainerSpec) -> str:
    return f"tmpfs:/dev/shm:rw+nosuid+nodev+mode=1777+size={spec.shm_bytes}"


def _mount(source: str, target: str, writable: bool) -> str:
    for path in (source, target):
        if any(sign in path for sign in NOT_IN_A_MOUNT):
            raise UnsupportedRequest(
                f"{NAME}: {path!r} is to be mounted, and must be a path without colon or space: choose another place, or another engine"
            )
    return f"{source}:{target}:{'rw' if writable else 'ro'}+nosuid+nodev"
