"""`python -m containers.images archive|load|loaded`: one image, once on storage or on this node. The last line on standard output is a
JSON object: what was done, or {"error": [class, message]} with the class's exit code. A process of its own, since storage and daemons may
hang.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path

from base.errors import ContainerError, SlipwayError
from base.jsonfile import plain
from base.logs import configure
from containers.images.archiving import archive
from containers.images.loading import Bringing, image_to_start, load, loaded_id
from containers.images.model import read_manifest
from containers.images.pinning import pin

logger = logging.getLogger(__name__)


def _parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m containers.images", description=__doc__.splitlines()[0])
    commands = top.add_subparsers(dest="command", required=True)
    engine = argparse.ArgumentParser(add_help=False)
    engine.add_argument("--engine", required=True)
    archiving = commands.add_parser("archive", parents=[engine], help="pin a reference and archive what it is now")
    archiving.add_argument("--reference", required=True)
    archiving.add_argument("--credentials", type=Path, help="the user's own file for private registries")
    archiving.add_argument("--storage", type=Path, required=True)
    archiving.add_argument("--pull", choices=("missing", "always", "never"), default="missing")
    archiving.add_argument("--again", action="store_true", help="write the archive anew, also where it is there")
    archiving.add_argument("--scratch", type=Path, help="where an image that is a file is made")
    for name, text in (("load", "load an archive on this node, unless it is there"), ("loaded", "what this node would start")):
        loading = commands.add_parser(name, parents=[engine], help=text)
        loading.add_argument("--archive", type=Path, required=True)
        loading.add_argument("--cache", type=Path, required=True)
        loading.set_defaults(brought=False)
        if name == "load":
            loading.add_argument("--brought", action="store_true", help="whoever started this brings the archive here when asked")
    return top


def archived(options: argparse.Namespace) -> dict[str, object]:
    """Pin an image, and archive it."""
    image = pin(options.reference, options.engine, pull=options.pull, credentials=options.credentials, scratch=options.scratch)
    path = archive(image, options.storage, again=options.again)
    return {"archive": str(path), **plain(read_manifest(path))}


def loaded(options: argparse.Namespace) -> dict[str, str]:
    """Return `image_id` as it is on this node now, `start`: what the engine is given."""
    entry = read_manifest(options.archive)
    if options.command == "load":
        bringing = Bringing(wait=lambda: _say(waiting=True), bring=_ask) if options.brought else None
        load(options.archive, options.engine, options.cache, bringing=bringing)
    found = loaded_id(entry, options.engine, options.cache)
    return {"image_id": found, "start": image_to_start(entry, options.engine, options.cache)}


def _ask(num_bytes: int) -> Path:
    """Ask where the archive was put by whoever started us. Raises ContainerError when it has gone."""
    _say(wants=num_bytes)
    line = sys.stdin.readline()
    if not line:
        raise ContainerError("the node program that asked for the image has gone")
    return Path(json.loads(line)["archive"])


def _say(**words: object) -> None:
    sys.stdout.write(json.dumps(words, sort_keys=True) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Return the exit code."""
    options = _parser().parse_args()
    configure("images")
    logging.captureWarnings(True)
    since = time.monotonic()
    try:
        answer = archived(options) if options.command == "archive" else loaded(options)
    except SlipwayError as error:
        return _failed(error)
    except OSError as error:
        return _failed(ContainerError(f"{options.command} the image: {error.strerror or error}: {error.filename or 'no file is named'}"))
    _say(**answer, seconds=round(time.monotonic() - since, 3))
    return 0


def _failed(error: SlipwayError) -> int:
    _say(error=[type(error).__name__, str(error)])
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
