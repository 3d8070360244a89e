"""Pin the study's images, on the login node: `python -m workflow.run.images.pin --results DIR --output FILE`.

Each framework's image is pinned to what its tag means now, looked into, and archived on storage once. FILE: {"engine", "images":
{framework: {"archive", "image": {...}, "sha256", "bytes"}}}. Its name is made from what it is about, and it is written once per study: the
tag may move then, the study does not, and what an earlier FILE of the study says of a reference holds for the next. On the nodes
`load_argv` is the command that brings an image in.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from base.errors import SlipwayError, StorageError
from base.humanize import format_size
from base.jsonfile import canonical_json, publish_json
from base.logs import configure, private_umask
from containers.engines import in_container
from containers.images import archiving, pinning
from containers.images.model import StudyImage
from workflow.run.images.kept import Pinned, PinnedImages, archived_image, kept_image, pinned_before
from workflow.run.plan import at_site
from workflow.study.cell import Cell
from workflow.study.site import Site, device_of

logger = logging.getLogger(__name__)


def references(site: Site, cells: Iterable[Cell]) -> dict[str, tuple[str, str]]:
    """Return (reference, interpreter) by framework of these cells: the site's own image, or the one in framework.yaml."""
    from workflow.run.plan import describe_framework

    found = {}
    for cell in cells:
        if cell.framework not in found:
            framework = at_site(describe_framework(cell, device_of(cell.device, site)), site)
            found[cell.framework] = (framework.image or "", framework.python or "python3")
    return found


def file_name(engine: str, wanted: Mapping[str, tuple[str, str]]) -> str:
    """Name FILE by engine and `references`. Another engine, framework or reference is another file, which finished runs never see."""
    return f"images-{hashlib.sha256(canonical_json([engine, wanted])).hexdigest()[:12]}.json"


def prepare(site: Site, cells: Iterable[Cell], credentials: Path | None = None, before: Mapping[str, Pinned] | None = None) -> PinnedImages:
    """Fetch, check and archive what the cells need and `before` (`pinned_before`) does not have. Raises SlipwayError."""
    images: dict[str, StudyImage] = {}
    if in_container(site.engine):
        for framework, (reference, python) in references(site, cells).items():
            if before and reference in before:
                images[framework] = kept_image(before[reference], site.storage, credentials)
                continue
            image = pinning.pin(reference, site.engine, credentials=credentials)
            pinning.check_contract(image, python)
            found = images[framework] = archived_image(image, archiving.archive(image, site.storage))
            logger.info("%s: %s is %s, %s on storage", framework, reference, image.image_id, format_size(found.bytes))
    return PinnedImages(engine=site.engine, images=images)


def load_argv(
    python: str, archive: str, engine: str, cache: str, *, may_pull: bool = False, credentials: str | None = None
) -> tuple[str, ...]:
    """Return the command that loads an image on a node. It asks for the archive if the image is not there, and prints {"image_id", "start"}
    or {"error": [class, message]} in the end."""
    argv = (python, "-P", "-m", "containers.images", "load", "--brought", "--engine", engine, "--archive", archive, "--cache", cache)
    if not may_pull:
        return argv
    return (*argv, "--may-pull", *(() if credentials is None else ("--credentials", credentials)))


def pin_study(results: Path, output: Path, credentials: Path | None = None) -> None:
    """Write FILE. `credentials`: by default those of the site. Raises SlipwayError."""
    from workflow.study.publishing import read_resolved

    study = read_resolved(results)
    private_umask(study.site.shared == "group")
    before = pinned_before(results, study.site.engine)
    try:
        publish_json(output, prepare(study.site, study.cells, credentials or study.site.registry_credentials, before).to_json())
    except OSError as error:
        raise StorageError(f"pin the images of the study: {error.strerror or error}: {error.filename or output}") from error


def main() -> int:
    """Run the command of the rule, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m workflow.run.images.pin", description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--credentials", type=Path, help="the user's own file for private registries; default: the site's")
    options = parser.parse_args()
    configure("image")
    try:
        pin_study(options.results, options.output, options.credentials)
    except SlipwayError as error:
        logger.error("%s", error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
