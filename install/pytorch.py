"""Install PyTorch: what is here, else that of another Python, else fetched after it was said how large it is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from install.packages import pip, say, version_of

PINS: Final = Path(__file__).resolve().parents[1] / "requirements-torch.txt"
LINKED: Final = "zz-torch-of-another-python.pth"
"""Python reads it last of all, so that what is installed here goes before what lies beside that PyTorch."""
HEAD_S: Final = 10.0
SMALLER_BUILD: Final = "it may hold CUDA, some GB: Ctrl-C, and `make demo TORCH_INDEX=URL` fetches the CPU build (docs/how-to/install.md)"
"""It is said before anything is fetched: an index that does not tell what a package needs makes even the question fetch it whole."""
LOOK: Final = """
import importlib.metadata, importlib.util, os
print(importlib.metadata.version("torch"))
print(os.path.dirname(os.path.dirname(importlib.util.find_spec("torch").origin)))
"""


class Wheel(NamedTuple):
    """What pip would fetch; `num_bytes` is None where its server does not say."""

    name: str
    version: str
    sha256: str
    num_bytes: int | None


def _installed() -> str | None:
    return version_of("torch")


def torch(python: str, use: str, index: str | None, *, pins: Path = PINS, installed: Callable[[], str | None] = _installed) -> int:
    """Find PyTorch here, else link that of `python`, else fetch it after its size was announced. Return the exit code."""
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
    """Say what is fetched and how large it is, then fetch it: checked against the pinned hashes where it is the build that they are of."""
    source = ["--index-url", index] if index else []
    with tempfile.TemporaryDirectory(prefix="slipway-install-") as directory:
        report = Path(directory, "report.json")
        say(f"PyTorch {version} is not installed here; asking the package index what would be downloaded")
        if not index and sys.platform == "linux":
            say(f"  {SMALLER_BUILD}")
        if code := pip(["--dry-run", "--report", str(report), *source, f"torch=={version}"]):
            return code
        found = wheels(json.loads(report.read_text()))
    say(announcement(found))
    build = next(wheel for wheel in found if wheel.name == "torch")
    if build.sha256 in hashes and not index:
        return pip(["--no-deps", "--require-hashes", "-r", str(pins)], "PyTorch", large=True)
    say(f"  torch {build.version} is no build whose hash is pinned in {pins.name}: it is taken as it comes")
    return pip([f"torch=={build.version}", *source], "PyTorch", large=True)


def wheels(report: dict[str, list[dict[str, dict[str, object]]]]) -> list[Wheel]:
    """Return the wheels in pip's report of a dry run, largest first."""
    found = []
    for item in report["install"]:
        archive = item["download_info"].get("archive_info")
        hashes = archive.get("hashes", {}) if isinstance(archive, dict) else {}
        size = num_bytes(str(item["download_info"]["url"]))
        found.append(Wheel(str(item["metadata"]["name"]), str(item["metadata"]["version"]), str(hashes.get("sha256", "")), size))
    return sorted(found, key=lambda wheel: (-(wheel.num_bytes or 0), wheel.name))


def num_bytes(url: str) -> int | None:
    """Return the size by the server's answer, without fetching; None where it does not say."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        return Path(urllib.parse.unquote(parts.path)).stat().st_size
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=HEAD_S) as answer:
            return int(answer.headers["Content-Length"])
    except (OSError, TypeError, ValueError):
        return None


def announcement(found: Sequence[Wheel]) -> str:
    """Return the message of what will be fetched, and how to fetch less."""
    total = sum(wheel.num_bytes or 0 for wheel in found)
    unknown = sum(wheel.num_bytes is None for wheel in found)
    size = f"{_size(total)}{f', and {unknown} of unknown size' if unknown else ''}"
    largest = ", ".join(f"{wheel.name} {wheel.version} {_size(wheel.num_bytes)}" for wheel in found[:3] if wheel.num_bytes)
    text = f"to fetch: {len(found)} {'package' if len(found) == 1 else 'packages'}, {size} ({largest})"
    if any(wheel.name.startswith(("nvidia-", "cuda-")) for wheel in found):
        text += (
            "\n  most of it is CUDA; Ctrl-C, and `make demo TORCH_INDEX=URL` fetches the CPU build, far smaller (docs/how-to/install.md)"
        )
    return text


def _size(count: int | None) -> str:
    value = count or 0
    return f"{value / 1e9:.1f} GB" if value >= 1e9 else f"{value / 1e6:.1f} MB"
