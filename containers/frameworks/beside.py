"""An environment that finds PyTorch, and what else is beside Slipway, behind packages of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from base.errors import ConfigError
from base.publish import remove_tree

NOTE: Final = "slipway-beside.pth"


def make_venv(place: Path) -> list[str]:
    """Make `place` anew, empty; its pip. Raises ConfigError."""
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


def install_beside(pins: Path, place: Path) -> None:
    """Make `place` anew with the packages of `pins`. Raises ConfigError."""
    pip = make_venv(place)
    run([*pip, "install", "--require-hashes", "-r", str(pins)])
    let_see(place)  # last: pip would leave out what is beside Slipway already


def run(argv: list[str], env: Mapping[str, str] | None = None, advice: str = "") -> None:
    """With its words on standard error. Raises ConfigError."""
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=env, check=False)
    if done.returncode:
        raise ConfigError(f"{' '.join(argv)} ended with {done.returncode}, see above{advice}")
