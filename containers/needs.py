"""What an engine without a daemon needs of a machine besides its own command: for `slipway doctor`. A probe, and a pure judgement.

What happens without each was tried with Apptainer 1.4 and enroot 4.1.
"""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from base.command import run
from base.errors import SlipwayError
from base.finding import Finding, Level
from base.machine_files import machine_number, machine_text
from containers.limits import ENGINE_VERSION_S

SUBJECT: Final = "engines"
FUSE: Final = Path("/dev/fuse")
SYSCTLS: Final = {
    name: Path("/proc/sys", *name.split("."))
    for name in ("user.max_user_namespaces", "kernel.unprivileged_userns_clone", "kernel.apparmor_restrict_unprivileged_userns")
}
PROGRAMS: Final = ("squashfuse", "squashfuse_ll", "unsquashfs", "mksquashfs", "newuidmap", "newgidmap", "enroot")
RANGES: Final = {"subuid": ("getsubids",), "subgid": ("getsubids", "-g")}
LEAST_IDS: Final = 65536
"""Ids that images use: rootless podman cannot unpack files of an id that it may not give."""
_SQUASHFUSE: Final = "the package squashfuse"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What is here. `fuse`: None where the device is not there, else whether we may open it; `sysctls`: those that this kernel has."""

    root: bool
    programs: frozenset[str]
    fuse: bool | None
    sysctls: Mapping[str, int] = field(default_factory=dict)
    ids: Mapping[str, int] = field(default_factory=dict)
    """How many subordinate ids are the user's: subuid, subgid."""
    setuid: bool = False
    """Whether apptainer is installed with a starter of root's, which needs none of all this."""


def machine_here() -> Machine:
    """Nothing of it is started, but getsubids and `apptainer buildcfg`, which tell."""
    build = _buildcfg()
    bundled = Path(build.get("LIBEXECDIR", "/nowhere"), "apptainer", "bin")
    return Machine(
        root=os.geteuid() == 0,
        programs=frozenset(name for name in PROGRAMS if shutil.which(name) or os.access(bundled / name, os.X_OK)),
        fuse=os.access(FUSE, os.R_OK | os.W_OK) if FUSE.exists() else None,
        sysctls={name: number for name, path in SYSCTLS.items() if (number := machine_number(path)) is not None},
        ids={name: _ids(name, argv) for name, argv in RANGES.items()},
        setuid=build.get("APPTAINER_SUID_INSTALL") == "1",
    )


def judge_needs(engine: str, machine: Machine) -> Iterator[Finding]:
    """Pure: what is missing for this engine, each with what to do."""
    for level, text, advice in _JUDGES.get(engine, _nothing)(machine):
        yield Finding(SUBJECT, level, f"{engine}: {text}", advice)


_Found = Iterator[tuple[Level, str, str]]


def _nothing(_machine: Machine) -> _Found:
    return iter(())


def _namespaces(machine: Machine) -> _Found:
    """As root the last two keep nobody from anything."""
    if machine.sysctls.get("user.max_user_namespaces") == 0:
        yield (
            "error",
            "user namespaces are off (user.max_user_namespaces is 0): it can start no container",
            _ask("user.max_user_namespaces=15000"),
        )
    if machine.root:
        return
    if machine.sysctls.get("kernel.unprivileged_userns_clone") == 0:
        text = "user namespaces are root's alone (kernel.unprivileged_userns_clone is 0): it can start no container"
        yield "error", text, _ask("kernel.unprivileged_userns_clone=1")
    if machine.sysctls.get("kernel.apparmor_restrict_unprivileged_userns") == 1:
        text = "user namespaces are for programs with a profile of AppArmor (kernel.apparmor_restrict_unprivileged_userns is 1)"
        yield "warning", text, "ask whether it has one: its package may bring it, what was installed by hand has none"


def _fuse(machine: Machine) -> _Found:
    if machine.fuse is None:
        yield (
            "error",
            f"{FUSE} is not there: it cannot mount an image's file",
            "ask the administrator for the kernel's module fuse (`modprobe fuse`)",
        )
    elif not machine.fuse:
        yield "error", f"{FUSE} may not be opened by us: it cannot mount an image's file", f"ask the administrator for `chmod 666 {FUSE}`"


def _makes(machine: Machine) -> _Found:
    if "mksquashfs" not in machine.programs:
        text = "mksquashfs is not here: no image can be made on this machine, only files be named in `images`"
        yield "note", text, "where Snakemake runs, the package squashfs-tools"


def _apptainer(machine: Machine) -> _Found:
    if not machine.setuid:
        yield from _namespaces(machine)
        if not machine.programs & {"squashfuse", "squashfuse_ll"}:
            yield "warning", "squashfuse_ll is not here: every start unpacks the whole image into TMPDIR", _SQUASHFUSE
        else:
            yield from _fuse(machine)
    yield from _makes(machine)


def _enroot(machine: Machine) -> _Found:
    yield from _namespaces(machine)
    for name, package in (("squashfuse", _SQUASHFUSE), ("unsquashfs", "the package squashfs-tools")):
        if name not in machine.programs:
            yield "error", f"{name} is not here: it can start no image", package
    yield from _fuse(machine)
    yield from _makes(machine)


def _pyxis(machine: Machine) -> _Found:
    """Its enroot is on slurmd's PATH; ours lists and removes what it has unpacked."""
    yield from _namespaces(machine)
    if "enroot" not in machine.programs:
        text = "enroot is not on PATH: what pyxis has unpacked can be neither found nor removed, so no run starts"
        yield "error", text, "`setup` of the site file: the directory of the enroot that it starts"
    if "unsquashfs" not in machine.programs:
        yield "error", "unsquashfs is not here: it can unpack no image", "the package squashfs-tools"
    yield from _makes(machine)


def _podman(machine: Machine) -> _Found:
    """As root its containers have no user namespace of their own, and all ids are there."""
    if machine.root:
        return
    yield from _namespaces(machine)
    for name in ("newuidmap", "newgidmap"):
        if name not in machine.programs:
            yield (
                "error",
                f"{name} is not here: without root it cannot give a container more than one id",
                "the package uidmap (shadow-utils)",
            )
    for name in RANGES:
        found = machine.ids.get(name, 0)
        if found < LEAST_IDS:
            text = f"/etc/{name} gives us {found} ids: it cannot unpack images whose files have others"
            yield "error", text, f"ask the administrator for `usermod --add-{name}s FIRST-LAST USER`, {LEAST_IDS} of them"


_JUDGES: Final = {"apptainer": _apptainer, "enroot": _enroot, "pyxis": _pyxis, "podman": _podman}


def _ask(setting: str) -> str:
    return f"ask the administrator for `sysctl -w {setting}`, or use docker where it is here"


def _buildcfg() -> dict[str, str]:
    """Of the apptainer that is here; nothing where there is none, or it does not say."""
    if shutil.which("apptainer") is None:
        return {}
    try:
        told = run(("apptainer", "buildcfg"), timeout_s=ENGINE_VERSION_S).stdout
    except SlipwayError:
        return {}
    return dict(line.partition("=")[::2] for line in told.splitlines())


def _ids(name: str, argv: tuple[str, ...]) -> int:
    """By getsubids, which asks a directory service too; else by the file."""
    user = _user()
    if shutil.which(argv[0]):
        try:
            return sum(_last_number(line) for line in run((*argv, user), timeout_s=ENGINE_VERSION_S).stdout.splitlines())
        except SlipwayError:
            return 0
    ours = {user, str(os.geteuid())}
    lines = (line.split(":") for line in machine_text(f"/etc/{name}").splitlines())
    return sum(_last_number(words[2]) for words in lines if len(words) == 3 and words[0] in ours)


def _last_number(text: str) -> int:
    word = text.split()[-1] if text.split() else ""
    return int(word) if word.isdecimal() else 0


def _user() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
