"""Make an environment of its own for each foreign peer, from the package index and Debian's packages.

PyTorch is never fetched: each environment is linked to that of Slipway's .venv, as `make install` links one, and sees behind its own
packages what lies there.
"""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

from install.pytorch import PINS, pinned

ROOT: Final = Path(__file__).resolve().parents[2]
PLACE: Final = ROOT / ".slipway" / "peers"
CONSTRAINTS: Final = PLACE / "constraints.txt"
"""They make pip fail rather than fetch another PyTorch."""


class Recipe(NamedTuple):
    """How a peer is installed: its packages, the module that shows that it works, those that go before it, and what Debian has for it.

    `alone`: without what it asks for, where that is gigabytes, or a PyTorch of its own.
    """

    package: str
    module: str
    before: tuple[str, ...] = ()
    alone: bool = False
    debian: tuple[str, ...] = ()


PEERS: Final = {
    "ffcv": Recipe(
        "ffcv==1.0.2",
        "ffcv",
        before=(
            *("setuptools", "numba==0.68.1", "llvmlite", "terminaltables", "assertpy", "fastargs", "pytorch_pfn_extras"),
            *("opencv-python-headless", "tqdm"),
        ),
        alone=True,
        debian=("libopencv-dev", "libturbojpeg0-dev", "pkg-config", "g++"),
    ),
    "litdata": Recipe("litdata==0.2.76", "litdata"),
    "mds": Recipe(
        "mosaicml-streaming==0.13.0",
        "xxhash",
        before=("brotli", "python-snappy", "zstd", "xxhash", "catalogue", "tqdm"),
        alone=True,
    ),
    "webdataset": Recipe("webdataset==1.0.2", "webdataset"),
    "tensorpack": Recipe("tensorpack==0.11", "tensorpack.dataflow"),
}
TOOLS: Final = {"fio": "fio", "rsync": "rsync"}
"""A program -> the Debian package that has it."""


def python_of(peer: str) -> Path:
    """Return the Python of a peer's environment."""
    return PLACE / peer / "bin" / "python"


def missing(peer: str) -> str:
    """Return why a peer cannot take part; empty if it can."""
    if not peer:
        return ""
    if peer in TOOLS:
        return "" if shutil.which(peer) else f"{peer} is not installed"
    works = PLACE / peer / "works"
    return "" if works.exists() and works.read_text() == PEERS[peer].package else f"its environment could not be made ({PLACE / peer}.log)"


def version(peer: str) -> str:
    """Return the version of a peer, as it is pinned, or as the program says."""
    if peer in PEERS:
        return PEERS[peer].package.partition("==")[2]
    done = subprocess.run([peer, "--version"], capture_output=True, text=True, check=False)
    words = done.stdout.split("\n", 1)[0].replace("fio-", "fio version ").split()
    return words[words.index("version") + 1] if "version" in words else ""


def prepare(peers: set[str]) -> None:
    """Make the environments that are not there yet. What fails is written beside them, and `missing` tells it."""
    PLACE.mkdir(parents=True, exist_ok=True)
    CONSTRAINTS.write_text(f"torch=={pinned(PINS.read_text())[0]}\n")
    tools = [TOOLS[name] for name in sorted(peers & TOOLS.keys()) if shutil.which(name) is None]
    wanted = [name for name in sorted(peers & PEERS.keys()) if missing(name)]
    packages = [*tools, *(package for name in wanted for package in PEERS[name].debian)]
    if packages:
        _install_debian(packages)
    for name in wanted:
        sys.stderr.write(f"making the environment of {name} in {PLACE / name}; its log is {PLACE / name}.log\n")
        with (PLACE / f"{name}.log").open("wb") as log:
            if all(subprocess.run(argv, cwd=ROOT, stdout=log, stderr=log, check=False).returncode == 0 for argv in commands(name)):
                (PLACE / name / "works").write_text(PEERS[name].package)


def commands(peer: str) -> list[list[str]]:
    """Return the commands that make the environment of a peer, in order."""
    recipe, python = PEERS[peer], str(python_of(peer))
    pip = [python, "-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS)]
    made = [
        [sys.executable, "-m", "venv", "--clear", str(PLACE / peer)],
        [python, "-m", "install", "torch", "--python", sys.executable, "--use", "system"],
    ]
    if recipe.before:
        made.append([*pip, *recipe.before])
    made.append([*pip, *(("--no-deps", "--no-build-isolation") if recipe.alone else ()), recipe.package])
    return [*made, [python, "-c", f"import {recipe.module}"]]


def _install_debian(packages: list[str]) -> None:
    """Install packages of Debian where this is its machine, and its user root; else the peers that want them are missing."""
    if shutil.which("apt-get") is None:
        sys.stderr.write(f"no apt-get here; {', '.join(packages)}: install them by hand for the peers that need them\n")
        return
    for argv in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]):
        if subprocess.run(argv, stdout=subprocess.DEVNULL, check=False).returncode:
            sys.stderr.write(f"{' '.join(argv)} failed; the peers that need {', '.join(packages)} may be missing\n")
            return
