"""Plan how Docker starts a container (container_start.py starts it): it is dockerd's child, and the node program watches it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from base import errors, typed
from containers.engines import container_start, docker_podman
from containers.spec import ContainerSpec, EnginePlan

NAME = "docker"
VERSION = (NAME, "version", "--format", "{{.Server.Version}}")

start, close, remove = container_start.start, container_start.close, container_start.remove


def plan(spec: ContainerSpec, host_env: Mapping[str, str]) -> EnginePlan:
    return docker_podman.plan_container(NAME, spec, host_env, ("--init", *_gpus(spec)))


def _gpus(spec: ContainerSpec) -> tuple[str, ...]:
    """Name GPUs by UUID: an index means another GPU to whoever counts from elsewhere. The quotes are part of the value: it is CSV."""
    if spec.device != "cuda":
        return ()
    if spec.cdi:
        return tuple(word for uuid in spec.gpus for word in ("--device", f"{docker_podman.CDI_KIND}={uuid}"))
    return ("--gpus", f'"device={",".join(spec.gpus)}"')


# Whether dockerd hands out GPUs by CDI, asked in the child that prepares the node. Where it does, `--gpus` may not work: NVIDIA's runtime
# refuses it in its CDI mode (cmd/nvidia-container-runtime/README.md), and a node with nothing but the specification has no hook for it.
#
# Docker only. Podman takes GPUs in no other way.


DIRECTORIES: Final = (NAME, "info", "--format", "{{json .CDISpecDirs}}")
"""The query of its CDI directories, from Docker 25 on; empty where CDI is off (Engine API, SystemInfo). Older ones do not know the field,
and the client fails."""
SUFFIXES: Final = (".json", ".yaml")


def has_cdi(engine: str, gpus: Sequence[str]) -> bool:
    """Find out whether dockerd hands out the granted GPUs, by UUID. Raises ContainerError where the daemon does not answer."""
    if engine != NAME or not gpus:
        return False
    answer = container_start.call(DIRECTORIES)
    directories = _parsed(answer.stdout) if answer.returncode == 0 else []
    there = [content for directory in directories for content in _specifications(Path(directory))]
    return all(any(uuid in content for content in there) for uuid in gpus)


def _specifications(directory: Path) -> list[str]:
    """Return the texts of the specifications for GPUs in a directory; none if it is missing, or the administrator's alone."""
    try:
        files = [path.read_text(errors="replace") for path in sorted(directory.iterdir()) if path.suffix in SUFFIXES and path.is_file()]
    except OSError:
        return []
    return [content for content in files if docker_podman.CDI_KIND in content]


def _parsed(text: str) -> list[str]:
    try:
        return typed.json_as(list[typed.PathText], text, "the answer", errors.ContainerError)
    except errors.ContainerError:
        return []
