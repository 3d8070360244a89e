"""Images that are one file, which is image and archive in one, so that pinning is hashing and loading is copying.

Apptainer's are SIF files, which its `build` makes of what a registry, a daemon or an archive has; enroot's are squashfs files, which its
`import` makes of what a registry or a daemon of this machine has. Pyxis starts those of enroot.
"""

from __future__ import annotations

import hashlib
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.errors import ContainerError
from base.process import describe
from base.publish import publish_file
from containers.engines.enroot import OWN, RC, client_argv
from containers.images.commands import ask
from containers.images.model import MACHINES, SIF, SQSH, SUFFIXES, PinnedImage
from containers.limits import IMAGE_PULL_S

FROM_APPTAINER: Final = ("docker://", "oras://", "library://", "docker-archive:", "oci-archive:", "docker-daemon:")
FROM_ENROOT: Final = ("docker://", "dockerd://", "podman://")
ARCHIVE: Final = "docker-archive:"
CREDENTIALS: Final = ".credentials"


@dataclass(frozen=True, kw_only=True)
class FileEngine:
    """What an engine does whose images are files."""

    form: str
    make_argv: Callable[[Path, str, Path | None], list[str]]
    """(the file to make, what it is made of, the user's credentials); its directory is ours alone and removed later. Raises
    ContainerError."""
    run_argv: Callable[[str, tuple[str, ...], str], list[str]]
    """(the file of the image, a command, an empty directory to use): run it in the image, with nothing of this machine."""


def apptainer_build_argv(target: Path, reference: str, credentials: Path | None = None) -> list[str]:
    """Return the command that makes a SIF. A reference without a scheme is one of a registry, as for docker."""
    source = reference if reference.startswith(FROM_APPTAINER) else f"docker://{reference}"
    return ["apptainer", "build", *(["--authfile", str(credentials)] if credentials else []), str(target), source]


def _apptainer_exec_argv(source: str, command: tuple[str, ...], _: str) -> list[str]:
    return ["apptainer", "exec", "--containall", "--cleanenv", source, *command]


def enroot_uri(reference: str) -> str:
    """Return the reference as enroot writes it. One without a scheme is of a registry, whose name ends with # there."""
    if reference.startswith(FROM_ENROOT):
        return reference
    host, slash, rest = reference.partition("/")
    is_host = slash and ("." in host or ":" in host or host == "localhost")
    return f"docker://{host}#{rest}" if is_host else f"docker://{reference}"


def enroot_import_argv(target: Path, reference: str, credentials: Path | None = None) -> list[str]:
    """Return the command that makes a squashfs file. Its caches are the user's own, and without `credentials`, which are in the form of
    netrc, so is its configuration, where it finds those. Raises ContainerError.
    """
    if reference.startswith(ARCHIVE):
        file = reference.removeprefix(ARCHIVE)
        raise ContainerError(
            f"image {reference!r}: enroot reads no archive of `docker save`; load it (`podman load --input {file}`, or docker's), and name "
            "podman://IMAGE or dockerd://IMAGE"
        )
    place = target.parent
    if credentials is not None:
        (place / CREDENTIALS).symlink_to(credentials.absolute())
    places = {"RUNTIME": place, **({} if credentials is None else {"CONFIG": place})}
    settings = (f"ENROOT_{name}_PATH={path}" for name, path in places.items())
    return ["env", *settings, "enroot", "import", "--output", str(target), enroot_uri(reference)]


def _enroot_start_argv(source: str, command: tuple[str, ...], place: str) -> list[str]:
    name, text = RC
    Path(place, name).write_text(text)
    return [*client_argv(f"{place}/{OWN}"), "start", "--rc", f"{place}/{name}", "--env", "NVIDIA_VISIBLE_DEVICES=void", source, *command]


_ENROOT: Final = FileEngine(form=SQSH, make_argv=enroot_import_argv, run_argv=_enroot_start_argv)
FILE_ENGINES: Final = {
    "apptainer": FileEngine(form=SIF, make_argv=apptainer_build_argv, run_argv=_apptainer_exec_argv),
    "enroot": _ENROOT,
    "pyxis": _ENROOT,
}


def suffix_of(engine: str) -> str:
    """Return the suffix of the files of an engine, such as `.sif`."""
    return SUFFIXES[FILE_ENGINES[engine].form]


def pin(reference: str, engine: str, *, pull: str, credentials: Path | None, scratch: Path | None) -> PinnedImage:
    """Pin a file as it is, or make one in `scratch`, where it stays: to make it again would give other bytes. Raises ContainerError."""
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
        result = ask(FILE_ENGINES[engine].make_argv(part, reference, credentials), IMAGE_PULL_S)
        if result.returncode or not part.is_file():
            raise ContainerError(f"image {reference!r} cannot be made a {target.suffix} file: {describe(result)}")
        publish_file(part, target)


def _pinned(reference: str, engine: str, file: Path) -> PinnedImage:
    try:
        with file.open("rb") as opened:
            digest = "sha256:" + hashlib.file_digest(opened, "sha256").hexdigest()
        size = file.stat().st_size
    except OSError as error:
        raise ContainerError(f"image {reference!r}: {file} cannot be read: {error.strerror}") from error
    machine = platform.machine()  # these engines run only images of its kind without more
    return PinnedImage(
        reference=reference,
        engine=engine,
        digest=digest,
        image_id=digest,
        platform=f"linux/{MACHINES.get(machine, machine)}",
        size_bytes=size,
        form=FILE_ENGINES[engine].form,
        source=str(file.absolute()),
    )
