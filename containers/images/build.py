"""Build a framework's image on this machine: `make image [FRAMEWORK=pytorch] [ENGINE=docker] [BASE=IMAGE] [WHEELS=DIRECTORY]`.

Where a registry and a package index can be reached, the Dockerfile alone is enough. Where not, BASE names an image that is here, and the
packages come from WHEELS, a directory of wheels that is offered to the build on this machine's loopback, so that no layer holds it.
"""

import argparse
import functools
import http.server
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from base.errors import ConfigError, ContainerError, SlipwayError
from containers.engines import STORES
from containers.frameworks import framework_folders, load_framework

SLIPWAY: Final = "slipway"
FRAMEWORK: Final = "slipway.framework"
"""Labels of the images that we build."""


def build_argv(engine: str, framework: str, tag: str, base: str | None, wheels_url: str | None) -> list[str]:
    """Return the build command, on the host's network: clusters' nodes often have no bridge, and the wheels are offered on it."""
    arguments = {"BASE": base, "PIP": f"--no-index --find-links {wheels_url}" if wheels_url else None}
    given = [word for name, value in arguments.items() if value for word in ("--build-arg", f"{name}={value}")]
    labels = ["--label", f"{SLIPWAY}=image", "--label", f"{FRAMEWORK}={framework}"]
    return [engine, "build", "--network", "host", "--tag", tag, *labels, *given, str(load_framework(framework).folder)]


def build(engine: str, framework: str, tag: str | None = None, base: str | None = None, wheels: Path | None = None) -> str:
    """Build it, the engine's own words on standard error; the tag, by default the one in framework.yaml. Raises SlipwayError."""
    tag = tag or load_framework(framework).image
    if shutil.which(engine) is None:
        raise ContainerError(f"the image {tag!r} is to be built by {engine}, which is not on PATH; ENGINE={' or ENGINE='.join(STORES)}")
    if wheels is not None and not any(wheels.glob("*.whl")):
        raise ConfigError(f"WHEELS: found no *.whl in {str(wheels)!r}; `pip download` puts them there")
    with _offered(wheels) as url:
        argv = build_argv(engine, framework, tag, base, url)
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
    if done.returncode:
        raise ContainerError(
            f"{engine} build of {tag!r} ended with {done.returncode}, see above; without a registry or a package index: "
            "BASE=an image that is here, WHEELS=a directory of wheels"
        )
    return tag


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *words: Any) -> None:
        """Log nothing of what pip fetches."""


@contextmanager
def _offered(wheels: Path | None) -> Iterator[str | None]:
    """Serve the directory on the loopback, to whoever is on this machine, until the build ends."""
    if wheels is None:
        yield None
        return
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(wheels))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


def main() -> int:
    """Run the command line of `make image`."""
    parser = argparse.ArgumentParser(prog="python -m containers.images.build", description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=sorted(framework_folders()), nargs="?", default="pytorch")
    parser.add_argument("--engine", choices=list(STORES), default=next(iter(STORES)))
    parser.add_argument("--tag", help="instead of the one in framework.yaml")
    parser.add_argument("--base", help="build argument BASE of the Dockerfile")
    parser.add_argument("--wheels", type=Path, help="directory of wheels, instead of a package index")
    options = parser.parse_args()
    try:
        tag = build(options.engine, options.framework, options.tag, options.base, options.wheels)
    except SlipwayError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(f"{tag}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
