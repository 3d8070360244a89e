"""The engines that keep images, and containers beyond a job's end, in a store of their own: how they differ."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, kw_only=True)
class Store:
    """How one engine keeps and fetches images."""

    where: Callable[[Mapping[str, str]], str]
    """Pure: in an environment, whom its client talks to, for messages."""
    local_names: str
    """What it puts before the name of an image that came from no registry."""
    root: str
    """In `info --format`: where it keeps its images."""
    unpacks_in_root: bool
    """Whether a load needs room in the root a second time; otherwise in TMPDIR."""
    pull: Callable[[str, Path | None], tuple[str, ...]]
    """Pure: the words after the client's name that fetch a reference, with credentials as `credentials` gives them."""
    save_format: Callable[[str], tuple[str, ...]]
    """Pure: the options of `save` that give an archive of this form."""
    credentials: Callable[[Path], AbstractContextManager[Path]]
    """The user's file of credentials, as `pull` wants it."""


def docker_daemon(environ: Mapping[str, str]) -> str:
    """Return where docker's client looks for the daemon, for messages."""
    if environ.get("DOCKER_HOST"):
        return f"dockerd at {environ['DOCKER_HOST']}"
    if environ.get("DOCKER_CONTEXT"):
        return f"dockerd of the context {environ['DOCKER_CONTEXT']}"
    return "dockerd at unix:///var/run/docker.sock"


def _pull_by_docker(reference: str, credentials: Path | None) -> tuple[str, ...]:
    return (*(() if credentials is None else ("--config", str(credentials))), "pull", "--quiet", reference)


@contextlib.contextmanager
def _directory_of(credentials: Path) -> Iterator[Path]:
    """Yield a directory of our own with a config.json in it, as docker wants: a link to the user's file."""
    if credentials.name == "config.json":
        yield credentials.parent
        return
    with tempfile.TemporaryDirectory(prefix="slipway-docker-") as directory:
        Path(directory, "config.json").symlink_to(credentials.resolve())
        yield Path(directory)


def podman_service(environ: Mapping[str, str]) -> str:
    """Return whom podman's client talks to, for messages."""
    if environ.get("CONTAINER_HOST"):
        return f"podman's service at {environ['CONTAINER_HOST']}"
    return "podman's storage, whose lock another podman may hold (`podman info` shows graphRoot)"


def _pull_by_podman(reference: str, credentials: Path | None) -> tuple[str, ...]:
    return ("pull", "--quiet", *(() if credentials is None else ("--authfile", str(credentials))), reference)


STORES: Final = {
    "docker": Store(
        where=docker_daemon,
        local_names="",
        root="{{.DockerRootDir}}",
        unpacks_in_root=True,
        pull=_pull_by_docker,
        save_format=lambda _form: (),
        credentials=_directory_of,
    ),
    "podman": Store(
        where=podman_service,
        local_names="localhost/",
        root="{{.Store.GraphRoot}}",
        unpacks_in_root=False,
        pull=_pull_by_podman,
        save_format=lambda form: ("--format", form),
        credentials=nullcontext,
    ),
}
