"""A framework's environment from the pins of its folder: venv, then pip."""

from __future__ import annotations

import json
import os
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
LIBRARY: Final = Path(__file__).resolve().parent.parent / "lib"
INSTALL: Final = "slipway_install.py"
"""In a folder that wants more than packages: a program for the new environment, which finds the layers of a LeNet on its standard input."""


def install_by_pip(spec: FrameworkSpec, pins: Path, place: Path, interpreter: str | None) -> None:
    """Make `place` anew. Where the framework needs another Python, `interpreter` is where that one is; None: it is looked for. What is
    built from source there is built with the setuptools that PIP pins, not with the newest one of the index, which nobody has tried.
    Raises ConfigError."""
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


def _install_more(argv: list[str]) -> None:
    layers = json.dumps(build("lenet", 1, (28, 28), 10).layers)
    env = {**os.environ, "PYTHONPATH": str(LIBRARY)}
    done = subprocess.run(argv, input=layers, text=True, env=env, stdout=sys.stderr, check=False)
    if done.returncode:
        raise ConfigError(
            f"{' '.join(argv)} ended with {done.returncode}, see above; docs/installing.md names the system packages it wants"
        )
