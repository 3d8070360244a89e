"""The study's images, on the login node: `python -m workflow.run.images.pin --results DIR --output FILE`, the command of the rule `image`.

Each framework's image is pinned to what its tag means now, looked into, and archived on storage once. FILE: {"engine", "images":
{framework: {"archive", "image": {...}, "sha256", "bytes"}}}. Its name is made from what it is about, and it is written once per study: the
tag may move then, the study does not, and what an earlier FILE of the study says of a reference holds for the next. On the nodes
`load_argv` is the command that brings an image in.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from base.errors import ContainerError, SlipwayError, StorageError
from base.jsonfile import canonical_json, publish_json
from base.logs import configure, private_umask
from base.units import format_size
from containers.engines import in_container
from containers.images import archiving, checking, model, pinning
from workflow.run.images.kept import kept_entry, pinned_before, read_pinned
from workflow.run.plan import at_site

logger = logging.getLogger(__name__)


def references(content: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Framework -> (reference, interpreter) of all cells of a study.json: the site's own image, or the one in framework.yaml."""
    from workflow.run.framework import describe_framework

    site, found = content["site"], {}
    for cell in content["cells"]:
        if cell["framework"] not in found:
            device = site["device"] if cell["device"] == "site" else cell["device"]
            framework = at_site(describe_framework(cell, device), site)
            found[cell["framework"]] = (framework.image or "", framework.python or "python3")
    return found


def file_name(engine: str, wanted: Mapping[str, tuple[str, str]]) -> str:
    """Pure: of FILE, from `references`. Another engine, framework or reference is another file, which runs that are done never see."""
    return f"images-{hashlib.sha256(canonical_json([engine, wanted])).hexdigest()[:12]}.json"


def prepare(content: Mapping[str, Any], credentials: Path | None = None, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Pin, look into and archive what the study's cells need and `before` (`pinned_before`) does not say; nothing without containers.
    Raises SlipwayError."""
    site = content["site"]
    engine, storage, images = site["engine"], Path(site["storage"]), {}
    if in_container(engine):
        for framework, (reference, python) in references(content).items():
            if before and reference in before:
                images[framework] = kept_entry(before[reference], storage, credentials)
                continue
            image = pinning.pin(reference, engine, credentials=credentials)
            checking.check_contract(image, python)
            path = archiving.archive(image, storage)
            entry = dataclasses.replace(model.read_manifest(path), image=image)  # another study may have archived it, under its own name
            logger.info("%s: %s is %s, %s on storage", framework, reference, image.image_id, format_size(entry.bytes))
            images[framework] = {"archive": str(path), **entry.to_json()}
    return {"engine": engine, "images": images}


def load_argv(
    python: str, archive: str, engine: str, cache: str, *, may_pull: bool = False, credentials: str | None = None
) -> tuple[str, ...]:
    """Pure: what a node runs before its container starts; it asks for the archive where the image is not there, and prints
    {"image_id", "start"} or {"error": [class, message]} in the end."""
    argv = (python, "-P", "-m", "containers.images", "load", "--brought", "--engine", engine, "--archive", archive, "--cache", cache)
    if not may_pull:
        return argv
    return (*argv, "--may-pull", *(() if credentials is None else ("--credentials", credentials)))


def read_entry(file: str, engine: str, framework: str) -> dict[str, Any]:
    """What FILE says of a framework's image. Raises ContainerError, RecordError."""
    value = read_pinned(Path(file))
    entry: dict[str, Any] | None = value["images"].get(framework) if value["engine"] == engine else None
    if entry is None:
        raise ContainerError(f"{file} names no image of {framework!r} for engine {engine}; remove it, and snakemake writes it again")
    return entry


def check_nodes(entry: Mapping[str, Any], loaded: Mapping[str, str]) -> None:
    """Pure: before training starts, every node (name -> id) has what FILE says for its framework. Raises ContainerError."""
    model.check_same(model.pinned_image(entry["image"]), loaded)


def pin_study(results: Path, output: Path, credentials: Path | None = None) -> None:
    """Write FILE. `credentials`: by default those of the site. Raises SlipwayError."""
    from workflow.study.resolved import read_resolved

    content = read_resolved(results)
    private_umask(content["site"]["shared"] == "group")
    own = credentials or content["site"].get("registry_credentials")
    before = pinned_before(results, content["site"]["engine"])
    try:
        publish_json(output, prepare(content, Path(own) if own else None, before))
    except OSError as error:
        raise StorageError(f"pin the images of the study: {error.strerror or error}: {error.filename or output}") from error


def main() -> int:
    """The command of the rule; the exit code of the error's class."""
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
