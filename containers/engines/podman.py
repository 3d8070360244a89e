"""Plan how Podman starts a container (container_start.py starts it): no daemon, but conmon, which leaves the job as dockerd's shim does.

Without --init: that needs catatonit, which is a package of its own, and the watchdog buries orphans itself.
"""

from collections.abc import Mapping

from containers.engines import container_start, docker_podman
from containers.spec import ContainerSpec, EnginePlan

NAME = "podman"
VERSION = (NAME, "--version")

start, close, remove = container_start.start, container_start.close, container_start.remove


def plan(spec: ContainerSpec, host_env: Mapping[str, str]) -> EnginePlan:
    gpus = (word for uuid in spec.gpus for word in ("--device", f"{docker_podman.CDI_KIND}={uuid}")) if spec.device == "cuda" else ()
    return docker_podman.plan_container(NAME, spec, host_env, tuple(gpus))
