"""What the driver says of the health of GPUs, by answers as the documentation has them; and what is made of it."""

from pathlib import Path

import pytest

from base.errors import AllocationError
from cluster.gpus.listing import FIELDS, judge, parse_fields, query_gpu_faults
from cluster.grants import health_warnings
from cluster.types import GpuFault
from tests.cluster.smi import answer, install

ONE, TWO, THREE, FOUR = (f"GPU-1c3b7a5e-9d21-4f60-8e07-5a1f0c27d9e{number}" for number in (1, 2, 3, 4))


def test_each_gpu_is_told_with_what_is_wrong_with_it() -> None:
    found = judge((ONE, TWO, THREE, FOUR), parse_fields(answer("health"), FIELDS))
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


def test_a_gpu_that_is_not_listed_is_lost() -> None:
    (fault,) = judge((ONE, TWO), [dict.fromkeys(FIELDS, "[N/A]") | {"uuid": TWO}])
    assert fault.text == f"{ONE} is not listed by nvidia-smi any more: it may be lost (dmesg)"


def test_nothing_is_said_of_instances_nor_where_nothing_is_listed() -> None:
    assert judge(("MIG-1",), parse_fields(answer("health"), FIELDS)) == ()
    assert judge((ONE,), []) == ()
    assert parse_fields("No devices were found\nUnable to determine the device handle\n", FIELDS) == []


def test_a_site_may_refuse_them() -> None:
    found = [("n1", GpuFault(ONE, f"{ONE}: bad")), ("n2", GpuFault(TWO, f"{TWO}: bad"))]
    assert health_warnings("run r", found, "record") == [f"n1: GPU {ONE}: bad", f"n2: GPU {TWO}: bad"]
    assert health_warnings("run r", [], "refuse") == []
    with pytest.raises(AllocationError, match=f"^run r, node n1: GPU {ONE}: bad, and 1 more such; the site file says gpu_health: refuse"):
        health_warnings("run r", found, "refuse")


@pytest.mark.processes
def test_an_old_driver_is_asked_without_the_fields_that_it_does_not_know(path: Path) -> None:
    install(path, ["health-old-field", "health-old-failure-field", "health-old-card"])
    assert [fault.text for fault in query_gpu_faults((FOUR,))] == [
        f"{FOUR}: memory pages wait to be retired, which a reset of the GPU does"
    ]
    assert query_gpu_faults(()) == ()
    install(path, ["gpu-lost"])
    assert query_gpu_faults((FOUR,)) == ()
