"""Make environments by pip, with Slipway's Python: of pinned packages alone, or with PyTorch, which is beside Slipway, behind them."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from base.errors import ConfigError
from base.removing import remove_tree

NOTE: Final = "slipway-beside.pth"


def make_venv(place: Path) -> list[str]:
    """Make `place` anew, empty, and return its pip. Raises ConfigError."""
    if place.exists():
        remove_tree(place)
    run([sys.executable, "-m", "venv", str(place)])
    return [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]


def let_see(place: Path) -> None:
    """Let the environment in `place` find PyTorch, which may be that of another Python. Raises ConfigError."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise ConfigError(f"{sys.executable} has no PyTorch, which the environment in {place} would use: `make install` installs it")
    directories = dict.fromkeys((sysconfig.get_path("purelib"), str(Path(found.origin).parents[1])))
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (place / "lib" / version / "site-packages" / NOTE).write_text("".join(f"{directory}\n" for directory in directories))


def install_alone(pins: Path, place: Path) -> None:
    """Make `place` anew with the packages of `pins`. Raises ConfigError."""
    run([*make_venv(place), "install", "--require-hashes", "-r", str(pins)])


def install_beside(pins: Path, place: Path) -> None:
    """Make `place` anew with the packages of `pins`, and let it see PyTorch. Raises ConfigError."""
    install_alone(pins, place)
    let_see(place)  # last: pip would leave out what is beside Slipway already


def run(argv: list[str], env: Mapping[str, str] | None = None, advice: str = "") -> None:
    """Run a command with its output on standard error. Raises ConfigError."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=env, check=False)
    if done.returncode:
        raise ConfigError(f"{' '.join(argv)} ended with {done.returncode}, see above{advice}")
