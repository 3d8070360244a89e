"""Keep the archive of a study's image on storage: if it has gone, the same image is archived again, or nothing starts. A study never gets
another image."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from base.errors import ConfigError, ContainerError, RecordError
from base.jsonfile import publish_json, read_json
from base.typed import read_as
from containers.engines import STORES
from containers.images import archiving, commands, pinning
from containers.images.model import PinnedImage, StudyImage, read_manifest

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PinnedImages:
    """A file of workflow.run.images.pin: what the frameworks' images of a study were pinned to."""

    engine: str
    images: Mapping[str, StudyImage]
    """Images by framework."""

    def to_json(self) -> dict[str, Any]:
        return {"engine": self.engine, "images": {name: image.to_json() for name, image in self.images.items()}}


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """An image that was pinned before, and the file that says so."""

    image: StudyImage
    file: Path


def read_pinned(path: Path) -> PinnedImages:
    """Read a file of pinned images. Raises RecordError."""
    return read_as(
        PinnedImages, read_json(path), f"{path} does not say what images were pinned to", RecordError, "it was edited; undo that"
    )


def image_of(file: str, engine: str, framework: str) -> StudyImage:
    """Return what FILE says of a framework's image. Raises ContainerError, RecordError."""
    value = read_pinned(Path(file))
    image = value.images.get(framework) if value.engine == engine else None
    if image is None:
        raise ContainerError(f"{file} names no image of {framework!r} for engine {engine}; remove it, and snakemake writes it again")
    return image


def pinned_before(results: Path, engine: str) -> dict[str, Pinned]:
    """Return what earlier files of the study say of each reference. Raises RecordError."""
    found: dict[str, Pinned] = {}
    for path in sorted(results.glob("images-*.json")):
        value = read_pinned(path)
        if value.engine == engine:
            found |= {image.image.reference: Pinned(image=image, file=path) for image in value.images.values()}
    return found


def keep_archives(file: str, storage: str, credentials: str | None = None) -> None:
    """Store again what FILE names and storage no longer has, if there is a FILE yet. Raises SlipwayError."""
    path = Path(file)
    if not path.exists():
        return
    value, own = read_pinned(path), None if credentials is None else Path(credentials)
    kept = {name: kept_image(Pinned(image=image, file=path), Path(storage), own) for name, image in value.images.items()}
    if kept != value.images:
        publish_json(path, dataclasses.replace(value, images=kept).to_json())


def kept_image(pinned: Pinned, storage: Path, credentials: Path | None) -> StudyImage:
    """Return the image, with its archive on storage. Raises ContainerError if the same image cannot be had, and what `archive` raises."""
    image, archive = pinned.image.image, pinned.image.archive
    for path in (Path(archive), storage / archiving.DIRECTORY / image.file_name):
        if archiving.is_there(image, path):
            return archived_image(image, path)
    problem = _problem_of_the_same(image, credentials)
    if problem:
        raise ContainerError(
            f"image {image.reference!r} of this study is pinned to {image.image_id}, its archive {archive} is not on storage any "
            f"more, and {problem}; put the archive and its .json back, or bring that image here{_how(image)}; to go on with another image, "
            f"remove {pinned.file} and the results that are to be made again"
        )
    logger.warning("the archive of image %r has gone from storage: the same image, %s, is archived again", image.reference, image.short)
    return archived_image(image, archiving.archive(image, storage))


def archived_image(image: PinnedImage, path: Path) -> StudyImage:
    """Return the image by the study's name of it: whoever archived it first may call it otherwise. Raises RecordError."""
    found = read_manifest(path)
    return StudyImage(archive=str(path), image=image, file=found.file, sha256=found.sha256, bytes=found.bytes)


def _problem_of_the_same(image: PinnedImage, credentials: Path | None) -> str:
    """Return why the image is not on this machine, "" if it is, or has been pulled from its registry by digest."""
    if image.engine not in STORES:
        return _problem_of_file(image)
    if commands.find(image.engine, image.image_id) is not None:
        return ""
    here = f"{image.engine} on this machine does not have that image"
    reference = pinning.by_digest(image)
    if reference is None:
        return f"{here}, which came from no registry"
    try:
        pinning.pin(reference, image.engine, pull="always", credentials=credentials)
    except (ConfigError, ContainerError) as error:
        return f"{here} ({error})"
    return "" if commands.find(image.engine, image.image_id) is not None else f"{here}, and {reference} is another by now"


def _problem_of_file(image: PinnedImage) -> str:
    try:
        found = pinning.pin_file(image.source, image.engine, pull="never", credentials=None, scratch=None).image_id
    except ContainerError as error:
        return str(error)
    return "" if found == image.image_id else f"{image.source} is another file by now"


def _how(image: PinnedImage) -> str:
    return f" (`{image.engine} load`)" if image.engine in STORES else f", as {image.source}"
