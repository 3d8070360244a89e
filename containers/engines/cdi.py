"""Whether dockerd hands out GPUs by CDI, asked in the child that prepares the node. Where it does, `--gpus` may not work: NVIDIA's runtime
refuses it in its CDI mode (cmd/nvidia-container-runtime/README.md), and a node with nothing but the specification has no hook for it.

Docker only. Podman takes GPUs in no other way.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from base.errors import ContainerError
from base.jsonfile import read_content
from base.typed import PathText, json_as
from containers.engines import client, docker
from containers.engines.cli import CDI_KIND
from containers.yamltext import parse_yaml

DIRECTORIES: Final = (docker.NAME, "info", "--format", "{{json .CDISpecDirs}}")
"""From Docker 25 on; empty where CDI is off (Engine API, SystemInfo). Older ones do not know the field, and the client fails."""
MAX_BYTES: Final = 16 << 20
SUFFIXES: Final = (".json", ".yaml")


class Cdi(NamedTuple):
    """Whether to use it, and why."""

    use: bool
    reason: str


def find_cdi(engine: str, gpus: Sequence[str]) -> Cdi:
    """For the GPUs that are granted here, by UUID. Raises ContainerError where the daemon does not answer."""
    if engine != docker.NAME or not gpus:
        return Cdi(use=False, reason="no GPUs for docker")
    answer = client.call(DIRECTORIES, docker.socket_of(os.environ))
    directories = _parsed(answer.stdout) if answer.returncode == 0 else []
    if not directories:
        return Cdi(use=False, reason="dockerd does no CDI")
    there = set(_device_names(Path(directory) for directory in directories))
    missing = [uuid for uuid in gpus if uuid not in there]
    if missing:
        return Cdi(use=False, reason=f"no specification in {', '.join(map(str, directories))} names {CDI_KIND}={missing[0]}")
    return Cdi(use=True, reason=f"dockerd does CDI, and {', '.join(map(str, directories))} names them all")


def _device_names(directories: Iterator[Path]) -> Iterator[str]:
    """Of every GPU that a specification names (CDI specification, 0.5.0 to 1.0.0: kind, devices[].name)."""
    for directory in directories:
        for path in _files(directory):
            content = _specification(path) if path.suffix in SUFFIXES else None
            devices = content.get("devices") if isinstance(content, dict) and content.get("kind") == CDI_KIND else None
            entries = devices if isinstance(devices, list) else ()
            yield from (str(device.get("name")) for device in entries if isinstance(device, dict))


def _files(directory: Path) -> list[Path]:
    """Of a directory that may be the administrator's alone, or not there: then it names nothing."""
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _specification(path: Path) -> Any:
    """None for a file that is none: the daemon passes over it as well."""
    try:
        return parse_yaml(read_content(path, ContainerError, MAX_BYTES), path, ContainerError)
    except ContainerError:
        return None


def _parsed(text: str) -> list[str]:
    """Directories; none where the answer is another."""
    try:
        return json_as(list[PathText], text, "the answer", ContainerError)
    except ContainerError:
        return []
