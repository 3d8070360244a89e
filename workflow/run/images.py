"""Pin the container images of a study once, on the login node: `python -m workflow.run.images --results DIR --output FILE`.

Each framework's image is pinned to what its tag means now, and archived on storage once. FILE: {"engine", "images":
{framework: {"archive", "image": {...}, "sha256", "bytes"}}}. Its name is made from what it is about, and it is written once per study: the
tag may move then, the study does not, and what an earlier FILE of the study says of a reference holds for the next.
"""

import argparse
import dataclasses
import hashlib
import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from base import humanize, jsonfile, logs, typed
from base.errors import ContainerError, RecordError, SlipwayError, StorageError
from containers.engines import in_container
from containers.images import archiving, pinning
from containers.images.model import PinnedImage, StudyImage, read_manifest
from workflow.run.plan import at_site, describe_framework
from workflow.study.cell import Cell
from workflow.study.site import Site, device_of

# What a study's images were pinned to: if an archive has gone from storage, nothing starts. A study never gets another image.


logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class PinnedImages:
    """The content of FILE: what the frameworks' images of a study were pinned to."""

    engine: str
    images: Mapping[str, StudyImage]
    """Images by framework."""


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """An image that was pinned before, and the file that says so."""

    image: StudyImage
    file: Path


def read_pinned(path: Path) -> PinnedImages:
    """Read a file of pinned images. Raises RecordError."""
    return typed.read_as(
        PinnedImages, jsonfile.read_json(path), f"{path} does not say what images were pinned to", RecordError, "it was edited; undo that"
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


def check_archives(file: str, storage: str) -> None:
    """Check that the archives of FILE are on storage, and note where they lie now. Nothing is to be done where there is no FILE yet.
    Raises ContainerError, RecordError."""
    path = Path(file)
    if not path.exists():
        return
    value = read_pinned(path)
    found = {name: image_on_storage(Pinned(image=image, file=path), Path(storage)) for name, image in value.images.items()}
    if found != value.images:
        jsonfile.publish_json(path, dataclasses.replace(value, images=found))


def image_on_storage(pinned: Pinned, storage: Path) -> StudyImage:
    """Return the image with the place of its archive, which is another where the storage was moved. Raises ContainerError where it has
    gone."""
    image, archive = pinned.image.image, pinned.image.archive
    for path in (Path(archive), storage / archiving.DIRECTORY / image.file_name):
        if archiving.is_there(image, path):
            return archived_image(image, path)
    raise ContainerError(
        f"image {image.reference!r} of this study is pinned to {image.image_id}, and its archive {archive} is not on storage any more; put "
        f"the archive and its .json back; to go on with another image, remove {pinned.file} and the results that are to be made again"
    )


def archived_image(image: PinnedImage, path: Path) -> StudyImage:
    """Return the image by the study's name of it: whoever archived it first may call it otherwise. Raises RecordError."""
    found = read_manifest(path)
    return StudyImage(archive=str(path), image=image, file=found.file, sha256=found.sha256, bytes=found.bytes)


# Pinning on the login node, and the command that brings an image in on a node.


def references(site: Site, cells: Iterable[Cell]) -> dict[str, tuple[str, str]]:
    """Return (reference, interpreter) by framework of these cells: the site's own image, or the one in framework.yaml."""
    found = {}
    for cell in cells:
        if cell.framework not in found:
            framework = at_site(describe_framework(cell, device_of(cell.device, site)), site)
            found[cell.framework] = (framework.image or "", framework.python or "python3")
    return found


def file_name(engine: str, wanted: Mapping[str, tuple[str, str]]) -> str:
    """Name FILE by engine and `references`. Another engine, framework or reference is another file, which finished runs never see."""
    return f"images-{hashlib.sha256(jsonfile.canonical_json([engine, wanted])).hexdigest()[:12]}.json"


def prepare(site: Site, cells: Iterable[Cell], credentials: Path | None = None, before: Mapping[str, Pinned] | None = None) -> PinnedImages:
    """Fetch and archive what the cells need and `before` (`pinned_before`) does not have. Raises SlipwayError."""
    images: dict[str, StudyImage] = {}
    if in_container(site.engine):
        for framework, (reference, _) in references(site, cells).items():
            if before and reference in before:
                images[framework] = image_on_storage(before[reference], site.storage)
                continue
            image = pinning.pin(reference, site.engine, credentials=credentials)
            found = images[framework] = archived_image(image, archiving.archive(image, site.storage))
            logger.info("%s: %s is %s, %s on storage", framework, reference, image.image_id, humanize.format_size(found.bytes))
    return PinnedImages(engine=site.engine, images=images)


def load_argv(python: str, archive: str, engine: str, cache: str) -> tuple[str, ...]:
    """Return the command that loads an image on a node. It asks for the archive if the image is not there, and prints a WorkLine of
    node/child.py with the result or the error in the end."""
    return (python, "-P", "-m", "containers.images", "--engine", engine, "--archive", archive, "--cache", cache)


def pin_study(results: Path, output: Path, credentials: Path | None = None) -> None:
    """Write FILE. `credentials`: by default those of the site. Raises SlipwayError."""
    from workflow.study.publishing import read_resolved

    study = read_resolved(results)
    logs.private_umask(study.site.shared == "group")
    before = pinned_before(results, study.site.engine)
    try:
        jsonfile.publish_json(output, prepare(study.site, study.cells, credentials or study.site.registry_credentials, before))
    except OSError as error:
        raise StorageError(f"pin the images of the study: {error.strerror or error}: {error.filename or output}") from error


def main() -> int:
    """Run the command of the rule, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m workflow.run.images", description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--credentials", type=Path, help="the user's own file for private registries; default: the site's")
    options = parser.parse_args()
    logs.configure("image")
    try:
        pin_study(options.results, options.output, options.credentials)
    except SlipwayError as error:
        logger.error("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
