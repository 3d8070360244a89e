"""What driver and kernel say of the health of GPUs, by answers as the documentation has them; and what is made of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from base.errors import AllocationError
from cluster.gpus.listing import FIELDS, judge, parse_fields, query_gpu_faults, xids
from cluster.grants import health_warnings
from cluster.types import GpuFault
from tests.cluster.smi import answer, install

ONE, TWO, THREE, FOUR = (f"GPU-1c3b7a5e-9d21-4f60-8e07-5a1f0c27d9e{number}" for number in (1, 2, 3, 4))
LOG = """[    2.100000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.54.15
[  100.000001] NVRM: Xid (PCI:0000:19:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[90000.500000] NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python, Ch 00000008, intr 00000000. MMU Fault
[90001.500000] NVRM: Xid (PCI:0000:3b:00): 95, pid=4711, Uncontained: LTC TAG (0x0,0x0). RST: Yes, D-RST: No
[90002.500000] NVRM: Xid (PCI:0000:3b:00): 95, pid=4711, Uncontained: LTC TAG (0x0,0x0). RST: Yes, D-RST: No
[90003.500000] NVRM: Xid (PCI:0000:4c:00.0): 48, an ECC error
[90004.500000] NVRM: Xid (PCI:nowhere): 48, and a line that is none
"""


def test_each_gpu_is_told_with_what_is_wrong_with_it() -> None:
    found = judge((ONE, TWO, THREE, FOUR), parse_fields(answer("health"), FIELDS), {})
    assert [(fault.uuid, fault.text.removeprefix(f"{fault.uuid}: ")) for fault in found] == [
        (TWO, "2 uncorrected ECC errors since the driver was loaded"),
        (TWO, "rows of its memory wait to be remapped, which a reset of the GPU does"),
        (TWO, "its clock is held down by a slow-down by its hardware, before anything runs"),
        (TWO, "its clock is held down by heat (slow-down by its hardware), before anything runs"),
        (THREE, "1 uncorrected ECC error since the driver was loaded"),
        (THREE, "a row of its memory could not be remapped: the GPU is to be replaced"),
        (THREE, "its clock is held down by the power supply (power brake), before anything runs"),
        (FOUR, "memory pages wait to be retired, which a reset of the GPU does"),
    ]


def test_xids_of_hardware_of_the_last_day_count_once() -> None:
    """Not one of a program, such as 31, nor one of before the last reset."""
    found = xids(LOG, 90_010.0)
    assert found == {(0, 0x3B, 0, 0): [95], (0, 0x4C, 0, 0): [48]}
    assert xids(LOG, 200.0)[(0, 0x19, 0, 0)] == [79]
    faults = judge((ONE, TWO), [dict.fromkeys(FIELDS, "[N/A]") | {"uuid": TWO, "pci.bus_id": "00000000:3B:00.0"}], found)
    assert [fault.text for fault in faults] == [
        f"{ONE} is not listed by nvidia-smi any more: it may be lost (dmesg)",
        f"{TWO}: Xid 95 in the kernel's log of the last day (uncontained memory error)",
    ]


def test_nothing_is_said_of_instances_nor_where_nothing_is_listed() -> None:
    assert judge(("MIG-1",), parse_fields(answer("health"), FIELDS), {}) == ()
    assert judge((ONE,), [], {}) == ()
    assert parse_fields("No devices were found\nUnable to determine the device handle\n", FIELDS) == []


def test_a_site_may_refuse_them() -> None:
    found = [("n1", GpuFault(ONE, f"{ONE}: bad")), ("n2", GpuFault(TWO, f"{TWO}: bad"))]
    assert health_warnings("run r", found, "record") == [f"n1: GPU {ONE}: bad", f"n2: GPU {TWO}: bad"]
    assert health_warnings("run r", [], "refuse") == []
    with pytest.raises(AllocationError, match=f"^run r, node n1: GPU {ONE}: bad, and 1 more such; the site file says gpu_health: refuse"):
        health_warnings("run r", found, "refuse")


@pytest.mark.processes
def test_an_old_driver_is_asked_without_the_fields_that_it_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, ["health-old-field", "health-old-failure-field", "health-old-card"])
    (tmp_path / "dmesg").write_text("#!/bin/sh\necho 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1\n")
    (tmp_path / "dmesg").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert [fault.text for fault in query_gpu_faults((FOUR,))] == [
        f"{FOUR}: memory pages wait to be retired, which a reset of the GPU does"
    ]
    assert query_gpu_faults(()) == ()
    install(tmp_path, ["gpu-lost"])
    assert query_gpu_faults((FOUR,)) == ()
