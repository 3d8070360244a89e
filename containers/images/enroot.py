"""Images of enroot: squashfs files, which its `import` makes of what a registry or a daemon of this machine has. What `docker save` has
written it cannot read: that is unpacked here."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from base.command import CommandResult
from containers.engines.enroot import OWN, RC, client_argv
from containers.images.commands import ask
from containers.images.layers import unpack
from containers.images.model import SQSH
from containers.limits import IMAGE_PULL_S

NAME: Final = "enroot"
FORM: Final = SQSH
_SOURCES: Final = ("docker://", "dockerd://", "podman://")
_ARCHIVE: Final = "docker-archive:"
_CREDENTIALS: Final = ".credentials"
_SQUASH: Final = ("-all-root", "-no-progress", "-comp", "lzo", "-noD")
"""As enroot has it: quick to make, and read by every squashfuse that enroot works with."""


def uri_of(reference: str) -> str:
    """Pure: as enroot writes it. A reference without a scheme is one of a registry, whose name ends with # there."""
    if reference.startswith(_SOURCES):
        return reference
    host, slash, rest = reference.partition("/")
    is_host = slash and ("." in host or ":" in host or host == "localhost")
    return f"docker://{host}#{rest}" if is_host else f"docker://{reference}"


def import_argv(target: Path, reference: str, place: Path, credentials: Path | None = None) -> list[str]:
    """Its caches are the user's own, and without `credentials` so is its configuration, where it finds those."""
    places = {"RUNTIME": place, **({} if credentials is None else {"CONFIG": place})}
    settings = (f"ENROOT_{name}_PATH={path}" for name, path in places.items())
    return ["env", *settings, NAME, "import", "--output", str(target), uri_of(reference)]


def make(target: Path, reference: str, credentials: Path | None) -> CommandResult:
    """See containers.images.files. `credentials`: in the form of netrc, as enroot wants them. Raises ContainerError."""
    place = target.parent
    if reference.startswith(_ARCHIVE):
        root = place / "root"
        unpack(Path(reference.removeprefix(_ARCHIVE)), root)
        return ask(["mksquashfs", str(root), str(target), *_SQUASH], IMAGE_PULL_S)
    if credentials is not None:
        (place / _CREDENTIALS).symlink_to(credentials.absolute())
    return ask(import_argv(target, reference, place, credentials), IMAGE_PULL_S)


def run_argv(source: str, command: tuple[str, ...], place: str) -> list[str]:
    """See containers.images.files."""
    name, text = RC
    Path(place, name).write_text(text)
    return [*client_argv(f"{place}/{OWN}"), "start", "--rc", f"{place}/{name}", "--env", "NVIDIA_VISIBLE_DEVICES=void", source, *command]
