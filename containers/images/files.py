"""Images that are one file, which is image and archive in one, so that pinning is hashing and loading is copying."""

from __future__ import annotations

import hashlib
import platform
import tempfile
from pathlib import Path
from typing import Final, Protocol

from base.command import CommandResult, describe
from base.errors import ContainerError
from base.publish import publish_file
from containers.images import apptainer, enroot
from containers.images.model import MACHINES, SUFFIXES, PinnedImage


class FileEngine(Protocol):
    """What the module of an engine offers whose images are files."""

    FORM: str

    def make(self, target: Path, reference: str, credentials: Path | None) -> CommandResult:
        """Make the file `target` of what `reference` names; its directory is ours alone and removed later. Raises ContainerError."""

    def run_argv(self, source: str, command: tuple[str, ...], place: str) -> list[str]:
        """Run a command in the image of the file `source`, with nothing of this machine; `place`: an empty directory for it to use."""


FILE_ENGINES: Final[dict[str, FileEngine]] = {"apptainer": apptainer, "enroot": enroot, "pyxis": enroot}


def suffix_of(engine: str) -> str:
    """Of the files of an engine: `.sif`."""
    return SUFFIXES[FILE_ENGINES[engine].FORM]


def pin(reference: str, engine: str, *, pull: str, credentials: Path | None, scratch: Path | None) -> PinnedImage:
    """A file as it is, or one made in `scratch`, where it stays: making it again would give other bytes. Raises ContainerError."""
    suffix = suffix_of(engine)
    if reference.endswith(suffix):
        return _pinned(reference, engine, Path(reference))
    place = scratch or Path.home() / ".cache" / "slipway" / suffix[1:]
    file = place / (hashlib.sha256(reference.encode()).hexdigest()[:12] + suffix)
    if pull == "always" or not file.exists():
        if pull == "never":
            raise ContainerError(f"image {reference!r} was not built here, and nothing may be pulled here: name a {suffix} file")
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(reference, engine, file, credentials)
    return _pinned(reference, engine, file)


def _make(reference: str, engine: str, target: Path, credentials: Path | None) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        part = Path(directory, f"image{target.suffix}")
        result = FILE_ENGINES[engine].make(part, reference, credentials)
        if result.returncode or not part.is_file():
            raise ContainerError(f"image {reference!r} cannot be made a {target.suffix} file: {describe(result)}")
        publish_file(part, target)


def _pinned(reference: str, engine: str, file: Path) -> PinnedImage:
    """These engines run only images of the machine's own kind without more, so that is what we take a file for."""
    try:
        with file.open("rb") as opened:
            digest = "sha256:" + hashlib.file_digest(opened, "sha256").hexdigest()
        size = file.stat().st_size
    except OSError as error:
        raise ContainerError(f"image {reference!r}: {file} cannot be read: {error.strerror}") from error
    machine = platform.machine()
    return PinnedImage(
        reference=reference,
        engine=engine,
        digest=digest,
        image_id=digest,
        platform=f"linux/{MACHINES.get(machine, machine)}",
        size_bytes=size,
        form=FILE_ENGINES[engine].FORM,
        source=str(file.absolute()),
    )
