"""Plan how pyxis starts a container, which Slurm makes of a step (container_start.py starts it).

It is for sites that allow nothing else. The image is a squashfs file, which pyxis unpacks.

The node program starts a step of its own node by srun, and pyxis, which the administrator has put into Slurm, has enroot make the container
around its one task, the watchdog. So it is slurmstepd's child, in the step's cgroup: the job's limits and its devices hold. The load of an
image unpacks it once, under a name (containers.images.pyxis_images), which is what `image_id` holds. Without one pyxis unpacks it for this
step and removes it when the task has ended, which is for who looks at a plan.
"""

from collections.abc import Mapping
from typing import Final

from cluster.schedulers.slurm import INPUTS, OURS
from containers.engines import container_start, docker_podman
from containers.limits import CONTAINER_START_S, PYXIS_UNPACK_S
from containers.spec import ContainerPlan, ContainerSpec, EnginePlan

NAME = "pyxis"
VERSION = ("srun", "--version")
"""Pyxis has no command: where it is not in Slurm, srun refuses its options."""

JOB: Final = "SLURM_JOB_ID"
EXPORTED: Final = ("HOME", "USER", "LOGNAME")
"""What enroot wants of the user's environment; all the rest of it stays outside."""

start, close, remove = container_start.start, container_start.close, container_start.remove


def plan(spec: ContainerSpec, host_env: Mapping[str, str]) -> EnginePlan:
    """Plan what the engine will execute. Raises UnsupportedRequest without an image, outside of a job of Slurm, and for a path that its
    command line cannot carry.
    """
    memory = f"tmpfs:/dev/shm:rw+nosuid+nodev+mode=1777+size={spec.shm_bytes}"
    unpacked = f"--container-name={spec.image_id}:no_exec"  # another run's container of the same image is not entered
    run = (
        *_step_argv(host_env, len(spec.gpus), docker_podman.gpu_environment(spec)),
        f"--container-mounts={','.join((memory, *docker_podman.enroot_mounts(NAME, spec, '{}:{}:{}+nosuid+nodev')))}",
        f"--container-image={spec.image}" if spec.image_id is None else unpacked,
        spec.python,
        *docker_podman.watchdog_argv(),
    )
    start_s = PYXIS_UNPACK_S if spec.image_id is None else CONTAINER_START_S
    return docker_podman.plan_of_job(NAME, spec, host_env, ContainerPlan(run=run, start_s=start_s))


def unpack_argv(name: str, file: str, host_env: Mapping[str, str]) -> tuple[str, ...]:
    """Return a step that unpacks the squashfs file under a name, which must be new, and ends. `sh` is what pyxis itself wants of an image;
    a word `:` would begin another step.
    """
    step = _step_argv(host_env, 0, {"NVIDIA_VISIBLE_DEVICES": "void"})
    return (*step, f"--container-image={file}", f"--container-name={name}:create", "sh", "-c", "exit 0")


def _step_argv(host_env: Mapping[str, str], num_gpus: int, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Return the srun of one task on this node, beside the node program's task and with all that it has."""
    foreign = sorted(name for name in host_env if name.startswith(INPUTS) and name not in OURS)
    cores = host_env.get("SLURM_CPUS_ON_NODE")
    return (
        "env",
        *(f"--unset={name}" for name in foreign),
        *(f"{name}={value}" for name, value in variables.items()),
        "srun",
        f"--jobid={host_env.get(JOB, f'${JOB}')}",
        "--overlap",
        "--nodes=1",
        f"--nodelist={host_env.get('SLURMD_NODENAME', '$SLURMD_NODENAME')}",
        "--ntasks=1",
        *((f"--cpus-per-task={cores}",) if cores else ()),
        *((f"--gres=gpu:{num_gpus}",) if num_gpus else ()),
        *("--mem=0", "--mpi=none", "--cpu-bind=none", "--input=none"),
        f"--export={','.join((*EXPORTED, *variables))}",
        f"--container-env={','.join(variables)}",
        *("--container-workdir=/", "--container-readonly", "--no-container-mount-home"),
        *("--no-container-remap-root", "--no-container-entrypoint"),
    )
