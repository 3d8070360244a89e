"""Check which container engines are here, and what those without a daemon need of a machine besides their own command.

What happens without each was tried with Apptainer 1.4 and enroot 4.1.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from base.errors import SlipwayError
from base.process import last_lines, run
from base.system import machine_number
from containers.engines import ENGINES, PLUGGED_INTO, get_engine, in_container
from extras.doctor.types import Context, Finding, Level

logger = logging.getLogger(__name__)
ANSWER_S: Final = 8.0
"""How long an engine may take to print its version."""


@dataclass(frozen=True, kw_only=True)
class Engine:
    """One engine's command. `version` is None where it did not answer; then `trouble` says why."""

    version: str | None
    trouble: str = ""


def check_engines(context: Context) -> Iterator[Finding]:
    """Ask each engine for its version, and look for what that of the site needs besides; no container is started."""
    engines = {name: _ask(get_engine(name).VERSION) for name in ENGINES if in_container(name) and _is_here(name)}
    chosen = context.site.engine
    yield from judge_engines(engines, chosen)
    if chosen in engines and engines[chosen].version is not None:
        yield from judge_needs(chosen, machine_here())


def judge_engines(engines: Mapping[str, Engine], chosen: str) -> Iterator[Finding]:
    """Judge the engines. `chosen`: of the site file."""
    usable = {name: engine.version for name, engine in engines.items() if engine.version}
    others = ", ".join(f"{name} {version}" for name, version in usable.items() if name != chosen)
    if not in_container(chosen):
        text = f"the site file says engine: {chosen}, without containers; here: {others or 'no engine that can be used'}"
        yield Finding("engines", "ok", text)
    elif chosen in usable:
        yield Finding("engines", "ok", f"{chosen} {usable[chosen]} can be used{f'; besides {others}' if others else ''}")
    else:
        why = engines[chosen].trouble if chosen in engines else _absence(chosen)
        text = f"engine: {chosen} of the site file cannot be used here: {why}"
        yield Finding("engines", "error", text, f"engine: {' or '.join([*usable, 'bare'])}, or `setup` lines such as module load {chosen}")
    for name, engine in engines.items():
        if engine.version is None and name != chosen:
            yield Finding("engines", "note", f"{name} is installed, but cannot be used: {engine.trouble}")


def _is_here(name: str) -> bool:
    if name not in PLUGGED_INTO:
        return shutil.which(name) is not None
    argv, option = PLUGGED_INTO[name]
    return shutil.which(argv[0]) is not None and option in _output(argv)


def _absence(name: str) -> str:
    if name not in PLUGGED_INTO:
        return "its command is not on PATH"
    argv, option = PLUGGED_INTO[name]
    return f"`{' '.join(argv)}` tells no option {option}, so it is not a part of {argv[0]} here"


def _ask(argv: tuple[str, ...]) -> Engine:
    try:
        result = run(argv, timeout_s=ANSWER_S)
    except SlipwayError as error:
        return Engine(version=None, trouble=str(error))
    if result.returncode or not result.stdout.strip():
        return Engine(version=None, trouble=last_lines(result.stderr or result.stdout, 1) or f"exit code {result.returncode}")
    return Engine(version=result.stdout.split()[-1])


def _output(argv: tuple[str, ...]) -> str:
    """Return the output of a command; nothing where it does not answer."""
    try:
        return run(argv, timeout_s=ANSWER_S).stdout
    except SlipwayError as error:
        logger.warning("%s does not answer: %s", argv[0], error)
        return ""


# What engines without a daemon need of a machine.


FUSE: Final = Path("/dev/fuse")
SYSCTLS: Final = {
    name: Path("/proc/sys", *name.split("."))
    for name in ("user.max_user_namespaces", "kernel.unprivileged_userns_clone", "kernel.apparmor_restrict_unprivileged_userns")
}
PROGRAMS: Final = ("squashfuse", "squashfuse_ll", "unsquashfs", "mksquashfs", "enroot")
SQUASHFUSE: Final = "the package squashfuse"
SQUASHFS_TOOLS: Final = "the package squashfs-tools"
Needs = Iterator[tuple[Level, str, str]]


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine on which containers are started. `fuse` is None where the device is not there, else whether we may open it; `sysctls`
    are those that this kernel has; with `setuid` apptainer has a starter of root's, which needs none of all this."""

    root: bool
    programs: frozenset[str]
    fuse: bool | None
    sysctls: Mapping[str, int] = field(default_factory=dict)
    setuid: bool = False


def machine_here() -> Machine:
    """Look at this machine. Nothing is started but `apptainer buildcfg`."""
    text = _output(("apptainer", "buildcfg")) if shutil.which("apptainer") else ""
    build = dict(line.partition("=")[::2] for line in text.splitlines())
    bundled = Path(build.get("LIBEXECDIR", "/nowhere"), "apptainer", "bin")
    return Machine(
        root=os.geteuid() == 0,
        programs=frozenset(name for name in PROGRAMS if shutil.which(name) or os.access(bundled / name, os.X_OK)),
        fuse=os.access(FUSE, os.R_OK | os.W_OK) if FUSE.exists() else None,
        sysctls={name: number for name, path in SYSCTLS.items() if (number := machine_number(path)) is not None},
        setuid=build.get("APPTAINER_SUID_INSTALL") == "1",
    )


def _namespaces(machine: Machine) -> Needs:
    ask = "ask the administrator for `sysctl -w {}`, or use docker where it is here"
    if machine.sysctls.get("user.max_user_namespaces") == 0:
        text = "user namespaces are off (user.max_user_namespaces is 0): it can start no container"
        yield "error", text, ask.format("user.max_user_namespaces=15000")
    if machine.root:  # the others keep root from nothing
        return
    if machine.sysctls.get("kernel.unprivileged_userns_clone") == 0:
        text = "user namespaces are root's alone (kernel.unprivileged_userns_clone is 0): it can start no container"
        yield "error", text, ask.format("kernel.unprivileged_userns_clone=1")
    if machine.sysctls.get("kernel.apparmor_restrict_unprivileged_userns") == 1:
        text = "user namespaces are for programs with a profile of AppArmor (kernel.apparmor_restrict_unprivileged_userns is 1)"
        yield "warning", text, "ask whether it has one: its package may bring it, what was installed by hand has none"


def _fuse(machine: Machine) -> Needs:
    if machine.fuse is None:
        text = f"{FUSE} is not there: it cannot mount an image's file"
        yield "error", text, "ask the administrator for the kernel's module fuse (`modprobe fuse`)"
    elif not machine.fuse:
        yield "error", f"{FUSE} may not be opened by us: it cannot mount an image's file", f"ask the administrator for `chmod 666 {FUSE}`"


def _makes(machine: Machine) -> Needs:
    if "mksquashfs" not in machine.programs:
        text = "mksquashfs is not here: no image can be made on this machine, only files be named in `images`"
        yield "note", text, f"where Snakemake runs, {SQUASHFS_TOOLS}"


def _apptainer(machine: Machine) -> Needs:
    if not machine.setuid:
        yield from _namespaces(machine)
        if not machine.programs & {"squashfuse", "squashfuse_ll"}:
            yield "warning", "squashfuse_ll is not here: every start unpacks the whole image into TMPDIR", SQUASHFUSE
        else:
            yield from _fuse(machine)
    yield from _makes(machine)


def _enroot(machine: Machine) -> Needs:
    yield from _namespaces(machine)
    for name, package in (("squashfuse", SQUASHFUSE), ("unsquashfs", SQUASHFS_TOOLS)):
        if name not in machine.programs:
            yield "error", f"{name} is not here: it can start no image", package
    yield from _fuse(machine)
    yield from _makes(machine)


def _pyxis(machine: Machine) -> Needs:
    """Check for the enroot that lists and removes what pyxis has unpacked; its own is on slurmd's PATH."""
    yield from _namespaces(machine)
    if "enroot" not in machine.programs:
        text = "enroot is not on PATH: what pyxis has unpacked can be neither found nor removed, so no run starts"
        yield "error", text, "`setup` of the site file: the directory of the enroot that it starts"
    if "unsquashfs" not in machine.programs:
        yield "error", "unsquashfs is not here: it can unpack no image", SQUASHFS_TOOLS
    yield from _makes(machine)


def _podman(machine: Machine) -> Needs:
    if machine.root:  # its containers have no user namespace of their own then, and all ids are there
        return
    yield from _namespaces(machine)


NEEDS: Final = {"apptainer": _apptainer, "enroot": _enroot, "pyxis": _pyxis, "podman": _podman}


def judge_needs(engine: str, machine: Machine) -> Iterator[Finding]:
    """Tell what is missing for this engine, each with what to do."""
    if engine in NEEDS:
        for level, text, advice in NEEDS[engine](machine):
            yield Finding("engines", level, f"{engine}: {text}", advice)
