"""Docker, by its command line (see cli.py): the container is dockerd's child, and this node program's by what it watches."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from containers.engines import container
from containers.engines.cli import CDI_KIND, plan_container
from containers.engines.store import Store
from containers.spec import ContainerSpec, EnginePlan

NAME = "docker"
CONTAINERS = True
VERSION = (NAME, "version", "--format", "{{.Server.Version}}")

start, close, remove = container.start, container.close, container.remove


def plan(spec: ContainerSpec, host_env: Mapping[str, str]) -> EnginePlan:
    """Pure. Raises UnsupportedRequest."""
    return plan_container(NAME, spec, host_env, socket_of(host_env), ("--init", *_gpus(spec)))


def _gpus(spec: ContainerSpec) -> tuple[str, ...]:
    """By UUID: an index means another GPU to whoever counts from elsewhere. The quotes are part of the value: it is CSV."""
    if spec.device != "cuda":
        return ()
    if spec.cdi:
        return tuple(word for uuid in spec.gpus for word in ("--device", f"{CDI_KIND}={uuid}"))
    return ("--gpus", f'"device={",".join(spec.gpus)}"')


def socket_of(environ: Mapping[str, str]) -> str:
    """Pure: where docker's client looks for the daemon, for messages."""
    if environ.get("DOCKER_HOST"):
        return f"dockerd at {environ['DOCKER_HOST']}"
    if environ.get("DOCKER_CONTEXT"):
        return f"dockerd of the context {environ['DOCKER_CONTEXT']}"
    return "dockerd at unix:///var/run/docker.sock"


def _pull(reference: str, credentials: Path | None) -> tuple[str, ...]:
    return (*(() if credentials is None else ("--config", str(credentials))), "pull", "--quiet", reference)


@contextlib.contextmanager
def _directory_of(credentials: Path) -> Iterator[Path]:
    """Docker takes a directory with a config.json in it: one of our own that points to the user's file."""
    if credentials.name == "config.json":
        yield credentials.parent
        return
    with tempfile.TemporaryDirectory(prefix="slipway-docker-") as directory:
        Path(directory, "config.json").symlink_to(credentials.resolve())
        yield Path(directory)


STORE = Store(
    where=socket_of,
    local_names="",
    root="{{.DockerRootDir}}",
    unpacks_in_root=True,
    pull=_pull,
    save_format=lambda _form: (),
    credentials=_directory_of,
)
