"""Podman, by its command line (see cli.py): no daemon, but conmon, which leaves the job as dockerd's shim does.

Without --init: that needs catatonit, which is a package of its own, and the watchdog buries orphans itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path

from containers.engines import container_client
from containers.engines.cli import CDI_KIND, plan_container
from containers.engines.store import Store
from containers.spec import ContainerSpec, EnginePlan

NAME = "podman"
CONTAINERS = True
VERSION = (NAME, "--version")

start, close, remove = container_client.start, container_client.close, container_client.remove


def plan(spec: ContainerSpec, host_env: Mapping[str, str]) -> EnginePlan:
    """Pure. Raises UnsupportedRequest."""
    gpus = (word for uuid in spec.gpus for word in ("--device", f"{CDI_KIND}={uuid}")) if spec.device == "cuda" else ()
    return plan_container(NAME, spec, host_env, socket_of(host_env), tuple(gpus))


def socket_of(environ: Mapping[str, str]) -> str:
    """Pure: whom podman's client talks to, for messages."""
    if environ.get("CONTAINER_HOST"):
        return f"podman's service at {environ['CONTAINER_HOST']}"
    return "podman's storage, whose lock another podman may hold (`podman info` shows graphRoot)"


def _pull(reference: str, credentials: Path | None) -> tuple[str, ...]:
    return ("pull", "--quiet", *(() if credentials is None else ("--authfile", str(credentials))), reference)


STORE = Store(
    where=socket_of,
    local_names="localhost/",
    root="{{.Store.GraphRoot}}",
    unpacks_in_root=False,
    pull=_pull,
    save_format=lambda form: ("--format", form),
    credentials=nullcontext,
)
