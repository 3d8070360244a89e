"""A framework's environment from the pins of its folder: venv, then pip."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from base.errors import ConfigError
from base.publish import remove_tree
from containers.frameworks.interpreters import find_interpreter
from containers.frameworks.spec import FrameworkSpec
from containers.models import build

PIP: Final = Path(__file__).resolve().parent / "pip.txt"
SOURCE_OF_MPI: Final = re.compile(r"^mpi4py==3\.", re.MULTILINE)
"""Versions of mpi4py for which the package index has no wheel."""
LIBRARY: Final = Path(__file__).resolve().parent.parent / "lib"
INSTALL: Final = "slipway_install.py"
"""In a folder that wants more than packages: a program for the new environment, which finds the layers of a LeNet on its standard input."""


def install_by_pip(spec: FrameworkSpec, pins: Path, place: Path, interpreter: str | None) -> None:
    """Make `place` anew. Where the framework needs another Python, `interpreter` is where that one is; None: it is looked for. What is
    built from source there is built with the setuptools that PIP pins, not with the newest one of the index, which nobody has tried.
    Raises ConfigError."""
    if SOURCE_OF_MPI.search(pins.read_text(encoding="utf-8")):
        _refuse_missing_header(spec.name)
    python, install, options = sys.executable, [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install"], []
    before = []
    if spec.python_version is not None:
        python = find_interpreter(spec.name, spec.python_version, interpreter, os.environ)
        before = [[*install, "--require-hashes", "-r", str(PIP)]]
        options = ["--no-build-isolation"]
    if place.exists():
        remove_tree(place)
    for argv in ([python, "-m", "venv", str(place)], *before, [*install, *options, "--require-hashes", "-r", str(pins)]):
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, check=False)
        if done.returncode:
            raise ConfigError(
                f"{' '.join(argv)} ended with {done.returncode}, see above. Where it says that a compiler, a header (mpi.h) or a library "
                "is missing: docs/installing.md names the system packages that frameworks are built with"
            )
    if (spec.folder / INSTALL).is_file():
        _install_more([str(place / "bin" / "python"), str(spec.folder / INSTALL)])


def _refuse_missing_header(name: str) -> None:
    """Raise ConfigError where mpi4py could not be compiled, before anything is fetched."""
    try:
        found = (
            subprocess.run(["mpicc", "-E", "-include", "mpi.h", "-x", "c", os.devnull], capture_output=True, check=False).returncode == 0
        )
    except OSError:
        found = False
    if not found:
        raise ConfigError(
            f"framework {name!r} is built with mpi4py from its sources, and there is no `mpicc` on the PATH that finds mpi.h: install the "
            "headers of Open MPI first (Debian: libopenmpi-dev; on a cluster often `module load openmpi`)"
        )


def _install_more(argv: list[str]) -> None:
    layers = json.dumps(build("lenet", 1, (28, 28), 10).layers)
    env = {**os.environ, "PYTHONPATH": str(LIBRARY)}
    done = subprocess.run(argv, input=layers, text=True, env=env, stdout=sys.stderr, check=False)
    if done.returncode:
        raise ConfigError(
            f"{' '.join(argv)} ended with {done.returncode}, see above; docs/installing.md names the system packages it wants"
        )
