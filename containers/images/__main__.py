"""`python -m containers.images`: load an archived image on this node, unless it is there. The last line on standard output is
{"result": {"image_id", "start", "seconds"}}, or {"error": [class, message]} with the class's exit code. A process of its own, since storage
and daemons may hang.
"""

import argparse
import json
import logging
import sys
import time
from pathlib import Path

from base.errors import ContainerError, SlipwayError
from base.logs import configure
from containers.images.loading import Bringing, image_to_start, load, loaded_id
from containers.images.model import read_manifest


def loaded(engine: str, archive: Path, cache: Path) -> dict[str, str]:
    """Return `image_id` as it is on this node then, `start`: what the engine is given."""
    load(archive, engine, cache, bringing=Bringing(wait=lambda: _say(waiting=True), bring=_ask))
    entry = read_manifest(archive)
    return {"image_id": loaded_id(entry, engine, cache), "start": image_to_start(entry, engine, cache)}


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
    parser = argparse.ArgumentParser(prog="python -m containers.images", description=__doc__.splitlines()[0])
    parser.add_argument("--engine", required=True)
    parser.add_argument("--archive", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    options = parser.parse_args()
    configure("images")
    logging.captureWarnings(True)
    since = time.monotonic()
    try:
        answer = loaded(options.engine, options.archive, options.cache)
    except SlipwayError as error:
        return _failed(error)
    except OSError as error:
        return _failed(ContainerError(f"load the image: {error.strerror or error}: {error.filename or 'no file is named'}"))
    _say(result={**answer, "seconds": round(time.monotonic() - since, 3)})
    return 0


def _failed(error: SlipwayError) -> int:
    _say(error=[type(error).__name__, str(error)])
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
