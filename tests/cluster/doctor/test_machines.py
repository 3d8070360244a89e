"""Limits, names, interfaces, GPUs, engines: judged from texts and values."""

from __future__ import annotations

from pathlib import Path

import pytest

from base.finding import Finding, alike, by_subject, merged, worst
from cluster.doctor import checks
from cluster.doctor.checks import Interface
from containers import doctor as engines
from containers.doctor import Engine
from tests.containers.test_needs import EQUIPPED

PLENTY = {"files": (65536, 65536), "memlock": (None, None), "processes": (None, None), "core": (0, None), "memory": (None, None)}


def test_findings_travel_as_json_and_are_put_together() -> None:
    one, two = Finding("a", "ok", "same", "", ("n1",)), Finding("a", "ok", "same", "", ("n2",))
    bad = Finding("b", "error", "bad", "mend it")
    assert Finding.from_json(bad.to_json()) == bad
    assert merged([one, bad, two]) == (Finding("a", "ok", "same", "", ("n1", "n2")), bad)
    assert [subject for subject, _ in by_subject([bad, one])] == ["a", "b"]
    assert worst([]) == "ok"
    with pytest.raises(ValueError, match="level must be"):
        Finding("a", "fatal", "no such level")  # type: ignore[arg-type]


def test_many_nodes_that_are_alike_take_one_line() -> None:
    many = [Finding("a", "ok", f"n{number} has 10.0.0.{number}", "", (f"n{number}",)) for number in range(1, 9)]
    (line,) = alike(many)
    assert line.nodes == ("n1",)
    assert "7 other nodes are alike" in line.text
    slow = Finding("a", "note", "n9 has 10.0.0.9", "", ("n9",))
    assert len(alike([*many[:2], slow])) == 3


@pytest.mark.parametrize(
    ("changed", "infiniband", "level", "words"),
    [
        ({}, True, "ok", "are enough"),
        ({"files": (1024, 524288)}, False, "note", "open files: 1024"),
        ({"files": (1024, 4096)}, False, "warning", "hard limit 4096"),
        ({"memlock": (65536, 65536)}, True, "warning", "locked memory"),
        ({"memlock": (65536, 65536)}, False, "note", "there is none here"),
        ({"processes": (1000, 1000)}, False, "warning", "processes and threads"),
        ({"core": (None, None)}, False, "note", "core files: unlimited"),
        ({"memory": (10**9, None)}, False, "warning", "address space"),
    ],
)
def test_limits(changed: dict[str, tuple[int | None, int | None]], infiniband: bool, level: str, words: str) -> None:
    findings = checks.judge_limits(PLENTY | changed, infiniband)
    assert (worst(findings), words in findings[0].text) == (level, True)


def test_shared_memory() -> None:
    assert worst(checks.judge_shared_memory(None, 0)) == "error"
    assert worst(checks.judge_shared_memory(64 << 20, 64 << 20)) == "warning"
    assert worst(checks.judge_shared_memory(64 << 30, 1 << 20)) == "warning"
    assert worst(checks.judge_shared_memory(64 << 30, 60 << 30)) == "ok"


@pytest.mark.parametrize(
    ("addresses", "alone", "level"),
    [
        (("10.1.0.5",), False, "ok"),
        (("127.0.1.1",), False, "warning"),
        (("127.0.1.1",), True, "ok"),
        (("::1", "127.0.0.1"), False, "warning"),
        (("127.0.1.1", "10.1.0.5"), False, "note"),
        (("fe80::1%eth0",), False, "ok"),
        ((), False, "warning"),
        ((), True, "note"),
    ],
)
def test_the_own_name(addresses: tuple[str, ...], alone: bool, level: str) -> None:
    findings = checks.judge_own_name("node", addresses, alone)
    assert worst(findings) == level
    if addresses[:1] == ("127.0.1.1",) and level == "warning":
        assert "127.0.1.1 trap" in findings[0].text


def test_names_of_nodes_both_ways() -> None:
    forward = {"n1": ("10.0.0.1",), "n2": ("10.0.0.2",)}
    assert worst(checks.judge_nodes(forward, {"10.0.0.1": "n1.cluster", "10.0.0.2": "N2"})) == "ok"
    assert "n2 -> 10.0.0.2 -> host77" in checks.judge_nodes(forward, {"10.0.0.1": "n1", "10.0.0.2": "host77"})[0].text
    assert "n2 of 2 nodes do not resolve" in checks.judge_nodes({"n1": ("10.0.0.1",), "n2": ()}, {"10.0.0.1": "n1"})[0].text
    same = {"n1": ("10.0.0.1",), "n2": ("10.0.0.1",)}
    assert worst(checks.judge_nodes(same, {"10.0.0.1": "n1"})) == "warning"
    assert checks.judge_nodes({}, {}) == ()


ETH = Interface(name="eth0", address="10.0.0.1", mtu=1500, speed_mbit=1000)
FAST = Interface(name="eth1", address="10.1.0.1", mtu=1500, speed_mbit=100_000)
IB = Interface(name="ib0", address="10.2.0.1", mtu=4092, speed_mbit=100_000, infiniband=True)


def test_the_interface_to_use() -> None:
    assert checks.recommended((ETH, FAST, IB), None) is IB
    assert checks.recommended((ETH, FAST), "10.0.0.1") is FAST
    other = Interface(name="eth9", address="10.9.0.1", mtu=1500, speed_mbit=1000)
    assert checks.recommended((ETH, other), "10.9.0.1") is other
    assert checks.recommended((), None) is None


@pytest.mark.parametrize(
    ("found", "chosen", "on_node", "level", "words"),
    [
        ((ETH,), None, True, "ok", "interfaces: eth0 10.0.0.1, 1 Gbit/s, MTU 1500"),
        ((ETH, IB), None, True, "note", "best by kind and speed: ib0"),
        ((ETH, IB), "ib0", True, "ok", "the site's interface ib0"),
        ((ETH, IB), "ib1", True, "error", "'ib1' of the site file is not up here"),
        ((ETH,), "ib0", False, "note", "'ib0' of the site file is not up here"),
        ((FAST,), None, True, "note", "MTU 1500 of eth1: at 100 Gbit/s"),
        ((Interface(name="wg", address="10.0.0.1", mtu=1200),), None, True, "warning", "smaller than usual"),
        ((), None, True, "warning", "one node only"),
    ],
)
def test_interfaces(found: tuple[Interface, ...], chosen: str | None, on_node: bool, level: str, words: str) -> None:
    findings = checks.judge_interfaces(found, chosen, None, on_node)
    assert worst(findings) == level
    assert any(words in finding.text for finding in findings), findings


def test_the_interfaces_of_a_machine(tmp_path: Path) -> None:
    for name, kind, state in (("lo", 772, "unknown"), ("docker0", 1, "up"), ("eth7", 1, "down")):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "type").write_text(f"{kind}\n")
        (directory / "operstate").write_text(f"{state}\n")
    assert checks.read_interfaces(tmp_path) == ()
    assert all(one.address for one in checks.read_interfaces())


def test_ports() -> None:
    assert worst(checks.judge_ports((32768, 60999), (61001, 65500))) == "ok"
    assert worst(checks.judge_ports((1024, 65535), (61001, 65500))) == "note"


SMI = """\
NVIDIA A100-SXM4-80GB, 550.54.15, Disabled, Enabled, 4
NVIDIA A100-SXM4-80GB, 550.54.15, {mig}, {persistence}, {used}
"""


@pytest.mark.parametrize(
    ("values", "device", "level", "words"),
    [
        ({}, "cuda", "ok", "2 x NVIDIA A100-SXM4-80GB; driver 550.54.15"),
        ({}, "cpu", "note", "device: cpu"),
        ({"mig": "Enabled"}, "cuda", "warning", "MIG is on"),
        ({"mig": "[N/A]"}, "cuda", "ok", "driver"),
        ({"persistence": "Disabled"}, "cuda", "note", "persistence"),
        ({"used": "30000"}, "cuda", "warning", "1 of 2 GPUs hold memory"),
    ],
)
def test_gpus(values: dict[str, str], device: str, level: str, words: str) -> None:
    text = SMI.format(**({"mig": "Disabled", "persistence": "Enabled", "used": "4"} | values))
    findings = checks.judge(checks.parse(text), device, 2, True)
    assert worst(findings) == level
    assert any(words in finding.text for finding in findings), findings


def test_no_gpus() -> None:
    assert worst(checks.judge((), "cuda", 8, on_node=False)) == "ok"
    assert worst(checks.judge((), "cpu", 8, on_node=True)) == "ok"
    assert worst(checks.judge((), "cuda", 8, on_node=True)) == "error"
    assert worst(checks.judge(checks.parse(SMI.format(mig="Disabled", persistence="Enabled", used="4")), "cuda", 8, True)) == "note"


@pytest.mark.parametrize(
    ("wanted", "found", "group", "level", "words"),
    [
        ("bare", {}, False, "ok", "no engine that can be used"),
        ("docker", {"docker": Engine(version="20.10.24")}, False, "ok", "docker 20.10.24 can be used"),
        ("docker", {"docker": Engine(version="20.10.24")}, True, "note", "root on this machine"),
        ("docker", {"docker": Engine(version=None, trouble="permission denied")}, False, "error", "permission denied"),
        ("apptainer", {"podman": Engine(version="4.3.1")}, False, "error", "not on PATH"),
        ("bare", {"docker": Engine(version=None, trouble="no daemon")}, False, "note", "cannot be used: no daemon"),
    ],
)
def test_engines(wanted: str, found: dict[str, Engine], group: bool, level: str, words: str) -> None:
    findings = list(engines.judge_engines(found, wanted, group, EQUIPPED))
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
    (found, *_) = engines.check_engines("pyxis")
    assert (found.level == "ok") is here
    assert ("tells no option --container-image" in found.text) is not here
