"""Limits, interfaces and GPUs: judged from texts and values."""

import os
from pathlib import Path

import pytest

from extras.doctor import machine
from extras.doctor.machine import Interface
from extras.doctor.types import Context, worst
from workflow.study.site import local_site

NONE = (-1, -1)


@pytest.mark.parametrize(
    ("files", "locked", "infiniband", "level", "words"),
    [
        ((1024, 524288), NONE, False, "note", "open files: 1024"),
        ((1024, 4096), NONE, False, "warning", "hard limit 4096"),
        (NONE, (65536, 65536), True, "warning", "locked memory"),
    ],
)
def test_limits(files: tuple[int, int], locked: tuple[int, int], infiniband: bool, level: str, words: str) -> None:
    (found,) = machine.judge_limits(files, locked, infiniband)
    assert (found.level, words in found.text) == (level, True)
    assert list(machine.judge_limits((65536, 65536), NONE, True)) == list(machine.judge_limits(NONE, (1, 1), False)) == []


def test_shared_memory() -> None:
    assert machine.judge_shared_memory(None, 0).level == "error"
    assert machine.judge_shared_memory(64 << 20, 64 << 20).level == "warning"
    assert machine.judge_shared_memory(64 << 30, 1 << 20).level == "warning"
    assert machine.judge_shared_memory(64 << 30, 60 << 30).level == "ok"


ETH = Interface(name="eth0", address="10.0.0.1", mtu=1500, speed_mbit=1000)
FAST = Interface(name="eth1", address="10.1.0.1", mtu=1500, speed_mbit=100_000)
IB = Interface(name="ib0", address="10.2.0.1", mtu=4092, speed_mbit=100_000, infiniband=True)


def test_the_interface_to_use() -> None:
    assert machine.recommended((ETH, FAST, IB), None) is IB
    assert machine.recommended((ETH, FAST), "10.0.0.1") is FAST
    other = Interface(name="eth9", address="10.9.0.1", mtu=1500, speed_mbit=1000)
    assert machine.recommended((ETH, other), "10.9.0.1") is other
    assert machine.recommended((), None) is None


@pytest.mark.parametrize(
    ("found", "chosen", "on_node", "level", "words"),
    [
        ((ETH,), None, True, "ok", "interfaces: eth0 10.0.0.1, 1 Gbit/s, MTU 1500"),
        ((ETH, IB), None, True, "note", "best by kind and speed: ib0"),
        ((ETH, IB), "ib0", True, "ok", "the site's interface ib0"),
        ((ETH, IB), "ib1", True, "error", "'ib1' of the site file is not up here"),
        ((ETH,), "ib0", False, "note", "'ib0' of the site file is not up here"),
        ((), None, True, "warning", "one node only"),
    ],
)
def test_interfaces(found: tuple[Interface, ...], chosen: str | None, on_node: bool, level: str, words: str) -> None:
    findings = list(machine.judge_interfaces(found, chosen, None, on_node))
    assert worst(findings) == level
    assert any(words in finding.text for finding in findings), findings


def test_the_interfaces_of_a_machine(tmp_path: Path) -> None:
    for name, kind, state in (("lo", 772, "unknown"), ("docker0", 1, "up"), ("eth7", 1, "down")):
        directory = tmp_path / name
        directory.mkdir()
        (directory / "type").write_text(f"{kind}\n")
        (directory / "operstate").write_text(f"{state}\n")
    assert machine.read_interfaces(tmp_path) == ()
    assert all(one.address for one in machine.read_interfaces())


GPU = {"model": "NVIDIA A100-SXM4-80GB", "driver": "550.54.15", "mig": "Disabled", "used": "4"}


@pytest.mark.parametrize(
    ("values", "device", "level", "words"),
    [
        ({}, "cuda", "ok", "2 x NVIDIA A100-SXM4-80GB; driver 550.54.15"),
        ({}, "cpu", "note", "device: cpu"),
        ({"mig": "Enabled"}, "cuda", "warning", "MIG is on"),
        ({"mig": "[N/A]"}, "cuda", "ok", "driver"),
        ({"used": "30000"}, "cuda", "warning", "1 of 2 GPUs hold memory"),
    ],
)
def test_gpus(values: dict[str, str], device: str, level: str, words: str) -> None:
    findings = list(machine.judge_gpus([GPU, GPU | values], device, 2, True))
    assert worst(findings) == level
    assert any(words in finding.text for finding in findings), findings


def test_no_gpus() -> None:
    assert worst(machine.judge_gpus((), "cuda", 8, runs_here=False)) == "ok"
    assert worst(machine.judge_gpus((), "cpu", 8, runs_here=True)) == "ok"
    assert worst(machine.judge_gpus((), "cuda", 8, runs_here=True)) == "error"
    assert worst(machine.judge_gpus([GPU, GPU], "cuda", 8, True)) == "note"


@pytest.mark.processes
def test_gpus_are_asked_for_by_the_names_of_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU-1, NVIDIA A100, 550.1, Enabled, 700'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    context = Context(site=local_site(has_gpu=True), place="alone", hostname="n1", scheduler="local")
    assert [finding.level for finding in machine.check_gpus(context)] == ["ok", "warning", "warning"]
