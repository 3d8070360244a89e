"""Install PyTorch: what is here, else that of another Python, else fetched after it was said that it may be large."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from install.packages import pip, say, version_of

PINS: Final = Path(__file__).resolve().parents[1] / "requirements-torch.txt"
LINKED: Final = "zz-torch-of-another-python.pth"
"""Python reads it last of all, so that what is installed here goes before what lies beside that PyTorch."""
SMALLER_BUILD: Final = "it may hold CUDA, some GB: Ctrl-C, and `make demo TORCH_INDEX=URL` fetches the CPU build (docs/how-to/install.md)"
"""It is said before anything is fetched: an index that does not tell what a package needs makes even the question fetch it whole."""
LOOK: Final = """
import importlib.metadata, importlib.util, os
print(importlib.metadata.version("torch"))
print(os.path.dirname(os.path.dirname(importlib.util.find_spec("torch").origin)))
"""


def _installed() -> str | None:
    return version_of("torch")


def torch(python: str, use: str, index: str | None, *, pins: Path = PINS, installed: Callable[[], str | None] = _installed) -> int:
    """Find PyTorch here, else link that of `python`, else fetch it. Return the exit code."""
    wanted, hashes = pinned(pins.read_text())
    if use == "none":
        say("no PyTorch is installed, as asked: runs with framework pytorch need an engine with containers")
        return 0
    here = installed()
    if here is not None and (use == "system" or _is_build_of(here, wanted)):
        say(f"PyTorch {here} is installed")
        return 0
    if here is not None:
        say(f"PyTorch {here} is installed, and Slipway is tested with {wanted} now, which replaces it. TORCH=system keeps it")
    other = of_python(python)
    if other is None and use == "system":
        say(f"TORCH=system: {python} has no PyTorch; PYTHON=/path/to/python names one that has")
        return 2
    if other is not None and (use == "system" or _is_build_of(other[0], wanted)):
        return link(*other)
    if other is not None:
        say(f"PyTorch {other[0]} of {python} is not taken: Slipway was tested with {wanted}. TORCH=system takes it all the same")
    return _fetch_instead_of_linked(wanted, hashes, index, pins)


def _fetch_instead_of_linked(wanted: str, hashes: frozenset[str], index: str | None, pins: Path) -> int:
    """Fetch without the link, since pip would see what is linked; restore the link if nothing can be fetched."""
    place = Path(sysconfig.get_path("purelib"), LINKED)
    linked = place.read_text() if place.exists() else None
    place.unlink(missing_ok=True)
    code = fetch(wanted, hashes, index, pins)
    if code and linked is not None:
        place.write_text(linked)
    return code


def pinned(text: str) -> tuple[str, frozenset[str]]:
    """Return the version of PyTorch in requirements-torch.txt, and the hashes of its builds."""
    found = re.search(r"^torch==([\w.]+)((?:[ \\\n]|--hash=sha256:[0-9a-f]{64})*)", text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"{PINS}: expected a line torch==VERSION with hashes, found none; restore the file from the release")
    return found[1], frozenset(re.findall(r"sha256:([0-9a-f]{64})", found[2]))


def _is_build_of(version: str, wanted: str) -> bool:
    """Return True also for a build of that version, such as 2.13.0+cpu."""
    return version.partition("+")[0] == wanted


def of_python(python: str) -> tuple[str, Path] | None:
    """Return version and directory of the PyTorch that another Python has."""
    done = subprocess.run([python, "-c", LOOK], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    return (lines[0], Path(lines[1])) if done.returncode == 0 and len(lines) == 2 else None


def link(version: str, directory: Path) -> int:
    """Let this environment see that PyTorch, behind all that is its own."""
    place = Path(sysconfig.get_path("purelib"), LINKED)
    place.write_text(f"{directory}\n")
    done = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, text=True, check=False)
    if done.returncode:
        place.unlink()
        last = done.stderr.strip().splitlines()[-1:] or ["no word from it"]
        say(f"PyTorch {version} in {directory} cannot be imported here: {last[0]}. TORCH=none installs without PyTorch")
        return 1
    say(f"PyTorch {version} in {directory} is used as it is; nothing is fetched ({place} says so)")
    return 0


def fetch(version: str, hashes: frozenset[str], index: str | None, pins: Path) -> int:
    """Fetch PyTorch, checked against the pinned hashes where it is the build that they are of, which pip is asked for first."""
    source = ["--index-url", index] if index else []
    with tempfile.TemporaryDirectory(prefix="slipway-install-") as directory:
        report = Path(directory, "report.json")
        say(f"PyTorch {version} is not installed here; asking the package index what would be downloaded")
        if not index and sys.platform == "linux":
            say(f"  {SMALLER_BUILD}")
        if code := pip(["--dry-run", "--report", str(report), *source, f"torch=={version}"]):
            return code
        found = json.loads(report.read_text())["install"]
    build = next(item for item in found if item["metadata"]["name"] == "torch")
    if build["download_info"].get("archive_info", {}).get("hashes", {}).get("sha256") in hashes and not index:
        return pip(["--no-deps", "--require-hashes", "-r", str(pins)], "PyTorch", large=True)
    say(f"  torch {build['metadata']['version']} is no build whose hash is pinned in {pins.name}: it is taken as it comes")
    return pip([f"torch=={build['metadata']['version']}", *source], "PyTorch", large=True)
