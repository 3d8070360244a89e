"""Plan how Apptainer starts a container (container_start.py starts it): our descendant, as the user, without a daemon, from a SIF file.

It stays in the job's cgroup, whose limits and devices hold. --nv shows every GPU that the job's device cgroup leaves; which of
them the ranks use, CUDA_VISIBLE_DEVICES says by UUID.
"""

from collections.abc import Mapping
from typing import Final

from containers.engines import container_start
from containers.engines.docker_podman import SCRATCH, mounts, plan_of_job, watchdog_argv
from containers.spec import ContainerPlan, ContainerSpec, EnginePlan

NAME = "apptainer"
VERSION = (NAME, "--version")

HIDDEN: Final = ("APPTAINERENV_", "SINGULARITYENV_", "APPTAINER_BIND", "SINGULARITY_BIND", "APPTAINER_MOUNT", "SINGULARITY_MOUNT")

start, close, remove = container_start.start, container_start.close, container_start.remove


def plan(spec: ContainerSpec, host_env: Mapping[str, str]) -> EnginePlan:
    """Plan what the engine will execute. Raises UnsupportedRequest without an image.

    --containall: of the host's files nothing, an own /tmp (in --workdir, for in memory it would have 64 MB), pid and IPC namespaces, an
    empty environment.
    """
    run = (
        *(NAME, "--silent", "exec", "--containall", "--no-home", "--no-privs", "--no-eval"),
        *("--workdir", f"{spec.paths.control}/{SCRATCH}"),
        *(("--nv",) if spec.device == "cuda" else ()),
        *(("--net", "--network", "none") if spec.network == "none" else ()),
        *(
            word
            for source, target, writable in (*mounts(spec), *((device, device, True) for device in spec.devices))
            for word in ("--mount", f"type=bind,source={source},destination={target}{'' if writable else ',ro'}")
        ),
        *(spec.image_id or str(spec.image), spec.python),
        *watchdog_argv(),
    )
    return plan_of_job(NAME, spec, host_env, ContainerPlan(run=run, hidden=HIDDEN))
