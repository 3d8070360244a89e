"""The interpreter that a framework has to itself where no container is used: frameworks need different versions of the same packages.

A folder with a `requirements.txt` has one: a virtual environment below that of Slipway, which `make framework NAME=...` builds. PyTorch has
none: it is installed beside Slipway.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import Final

from base.errors import ConfigError, SlipwayError
from base.publish import publish, remove_tree
from containers.frameworks import FRAMEWORKS, load_framework
from containers.frameworks.spec import FrameworkSpec

PINS: Final = "requirements.txt"
"""In the folder: what is installed. In the environment: what was installed, written when all of it is there."""


def place_of(name: str) -> Path:
    """Where the environment of a framework lies. Compute nodes see it where they see Slipway's own."""
    return Path(sys.prefix, "frameworks", name)


def own_python(spec: FrameworkSpec) -> str | None:
    """The interpreter that the bare engine starts; None: Slipway's own."""
    return str(place_of(spec.name) / "bin" / "python") if (spec.folder / PINS).is_file() else None


def what_is_missing(spec: FrameworkSpec) -> str | None:
    """Why the bare engine cannot run it here, and what to do; None: it can."""
    if own_python(spec) is None:
        return None
    place = place_of(spec.name)
    advice = f"`make framework NAME={spec.name}` installs it, or choose an engine with containers"
    if not (place / PINS).is_file():
        return f"framework {spec.name!r} has no environment in {place}: {advice}"
    if (place / PINS).read_bytes() != (spec.folder / PINS).read_bytes():
        return f"the environment of framework {spec.name!r} in {place} has other versions than {spec.folder / PINS}: {advice}"
    return None


def build(spec: FrameworkSpec) -> Path:
    """Make its environment anew, with pip's own words; the place. Raises ConfigError."""
    pins, place = spec.folder / PINS, place_of(spec.name)
    if not pins.is_file():
        raise ConfigError(f"framework {spec.name!r} has no environment of its own: it is installed beside Slipway")
    if place.exists():
        remove_tree(place)
    place.parent.mkdir(exist_ok=True)
    install = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--require-hashes", "-r", str(pins)]
    for argv in ([sys.executable, "-m", "venv", str(place)], install):
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
        if done.returncode:
            raise ConfigError(f"{' '.join(argv)} ended with {done.returncode}, see above")
    publish(place / PINS, pins.read_bytes())
    return place


def main() -> int:
    """The command line of `make framework`."""
    own = sorted(name for name, folder in FRAMEWORKS.items() if (folder / PINS).is_file())
    parser = argparse.ArgumentParser(prog="python -m containers.frameworks.environment", description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=own)
    try:
        place = build(load_framework(parser.parse_args().framework))
    except SlipwayError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write(f"{place}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
