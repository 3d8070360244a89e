"""The checkout's own software: its Python, where it lies, the versions it was pinned to, what the profile for Slurm says."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import yaml

from base.finding import Finding
from data_prep.doctor.mounts import Mount, place_of
from workflow.study.site import CHECKOUT

SUBJECT: Final = "software"
SHOWN: Final = ("snakemake", "snakemake-executor-plugin-slurm")
PROFILE: Final = CHECKOUT / "profiles" / "slurm" / "profile.v9+.yaml"
POLL_S: Final = 40.0
"""The executor plugin's own, where the profile does not say it."""
_PIN: Final = re.compile(r"([A-Za-z0-9_.-]+)==([\w.]+)")


def pins(text: str) -> dict[str, str]:
    """Pure: the dependencies of a pyproject.toml that ask for one version."""
    project = tomllib.loads(text).get("project", {})
    extras = [word for words in project.get("optional-dependencies", {}).values() for word in words]
    return {match[1]: match[2] for match in map(_PIN.fullmatch, [*project.get("dependencies", []), *extras]) if match}


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
    project = CHECKOUT / "pyproject.toml"
    wanted = {name: version for name, version in pins(project.read_text()).items() if name != "torch"} if project.is_file() else {}
    found = {name: _version(name) for name in dict.fromkeys((*wanted, *SHOWN))}
    python = f"Python {'.'.join(map(str, sys.version_info[:3]))}"
    findings = [*judge_versions(wanted, found), *judge_place("the checkout", CHECKOUT, place_of(CHECKOUT)[1], told)]
    own = Path(sys.prefix)
    findings += judge_place(f"{python}, in", own, place_of(own)[1], told)
    if importlib.util.find_spec("torch") is None:
        text = "torch is not installed: framework pytorch with engine: bare cannot run"
        findings.append(Finding(SUBJECT, "note", text, "pip install 'slipway[pytorch]', or an engine with containers"))
    return tuple(findings)


def profile_polling() -> tuple[float, str | None]:
    """How often profiles/slurm asks for the state of jobs, and by which command; the plugin's own values where it says nothing."""
    try:
        value: Any = yaml.safe_load(PROFILE.read_text())
    except (OSError, yaml.YAMLError):
        return POLL_S, None
    value = value if isinstance(value, dict) else {}
    interval, command = value.get("slurm-init-seconds-before-status-checks"), value.get("slurm-status-command")
    return float(interval) if isinstance(interval, int | float) else POLL_S, command if isinstance(command, str) else None


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
