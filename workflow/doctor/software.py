"""The checkout's own software: its Python, where it lies, the versions it was pinned to."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from base import VERSION
from base.finding import Finding
from base.rooms import ROOMS
from cluster.installation import DISTRIBUTION, FROM_CHECKOUT
from data_prep.doctor.mounts import Mount, place_of

SUBJECT: Final = "software"
_PIN: Final = re.compile(r"([A-Za-z0-9_.-]+)==([\w.]+)")


def pins(requirements: Iterable[str]) -> dict[str, str]:
    """Pure: those that ask for one version, whatever extra they belong to."""
    return {match[1]: match[2] for match in (_PIN.fullmatch(text.partition(";")[0].strip()) for text in requirements) if match}


def requirements() -> list[str]:
    """What this installation asks for, extras too: by the checkout's pyproject.toml, or by what pip was told of the wheel."""
    if not FROM_CHECKOUT:
        return metadata.requires(DISTRIBUTION) or []
    file = ROOMS / "pyproject.toml"
    project = tomllib.loads(file.read_text())["project"] if file.is_file() else {}
    extras = [text for texts in project.get("optional-dependencies", {}).values() for text in texts]
    return [*project.get("dependencies", []), *extras]


def judge_versions(wanted: Mapping[str, str], found: Mapping[str, str | None]) -> Iterator[Finding]:
    """Pure: pinned versions against installed ones; None: not installed."""
    wrong = [f"{name} {found[name] or 'not installed'} (wanted {version})" for name, version in wanted.items() if found[name] != version]
    if wrong:
        text = f"not the versions that Slipway was tested with: {', '.join(wrong)}"
        yield Finding(SUBJECT, "warning", text, "`make demo` installs them; or pip install the wanted ones")
    else:
        yield Finding(SUBJECT, "ok", ", ".join(f"{name} {version}" for name, version in found.items() if version))


def judge_place(what: str, path: Path, mount: Mount | None, told: bool) -> Iterator[Finding]:
    """Pure: whether compute nodes can reach it. `told`: they need not, or are asked themselves."""
    if told or mount is None:
        yield Finding(SUBJECT, "ok", f"{what} {path}")
    elif mount.kind == "network":
        yield Finding(SUBJECT, "ok", f"{what} {path} is on {mount.describe()}")
    else:
        text = f"{what} {path} is on {mount.describe()}: looks like a disk of this machine"
        yield Finding(SUBJECT, "note", text, "compute nodes start the same Python: inside an allocation this command tries it")


def check_software(told: bool) -> tuple[Finding, ...]:
    """Versions, the place of interpreter and checkout, torch. `told`: other machines need not reach them, or are asked themselves."""
    wanted = {name: version for name, version in pins(requirements()).items() if name != "torch"}
    found = {name: _version(name) for name in wanted}
    python = f"Python {'.'.join(map(str, sys.version_info[:3]))}"
    findings = [*judge_versions(wanted, found), *judge_place(f"Slipway {VERSION}, in", ROOMS, place_of(ROOMS)[1], told)]
    own = Path(sys.prefix)
    findings += judge_place(f"{python}, in", own, place_of(own)[1], told)
    if importlib.util.find_spec("torch") is None:
        text = "torch is not installed: framework pytorch with engine: bare cannot run"
        findings.append(Finding(SUBJECT, "note", text, "install it there (docs/installing.md), or choose an engine with containers"))
    return tuple(findings)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
