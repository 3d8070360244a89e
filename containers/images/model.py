"""Define an image, pinned and archived: frozen values that travel as JSON from the login node to every node of a run."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from base.errors import ContainerError, RecordError
from base.jsonfile import read_json
from base.typed import Check, Count, Digest, PathText, read_as

SCHEMA: Final = "slipway.image/1"
DOCKER_ARCHIVE: Final = "docker-archive"
OCI_ARCHIVE: Final = "oci-archive"
SIF: Final = "sif"
SQSH: Final = "sqsh"
SUFFIXES: Final = {DOCKER_ARCHIVE: ".tar.zst", OCI_ARCHIVE: ".oci.tar.zst", SIF: ".sif", SQSH: ".sqsh"}
FILES: Final = (SIF, SQSH)
"""Forms in which the engine starts the archive itself."""
_ID: Final = re.compile(r"sha256:[0-9a-f]{64}")
MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64", "ppc64le": "ppc64le"}
MAX_MANIFEST: Final = 1 << 16
Reference = Annotated[str, Check("the name of an image", lambda value: 0 < len(value) <= 1000 and value.isprintable() and value[0] != "-")]
Platform = Annotated[str, Check("such as linux/amd64", lambda value: re.fullmatch(r"[\w.-]+/[\w./-]+", value) is not None)]


@dataclass(frozen=True, kw_only=True)
class PinnedImage:
    """What `reference` meant at one moment: from now on the study means `image_id`, wherever the tag goes."""

    reference: Reference
    """The reference as the user wrote it."""
    engine: str
    digest: str
    """The digest of the manifest in its registry; the id of an image that came from none."""
    image_id: str
    """What the engine calls it, the same on every node and for every platform another; of a file that is an image its hash."""
    platform: Platform
    """`linux/amd64`."""
    size_bytes: Count
    """Unpacked."""
    form: str = DOCKER_ARCHIVE
    """How it is archived so that it keeps its id: docker-archive, oci-archive, sif, sqsh."""
    source: str = ""
    """The path of a file that is an image, on the machine that pinned it."""

    def __post_init__(self) -> None:
        for field in ("digest", "image_id"):
            if not _ID.fullmatch(getattr(self, field)):
                raise ValueError(f"{field} of image {self.reference!r} must be sha256:<64 hex digits>, found {getattr(self, field)!r}")
        if self.form not in SUFFIXES:
            raise ValueError(f"form of image {self.reference!r} must be one of {', '.join(SUFFIXES)}, found {self.form!r}")

    @property
    def short(self) -> str:
        """Return twelve digits that name it in paths and tags."""
        return self.image_id.removeprefix("sha256:")[:12]

    @property
    def file_name(self) -> str:
        return self.short + SUFFIXES[self.form]


@dataclass(frozen=True, kw_only=True)
class ArchivedImage:
    """An image on storage: `file` beside its manifest `<storage>/images/<file>.json`, which has these keys."""

    image: PinnedImage
    file: str
    sha256: Digest
    """The digest of the file as it lies there."""
    bytes: Count
    schema: str = SCHEMA


@dataclass(frozen=True, kw_only=True)
class StudyImage(ArchivedImage):
    """What a study keeps of the image of a framework: what it was pinned to, and where that was archived."""

    archive: PathText


def manifest_path(file: Path) -> Path:
    """Return the path of the manifest that belongs to an archive."""
    return file.with_name(f"{file.name}.json")


def read_manifest(archive: Path) -> ArchivedImage:
    """Read the manifest beside an archive. Raises RecordError."""
    path = manifest_path(archive)
    try:
        value = read_json(path, RecordError, MAX_MANIFEST)
    except RecordError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise RecordError(
                f"{error}: the archive of the image has gone from storage; start the study again: where Snakemake runs, the same image is "
                "archived once more if it can be had"
            ) from error
        raise
    found = read_as(ArchivedImage, value, f"{path} is not a manifest of an image", RecordError, "remove it, and archive the image again")
    if found.file != archive.name:
        raise RecordError(
            f"{path}: expected the manifest of {archive.name!r}, found that of {found.file!r}; remove both, and archive the image again"
        )
    return found


def check_platform(image: PinnedImage, machine: str) -> None:
    """Raise ContainerError where the image is for another processor than `machine` (uname -m)."""
    wanted = image.platform.split("/")[1]
    here = MACHINES.get(machine, machine)
    if wanted != here:
        raise ContainerError(
            f"image {image.reference!r} ({image.short}) is for {image.platform}, the node is {machine}; name an image for linux/{here}"
        )


def check_same(image: PinnedImage, loaded: Mapping[str, str]) -> None:
    """Raise ContainerError unless every node (name -> id of the image that it will start) has the pinned image."""
    others = {node: found for node, found in loaded.items() if found != image.image_id}
    if others or not loaded:
        found = "; ".join(f"{node}: {other or 'no image'}" for node, other in sorted(others.items())) or "no node answered"
        raise ContainerError(
            f"image {image.reference!r} is pinned to {image.image_id}, but not all {len(loaded)} nodes have it: {found}; "
            "nothing was started: look who changed the image there, then run again"
        )
