"""Make environments by pip, with Slipway's Python: of pinned packages alone, or with PyTorch, which is beside Slipway, behind them."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from base.errors import ConfigError
from base.publish import remove_tree

NOTE: Final = "slipway-beside.pth"


def make_venv(place: Path) -> list[str]:
    """Make `place` anew, empty, and return its pip. Raises ConfigError."""
    if place.exists():
        remove_tree(place)
    run([sys.executable, "-m", "venv", str(place)])
    return [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]


def link_pytorch(place: Path) -> None:
    """Let the environment in `place` find PyTorch, which may be that of another Python. Raises ConfigError."""
    found = find_spec("torch")
    if found is None or found.origin is None:
        raise ConfigError(f"{sys.executable} has no PyTorch, which the environment in {place} would use: `make install` installs it")
    directories = dict.fromkeys((sysconfig.get_path("purelib"), str(Path(found.origin).parents[1])))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (place / "lib" / version / "site-packages" / NOTE).write_text("".join(f"{directory}\n" for directory in directories))


def install_isolated(pins: Path, place: Path) -> None:
    """Make `place` anew with the packages of `pins`. Raises ConfigError."""
    run([*make_venv(place), "install", "--require-hashes", "-r", str(pins)])


def install_with_pytorch(pins: Path, place: Path) -> None:
    """Make `place` anew with the packages of `pins`, and let it see PyTorch. Raises ConfigError."""
    install_isolated(pins, place)
    link_pytorch(place)  # last: pip would leave out what is beside Slipway already


def run(argv: list[str], env: Mapping[str, str] | None = None, advice: str = "") -> None:
    """Run a command with its output on standard error. Raises ConfigError."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=env, check=False)
    if done.returncode:
        raise ConfigError(f"{' '.join(argv)} ended with {done.returncode}, see above{advice}")


# The environment of `strategy: horovod`, built from the sources of Horovod, whose last release is older than the PyTorch of today.


TOOLS: Final = "horovod-tools.txt"
COMPILED: Final = "; Horovod is built by a C++ compiler and make (build-essential)"
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
    link_pytorch(place)
    run([*pip, "install", "--require-hashes", "-r", str(pins.parent / TOOLS)], advice=COMPILED)
    with tempfile.TemporaryDirectory() as directory:
        options = ["--no-binary", "horovod", "--no-build-isolation", "--require-hashes", "--no-deps", "-r", str(pins)]
        run([*pip, "download", "--dest", directory, *options], advice=COMPILED)
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
        run(
            [*pip, "install", "--no-deps", "--no-index", "--find-links", directory, *map(str, Path(directory).glob("*.whl"))],
            advice=COMPILED,
        )
        variables = {**os.environ, **WITH, "PATH": f"{place / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
        run([*pip, "install", "--no-deps", "--no-build-isolation", str(source)], variables, COMPILED)
