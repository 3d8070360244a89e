"""Keep the archive of a study's image on storage: if it has gone, the same image is archived again, or nothing starts. A study never gets
another image."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypedDict

from base.errors import ConfigError, ContainerError, RecordError, StorageError
from base.jsonfile import publish_json, read_json
from base.typed import Like, PathText, read_as
from containers.engines import STORES
from containers.images import apptainer, archiving, commands, pinning
from containers.images.model import PinnedImage, pinned_image, read_manifest

logger = logging.getLogger(__name__)


class _Entry(TypedDict):
    archive: PathText
    image: Annotated[dict[str, Any], Like(PinnedImage)]


class _Pinned(TypedDict):
    engine: str
    images: dict[str, Annotated[dict[str, Any], Like(_Entry)]]


def read_pinned(path: Path) -> dict[str, Any]:
    """{"engine", "images"} of one file of workflow.run.images.pin. Raises RecordError."""
    found = read_as(_Pinned, read_json(path), f"{path} does not say what images were pinned to", RecordError, "it was edited; undo that")
    return {"engine": found["engine"], "images": found["images"]}


def pinned_before(results: Path, engine: str) -> dict[str, dict[str, Any]]:
    """Reference -> what earlier files of the study say of it. Raises RecordError."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(results.glob("images-*.json")):
        value = read_pinned(path)
        if value["engine"] == engine:
            found |= {entry["image"]["reference"]: {**entry, "said_in": str(path)} for entry in value["images"].values()}
    return found


def keep_archives(file: Path, storage: Path, credentials: Path | None = None) -> None:
    """Archive again what FILE names and storage has not any more; nothing where there is no FILE yet. Raises SlipwayError."""
    if not file.exists():
        return
    value = read_pinned(file)
    kept = {name: kept_entry({**entry, "said_in": str(file)}, storage, credentials) for name, entry in value["images"].items()}
    if kept != value["images"]:
        publish_json(file, {**value, "images": kept})


def kept_entry(entry: Mapping[str, Any], storage: Path, credentials: Path | None) -> dict[str, Any]:
    """The entry, its archive on storage. Raises ContainerError where the same image cannot be had, and what `archive` raises."""
    image = pinned_image(entry["image"])
    for path in (Path(entry["archive"]), storage / archiving.DIRECTORY / image.file_name):
        if archiving.is_there(image, path):
            _list_chunks(path)
            return _entry(image, path)
    problem = _problem_of_the_same(image, credentials)
    if problem:
        raise ContainerError(
            f"image {image.reference!r} of this study is pinned to {image.image_id}, its archive {entry['archive']} is not on storage any "
            f"more, and {problem}; put the archive and its .json back, or bring that image here{_how(image)}; to go on with another image, "
            f"remove {entry['said_in']} and the results that are to be made again"
        )
    logger.warning("the archive of image %r has gone from storage: the same image, %s, is archived again", image.reference, image.short)
    return _entry(image, archiving.archive(image, storage))


def _list_chunks(archive: Path) -> None:
    try:
        archiving.list_chunks(archive)
    except OSError as error:
        raise StorageError(f"the list of chunks of {archive} cannot be made: {error.strerror}: {error.filename or archive}") from error


def _entry(image: PinnedImage, path: Path) -> dict[str, Any]:
    """With what the study calls the image: whoever archived it first may call it otherwise."""
    return {"archive": str(path), **dataclasses.replace(read_manifest(path), image=image).to_json()}


def _problem_of_the_same(image: PinnedImage, credentials: Path | None) -> str:
    """Why it is not on this machine; "" where it is, or has come from its registry by digest."""
    if image.engine not in STORES:
        return _problem_of_sif(image)
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


def _problem_of_sif(image: PinnedImage) -> str:
    try:
        found = apptainer.pin(image.source, pull="never", credentials=None, scratch=None).image_id
    except ContainerError as error:
        return str(error)
    return "" if found == image.image_id else f"{image.source} is another file by now"


def _how(image: PinnedImage) -> str:
    return f" (`{image.engine} load`)" if image.engine in STORES else f", as {image.source}"
