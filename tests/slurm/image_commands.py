"""`python -m tests.slurm.image_commands archive|load`: what the rule `image` and a node's stager do with one image, by hand."""

import argparse
import json
import sys
import time
from pathlib import Path

from base.errors import SlipwayError
from base.jsonfile import plain
from containers.images.archiving import archive
from containers.images.loading import image_to_start, load
from containers.images.model import read_manifest
from containers.images.pinning import pin


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=("archive", "load"))
    parser.add_argument("--engine", required=True)
    parser.add_argument("--reference")
    for name in ("credentials", "storage", "archive", "cache"):
        parser.add_argument(f"--{name}", type=Path)
    options = parser.parse_args()
    since = time.monotonic()
    try:
        if options.command == "archive":
            path = archive(pin(options.reference, options.engine, options.credentials), options.storage)
            answer = {"archive": str(path), **plain(read_manifest(path))}
        else:
            image_id = load(options.archive, options.engine, options.cache)
            answer = {"image_id": image_id, "start": image_to_start(read_manifest(options.archive), options.engine, options.cache)}
    except SlipwayError as error:
        sys.stdout.write(json.dumps({"error": [type(error).__name__, str(error)]}))
        return error.exit_code
    sys.stdout.write(json.dumps({**answer, "seconds": time.monotonic() - since}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
