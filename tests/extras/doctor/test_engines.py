"""What `slipway doctor` says of engines, and of what one needs besides its command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from extras.doctor import engines
from extras.doctor.engines import Engine, Machine, judge_engines
from extras.doctor.types import Context, worst
from workflow.study.site import local_site

EQUIPPED = Machine(
    root=False,
    programs=frozenset(engines.PROGRAMS),
    fuse=True,
    sysctls={"user.max_user_namespaces": 15000, "kernel.unprivileged_userns_clone": 1},
)
OFF = {"user.max_user_namespaces": 0}
ROOTS = {"user.max_user_namespaces": 15000, "kernel.unprivileged_userns_clone": 0}


def without(*programs: str) -> dict[str, Any]:
    return {"programs": EQUIPPED.programs - set(programs)}


@pytest.mark.parametrize("engine", ["apptainer", "enroot", "pyxis", "podman", "docker", "bare"])
def test_a_machine_that_has_all_lacks_nothing(engine: str) -> None:
    assert list(engines.judge_needs(engine, EQUIPPED)) == []
    (found,) = judge_engines({engine: Engine(version="1")}, engine)
    assert found.level == "ok"


@pytest.mark.parametrize(
    ("engine", "changes", "level", "words", "advice"),
    [
        ("podman", {"sysctls": OFF}, "error", "user.max_user_namespaces is 0", "sysctl -w user.max_user_namespaces=15000"),
        ("enroot", {"sysctls": OFF, "root": True}, "error", "user.max_user_namespaces is 0", "sysctl"),
        ("apptainer", {"sysctls": ROOTS}, "error", "kernel.unprivileged_userns_clone is 0", "kernel.unprivileged_userns_clone=1"),
        ("apptainer", {"sysctls": {"kernel.apparmor_restrict_unprivileged_userns": 1}}, "warning", "AppArmor", "package"),
        ("apptainer", without("squashfuse", "squashfuse_ll"), "warning", "every start unpacks the whole image", "squashfuse"),
        ("apptainer", {"fuse": False}, "error", "/dev/fuse may not be opened", "chmod 666 /dev/fuse"),
        ("enroot", {"fuse": None}, "error", "/dev/fuse is not there", "modprobe fuse"),
        ("enroot", without("squashfuse"), "error", "squashfuse is not here", "squashfuse"),
        ("enroot", without("unsquashfs"), "error", "unsquashfs is not here", "squashfs-tools"),
        ("enroot", without("mksquashfs"), "note", "no image can be made on this machine", "squashfs-tools"),
        ("pyxis", without("enroot"), "error", "enroot is not on PATH", "setup"),
    ],
)
def test_what_an_engine_lacks_is_named_with_what_to_do(engine: str, changes: dict[str, Any], level: str, words: str, advice: str) -> None:
    (found,) = engines.judge_needs(engine, replace(EQUIPPED, **changes))
    assert (found.level, found.text.startswith(f"{engine}: ")) == (level, True)
    assert words in found.text
    assert advice in found.advice


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        ("enroot", {"sysctls": ROOTS, "root": True}),
        ("podman", {"sysctls": OFF, "root": True}),
        ("apptainer", {"setuid": True, "sysctls": OFF, "fuse": None, **without("squashfuse", "squashfuse_ll")}),
        ("pyxis", {"fuse": None, **without("squashfuse")}),
    ],
)
def test_what_nobody_needs_there_is_not_missed(engine: str, changes: dict[str, Any]) -> None:
    assert list(engines.judge_needs(engine, replace(EQUIPPED, **changes))) == []


@pytest.mark.processes
def test_a_machine_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libexec = tmp_path / "libexec"
    told = {
        "apptainer": f"echo LIBEXECDIR={libexec}; echo APPTAINER_SUID_INSTALL=1",
    }
    for path, script in [(tmp_path / name, script) for name, script in told.items()] + [
        (libexec / "apptainer" / "bin" / "squashfuse_ll", "")
    ]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(engines, "FUSE", tmp_path / "apptainer")
    found = engines.machine_here()
    assert (found.setuid, found.programs, found.fuse) == (True, frozenset({"squashfuse_ll"}), True)


@pytest.mark.parametrize(
    ("wanted", "found", "level", "words"),
    [
        ("bare", {}, "ok", "no engine that can be used"),
        ("docker", {"docker": Engine(version="20.10.24")}, "ok", "docker 20.10.24 can be used"),
        ("docker", {"docker": Engine(version=None, trouble="permission denied")}, "error", "permission denied"),
        ("apptainer", {"podman": Engine(version="4.3.1")}, "error", "not on PATH"),
        ("bare", {"docker": Engine(version=None, trouble="no daemon")}, "note", "cannot be used: no daemon"),
    ],
)
def test_engines(wanted: str, found: dict[str, Engine], level: str, words: str) -> None:
    findings = list(judge_engines(found, wanted))
    assert worst(findings) == level
    assert any(words in finding.text for finding in findings), findings


@pytest.mark.processes
@pytest.mark.parametrize(
    ("says", "here"), [("Options provided by plugins:\n      --container-image=PATH\n", True), ("Usage: srun\n", False)]
)
def test_an_engine_that_is_an_option_of_srun_is_here_where_srun_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, here: bool
) -> None:
    srun = tmp_path / "srun"
    srun.write_text(f'#!/bin/sh\nif [ "$1" = --help ]; then printf "%s" "{says}"; else echo slurm-wlm 22.05.8; fi\n')
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    context = Context(site=replace(local_site(has_gpu=False), engine="pyxis"), place="alone", hostname="h", scheduler="local")
    (found, *_) = engines.check_engines(context)
    assert (found.level == "ok") is here
    assert ("tells no option --container-image" in found.text) is not here
