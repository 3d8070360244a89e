"""Images of apptainer: SIF files, which its `build` makes of what a registry, a daemon or an archive has."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from base.command import CommandResult
from containers.images.commands import ask
from containers.images.model import SIF
from containers.limits import IMAGE_PULL_S

NAME: Final = "apptainer"
FORM: Final = SIF
_SOURCES: Final = ("docker://", "oras://", "library://", "docker-archive:", "oci-archive:", "docker-daemon:")


def build_argv(target: Path, reference: str, credentials: Path | None = None) -> list[str]:
    """A reference without a scheme is one of a registry, as for docker."""
    source = reference if reference.startswith(_SOURCES) else f"docker://{reference}"
    return [NAME, "build", *(["--authfile", str(credentials)] if credentials else []), str(target), source]


def make(target: Path, reference: str, credentials: Path | None) -> CommandResult:
    """See containers.images.files."""
    return ask(build_argv(target, reference, credentials), IMAGE_PULL_S)


def run_argv(source: str, command: tuple[str, ...], place: str) -> list[str]:  # noqa: ARG001 - it needs no place
    """See containers.images.files."""
    return [NAME, "exec", "--containall", "--cleanenv", source, *command]
