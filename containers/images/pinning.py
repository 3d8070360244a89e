"""Pull, convert and pin an image, once, when a study starts: a tag becomes what it means now."""

import hashlib
import platform
import tempfile
from pathlib import Path
from typing import Final

from base.errors import ConfigError, ContainerError, UnsupportedRequest
from base.humanize import choices
from base.process import describe, last_lines
from base.publish import publish_file
from containers.engines import ENGINES, STORES, container_start, in_container
from containers.images.commands import find, pull_argv
from containers.images.model import MACHINES, SIF, SQSH, SUFFIXES, PinnedImage
from containers.limits import IMAGE_PULL_S

# Images that are one file, which is image and archive in one, so that pinning is hashing and loading is copying.
#
# Apptainer's are SIF files, which its `build` makes of what a registry, a daemon or an archive has; enroot's are squashfs files, which its
# `import` makes of what a registry or a daemon of this machine has. Pyxis starts those of enroot.


FROM_APPTAINER: Final = ("docker://", "oras://", "library://", "docker-archive:", "oci-archive:", "docker-daemon:")
FROM_ENROOT: Final = ("docker://", "dockerd://", "podman://")
ARCHIVE: Final = "docker-archive:"
CREDENTIALS: Final = ".credentials"


def apptainer_build_argv(target: Path, reference: str, credentials: Path | None = None) -> list[str]:
    """Return the command that makes a SIF. A reference without a scheme is one of a registry, as for docker."""
    source = reference if reference.startswith(FROM_APPTAINER) else f"docker://{reference}"
    return ["apptainer", "build", *(["--authfile", str(credentials)] if credentials else []), str(target), source]


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


FILE_ENGINES: Final = {"apptainer": SIF, "enroot": SQSH, "pyxis": SQSH}
"""The engines whose images are files, with their form."""


def suffix_of(engine: str) -> str:
    """Return the suffix of the files of an engine, such as `.sif`."""
    return SUFFIXES[FILE_ENGINES[engine]]


def pin_file(reference: str, engine: str, credentials: Path | None) -> PinnedImage:
    """Pin a file as it is, or make one in the user's cache, where it stays: to make it again would give other bytes. Raises
    ContainerError."""
    suffix = suffix_of(engine)
    if reference.endswith(suffix):
        return _pinned_file(reference, engine, Path(reference))
    place = Path.home() / ".cache" / "slipway" / suffix[1:]
    file = place / (hashlib.sha256(reference.encode()).hexdigest()[:12] + suffix)
    if not file.exists():
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(reference, engine, file, credentials)
    return _pinned_file(reference, engine, file)


def _make(reference: str, engine: str, target: Path, credentials: Path | None) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as directory:
        part = Path(directory, f"image{target.suffix}")
        make_argv = apptainer_build_argv if FILE_ENGINES[engine] == SIF else enroot_import_argv
        result = container_start.call(make_argv(part, reference, credentials), IMAGE_PULL_S)
        if result.returncode or not part.is_file():
            raise ContainerError(f"image {reference!r} cannot be made a {target.suffix} file: {describe(result)}")
        publish_file(part, target)


def _pinned_file(reference: str, engine: str, file: Path) -> PinnedImage:
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
        form=FILE_ENGINES[engine],
        source=str(file.absolute()),
    )


_DENIED: Final = ("unauthorized", "denied", "authentication required", "no basic auth")


def pin(reference: str, engine: str, credentials: Path | None = None) -> PinnedImage:
    """Pin what `reference` is for `engine` on this machine, fetched from its registry where it is not here.

    `credentials`: the user's own file (docker's config.json, podman's auth.json, enroot's .credentials); by default the one that the engine
    finds itself. Its content is never read by us. Raises ContainerError, ConfigError, UnsupportedRequest.
    """
    if reference.startswith("-") or not reference.strip() or any(character.isspace() for character in reference):
        raise ConfigError(f"image: found {reference!r}; valid: REPOSITORY:TAG, REPOSITORY@sha256:..., or a path of a .sif or .sqsh file")
    if credentials is not None and not credentials.is_file():
        raise ConfigError(f"the file of registry credentials {str(credentials)!r} is not there; `{engine} login` writes one")
    if credentials is not None and engine == "docker" and credentials.name != "config.json":
        raise ConfigError(f"docker reads credentials from a file config.json alone: {str(credentials)!r} has another name")
    if not in_container(engine):
        raise UnsupportedRequest(f"engine {engine!r} has no images; {choices(engine, filter(in_container, ENGINES))}")
    if engine not in STORES:
        return pin_file(reference, engine, credentials)
    found = find(engine, reference)
    if found is None:
        _fetch(reference, engine, credentials)
        found = find(engine, reference)
    if found is None:
        raise ContainerError(f"image {reference!r} is not known to {engine} on this machine")
    return found


def _fetch(reference: str, engine: str, credentials: Path | None) -> None:
    result = container_start.call(pull_argv(engine, reference, credentials), IMAGE_PULL_S)
    if result.returncode == 0:
        return
    words = last_lines(result.stderr, 1)  # before it podman reports each of its tries
    advice = "is it the image you mean (`images` in the site file)? `make image` builds ours, BASE=... from an image that is here"
    if any(word in words.lower() for word in _DENIED):
        how = (
            f"by {credentials}, which `{engine} login` writes"
            if credentials
            else f"`{engine} login`, or `registry_credentials` in the site file"
        )
        advice = f"does the registry know you ({how})? {advice}"
    raise ContainerError(f"image {reference!r} is not on this machine, and {engine} cannot pull it: {words}; {advice}")
