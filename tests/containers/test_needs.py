"""What `slipway doctor` says of what an engine needs besides its command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from containers import needs
from containers.doctor import Engine, judge_engines
from containers.needs import Machine

EQUIPPED = Machine(
    root=False,
    programs=frozenset(needs.PROGRAMS),
    fuse=True,
    sysctls={"user.max_user_namespaces": 15000, "kernel.unprivileged_userns_clone": 1},
    ids={"subuid": 65536, "subgid": 65536},
)
OFF = {"user.max_user_namespaces": 0}
ROOTS = {"user.max_user_namespaces": 15000, "kernel.unprivileged_userns_clone": 0}


def without(*programs: str) -> dict[str, Any]:
    return {"programs": EQUIPPED.programs - set(programs)}


@pytest.mark.parametrize("engine", ["apptainer", "enroot", "pyxis", "podman", "docker", "bare"])
def test_a_machine_that_has_all_lacks_nothing(engine: str) -> None:
    assert list(needs.judge_needs(engine, EQUIPPED)) == []
    (found,) = judge_engines({engine: Engine(version="1")}, engine, False, EQUIPPED)
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
        ("podman", without("newgidmap"), "error", "newgidmap is not here", "uidmap"),
        ("podman", {"ids": {"subuid": 65536}}, "error", "/etc/subgid gives us 0 ids", "usermod --add-subgids"),
    ],
)
def test_what_an_engine_lacks_is_named_with_what_to_do(engine: str, changes: dict[str, Any], level: str, words: str, advice: str) -> None:
    (found,) = needs.judge_needs(engine, replace(EQUIPPED, **changes))
    assert (found.level, found.text.startswith(f"{engine}: ")) == (level, True)
    assert words in found.text
    assert advice in found.advice


@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        ("enroot", {"sysctls": ROOTS, "root": True}),
        ("podman", {"ids": {}, "sysctls": OFF, "root": True, **without("newuidmap")}),
        ("apptainer", {"setuid": True, "sysctls": OFF, "fuse": None, **without("squashfuse", "squashfuse_ll")}),
        ("pyxis", {"fuse": None, **without("squashfuse")}),
    ],
)
def test_what_nobody_needs_there_is_not_missed(engine: str, changes: dict[str, Any]) -> None:
    assert list(needs.judge_needs(engine, replace(EQUIPPED, **changes))) == []


@pytest.mark.processes
def test_a_machine_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    libexec = tmp_path / "libexec"
    told = {
        "apptainer": f"echo LIBEXECDIR={libexec}; echo APPTAINER_SUID_INSTALL=1",
        "getsubids": '[ "$1" = -g ] || echo "0: me 100000 4096"',
    }
    for path, script in [(tmp_path / name, script) for name, script in told.items()] + [
        (libexec / "apptainer" / "bin" / "squashfuse_ll", "")
    ]:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(needs, "FUSE", tmp_path / "apptainer")
    found = needs.machine_here()
    assert (found.setuid, found.programs, found.fuse) == (True, frozenset({"squashfuse_ll"}), True)
    assert found.ids == {"subuid": 4096, "subgid": 0}
