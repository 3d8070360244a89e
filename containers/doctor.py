"""Check of `slipway doctor`: which container engines are here, and what it means to use them. Judging is pure."""

from __future__ import annotations

import grp
import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.command import last_lines, run
from base.errors import SlipwayError
from base.finding import Finding
from containers.engines import ENGINES, PLUGGED_INTO, in_container
from containers.limits import ENGINE_VERSION_S
from containers.needs import SUBJECT, Machine, judge_needs, machine_here

logger = logging.getLogger(__name__)
SOCKET: Final = Path("/var/run/docker.sock")


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine's command. `version` is None where it did not answer; then `trouble` says why."""

    version: str | None
    trouble: str = ""


def judge_engines(engines: Mapping[str, Engine], wanted: str, docker_group: bool, machine: Machine) -> Iterator[Finding]:
    """Pure. `wanted`: engine of the site file; `docker_group`: we may use docker's socket by our group, without being root."""
    usable = {name: engine.version for name, engine in engines.items() if engine.version}
    said = ", ".join(f"{name} {version}" for name, version in usable.items())
    if not in_container(wanted):
        yield Finding(
            SUBJECT, "ok", f"the site file says engine: {wanted}, without containers; here: {said or 'no engine that can be used'}"
        )
    elif wanted in usable:
        yield Finding(SUBJECT, "ok", f"{wanted} {usable[wanted]} can be used{_besides(usable, wanted)}")
    else:
        why = engines[wanted].trouble if wanted in engines else _absence(wanted)
        text = f"engine: {wanted} of the site file cannot be used here: {why}"
        yield Finding(SUBJECT, "error", text, f"engine: {' or '.join([*usable, 'bare'])}, or `setup` lines such as module load {wanted}")
    for name, engine in engines.items():
        if engine.version is None and name != wanted:
            yield Finding(SUBJECT, "note", f"{name} is installed, but cannot be used: {engine.trouble}")
    if docker_group and "docker" in usable:
        text = "docker's socket is open to us by the group docker: whoever is in it is root on this machine, in effect"
        yield Finding(SUBJECT, "note", text, "podman or apptainer where they are here; on a shared machine ask whether this is meant")
    if wanted in usable:
        yield from judge_needs(wanted, machine)


def check_engines(wanted: str) -> tuple[Finding, ...]:
    """Ask each engine for its version, and look for what that of the site needs besides; no container is started."""
    engines = {name: _ask(engine.VERSION) for name, engine in ENGINES.items() if engine.VERSION and _is_here(name)}
    return tuple(judge_engines(engines, wanted, _by_group(), machine_here()))


def _is_here(name: str) -> bool:
    if name not in PLUGGED_INTO:
        return shutil.which(name) is not None
    argv, option = PLUGGED_INTO[name]
    if shutil.which(argv[0]) is None:
        return False
    try:
        return option in run(argv, timeout_s=ENGINE_VERSION_S).stdout
    except SlipwayError as error:
        logger.warning("whether %s is here is not known: %s", name, error)
        return False


def _absence(name: str) -> str:
    if name not in PLUGGED_INTO:
        return "its command is not on PATH"
    argv, option = PLUGGED_INTO[name]
    return f"`{' '.join(argv)}` tells no option {option}, so it is not a part of {argv[0]} here"


def _ask(argv: tuple[str, ...]) -> Engine:
    try:
        result = run(argv, timeout_s=ENGINE_VERSION_S)
    except SlipwayError as error:
        return Engine(version=None, trouble=str(error))
    if result.returncode or not result.stdout.strip():
        return Engine(version=None, trouble=last_lines(result.stderr or result.stdout, 1) or f"exit code {result.returncode}")
    return Engine(version=result.stdout.split()[-1])


def _besides(usable: Mapping[str, str | None], wanted: str) -> str:
    others = ", ".join(f"{name} {version}" for name, version in usable.items() if name != wanted)
    return f"; besides {others}" if others else ""


def _by_group() -> bool:
    try:
        gid = SOCKET.stat().st_gid
        name = grp.getgrgid(gid).gr_name
    except (OSError, KeyError):
        return False
    return os.geteuid() != 0 and name != "root" and gid in os.getgroups()
