"""Images of apptainer: one file, which is image and archive in one, so that pinning is hashing and loading is copying."""

from __future__ import annotations

import hashlib
import platform
import tempfile
from pathlib import Path
from typing import Final

from base.command import describe
from base.errors import ContainerError
from base.publish import publish_file
from containers.images.commands import ask
from containers.images.model import MACHINES, SIF, PinnedImage
from containers.limits import IMAGE_PULL_S

NAME: Final = "apptainer"
_SOURCES: Final = ("docker://", "oras://", "library://", "docker-archive:", "oci-archive:", "docker-daemon:")


def build_argv(target: Path, reference: str, credentials: Path | None = None) -> list[str]:
    """A reference without a scheme is one of a registry, as for docker."""
    source = reference if reference.startswith(_SOURCES) else f"docker://{reference}"
    return [NAME, "build", *(["--authfile", str(credentials)] if credentials else []), str(target), source]


def pin(reference: str, *, pull: str, credentials: Path | None, scratch: Path | None) -> PinnedImage:
    """A .sif file as it is, or one built into `scratch`, where it stays: building again would give other bytes."""
    if reference.endswith(".sif"):
        return _pinned(reference, Path(reference))
    place = scratch or Path.home() / ".cache" / "slipway" / "sif"
    file = place / (hashlib.sha256(reference.encode()).hexdigest()[:12] + ".sif")
    if pull == "always" or not file.exists():
        if pull == "never":
            raise ContainerError(f"image {reference!r} was not built here, and nothing may be pulled here: name a .sif file")
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _build(reference, file, credentials)
    return _pinned(reference, file)


def _build(reference: str, target: Path, credentials: Path | None) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        part = Path(directory, "image.sif")
        result = ask(build_argv(part, reference, credentials), IMAGE_PULL_S)
        if result.returncode or not part.is_file():
            raise ContainerError(f"image {reference!r} cannot be made a SIF: {describe(result)}")
        publish_file(part, target)


def _pinned(reference: str, file: Path) -> PinnedImage:
    """Apptainer runs only images of the machine's own kind without more, so that is what we take a SIF for."""
    try:
        with file.open("rb") as opened:
            digest = "sha256:" + hashlib.file_digest(opened, "sha256").hexdigest()
        size = file.stat().st_size
    except OSError as error:
        raise ContainerError(f"image {reference!r}: {file} cannot be read: {error.strerror}") from error
    machine = platform.machine()
    return PinnedImage(
        reference=reference,
        engine=NAME,
        digest=digest,
        image_id=digest,
        platform=f"linux/{MACHINES.get(machine, machine)}",
        size_bytes=size,
        form=SIF,
        source=str(file.absolute()),
    )
