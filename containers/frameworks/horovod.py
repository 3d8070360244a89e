"""The environment of `strategy: horovod`, built from the sources of Horovod, whose last release is older than the PyTorch of today.

It is a virtual environment that finds PyTorch, and what else is beside Slipway, by a path file. Its own are Horovod and the older tools
that it is built with.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from base.errors import ConfigError
from containers.frameworks.beside import let_see, make_venv, run

TOOLS: Final = "horovod-tools.txt"
WITH: Final = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITHOUT_MPI": "1",
}
STANDARD: Final = ("set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)")
"""What Horovod says, and what the headers of PyTorch want."""
OLD_STANDARD: Final = ("CMakeLists.txt", "horovod/torch/CMakeLists.txt")


def install_horovod(pins: Path, place: Path) -> None:
    """Make `place` anew: minutes of a compiler. Raises ConfigError."""
    pip = make_venv(place)
    let_see(place)
    _run([*pip, "install", "--require-hashes", "-r", str(pins.parent / TOOLS)])
    with tempfile.TemporaryDirectory() as directory:
        options = ["--no-binary", "horovod", "--no-build-isolation", "--require-hashes", "--no-deps", "-r", str(pins)]
        _run([*pip, "download", "--dest", directory, *options])
        (archive,) = Path(directory).glob("horovod-*.tar.gz")
        with tarfile.open(archive) as file:
            file.extractall(directory, filter="data")
        archive.unlink()
        (source,) = Path(directory).glob("horovod-*")
        for name in OLD_STANDARD:
            text = (source / name).read_text()
            if text.count(STANDARD[0]) != 1:
                raise ConfigError(f"{name} of Horovod: expected one {STANDARD[0]}: the pins in {pins} name another version than was tried")
            (source / name).write_text(text.replace(*STANDARD))
        _run([*pip, "install", "--no-deps", "--no-index", "--find-links", directory, *map(str, Path(directory).glob("*.whl"))])
        variables = {**os.environ, **WITH, "PATH": f"{place / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        _run([*pip, "install", "--no-deps", "--no-build-isolation", str(source)], variables)


def _run(argv: list[str], env: Mapping[str, str] | None = None) -> None:
    run(argv, env, "; Horovod is built by a C++ compiler and make (build-essential)")
