"""The energy of the measured window: by counters, by power, over nodes; and where nobody knows it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workflow.run.record.test_machine_load import CORES, content, line
from workflow.run.record.machine_load import energy_of, load_of, parse_watched
from workflow.run.record.model import Gpu, GpuLoad, Load, LoadOf, Node
from workflow.run.record.parquet_columns import NO_COUNTER, OF_INSTANCES, energy_of_nodes, machines_of


@given(
    watts=st.floats(0.1, 1e5),
    begin=st.floats(0, 1e6),
    length=st.floats(10, 1e4),
    every=st.floats(0.1, 2.5),
    start=st.floats(0, 1e12),
)
def test_constant_power_gives_power_times_time(watts: float, begin: float, length: float, every: float, start: float) -> None:
    moments = [begin - 3 * every + every * index for index in range(int(length / every) + 6)]
    counted = [(t, start + watts * (t - begin + 3 * every)) for t in moments]
    found = energy_of(counted, begin, begin + length)
    assert found == pytest.approx(watts * length, rel=1e-3, abs=1e-3 + 1e-15 * start * length / every)


def test_what_is_beside_the_window_does_not_count() -> None:
    """Idle at 50 W before it and after it, 400 W in it: looks every 2 s, none of them at its edges."""
    counted = [(float(t), 50.0 * t + 350.0 * min(max(t - 11, 0), 20)) for t in range(0, 60, 2)]
    assert energy_of(counted, 11.0, 31.0) == pytest.approx(400 * 20)


def test_two_looks_at_the_ends_of_half_of_the_window_are_enough() -> None:
    assert energy_of([(12.0, 5.0), (17.0, 505.0)], 10.0, 20.0) == pytest.approx(1000.0)


@pytest.mark.parametrize(
    "counted",
    [
        [],
        [(11.0, 5.0)],
        [(5.0, 5.0), (31.0, 900.0)],
        [(11.0, 5.0), (14.0, 90.0)],
        [(11.0, 500.0), (15.0, 3.0), (19.0, 80.0)],
        [(11.0, 500.0), (15.0, 900.0), (19.0, 80.0)],
    ],
    ids=["none", "one", "none inside", "too little", "begun again", "begun again at the end"],
)
def test_too_little_is_not_known(counted: list[tuple[float, float]]) -> None:
    assert energy_of(counted, 10.0, 20.0) is None


def looks(*gpus: dict[str, Any], seconds: int = 40, rapl: str | None = "read", **more: Any) -> Load:
    """The load of a node that was looked at every 2 s; of each GPU `watts`, and `counts` whether it has a counter."""
    lines = []
    for t in range(0, seconds, 2):
        told = [
            {
                **{"uuid": gpu["uuid"], "mhz": 1, "max_mhz": 1, "reasons": 0, "celsius": 1, "watts": gpu["watts"], "busy_ratio": 1},
                **{"ecc_errors": 0, "others": 0, "joules": 1e9 + gpu["watts"] * t if gpu["counts"] else None},
            }
            for gpu in gpus
        ]
        lines.append(line(float(t), **({"gpus": told} if gpus else {}), **({"package_j": 150.0 * t} if rapl == "read" else {}), **more))
    watched = parse_watched(content(*lines, head={"schema": "slipway.load/1", "cores": CORES, **({"rapl": rapl} if rapl else {})}))
    assert watched is not None
    return load_of(watched, (5.0, float(seconds - 5)))


def node(host: str, load: Load | None, *uuids: str) -> Node:
    return Node(name=host, hostname=host, gpus=tuple(Gpu(uuid=uuid, model="H") for uuid in uuids), load=load)


def test_looks_become_joules_of_gpus_and_processors() -> None:
    load = looks({"uuid": "GPU-1", "watts": 400.0, "counts": True}, {"uuid": "GPU-2", "watts": 300.0, "counts": True})
    assert load.during is not None
    assert load.during.gpus is not None
    assert [gpu.energy_j for gpu in load.during.gpus] == [pytest.approx(400 * 30), pytest.approx(300 * 30)]
    assert load.during.package_j == pytest.approx(150 * 30)
    found = energy_of_nodes([node("n1", load, "GPU-1", "GPU-2"), node("n2", load, "GPU-1", "GPU-2")])
    assert found == (pytest.approx(2 * 700 * 30), pytest.approx(2 * 150 * 30), None)
    assert machines_of([node("n1", load, "GPU-1", "GPU-2")]).energy_gpu_j == pytest.approx(700 * 30)


def test_a_gpu_without_counter_has_no_energy() -> None:
    load = looks({"uuid": "GPU-1", "watts": 300.0, "counts": False})
    assert energy_of_nodes([node("n1", load, "GPU-1")]) == (None, pytest.approx(150 * 30), NO_COUNTER)


def test_shares_of_one_machine_have_its_processors_once() -> None:
    load = looks()
    assert energy_of_nodes([node("here", load), node("here", load)])[1] == pytest.approx(150 * 30)
    assert energy_of_nodes([node("n1", load), node("n2", load)])[1] == pytest.approx(2 * 150 * 30)


@pytest.mark.parametrize(
    ("rapl", "note"),
    [("not permitted", "processors: only root may read RAPL there"), ("none", "processors: no RAPL, as in most virtual machines")],
)
def test_why_a_node_has_none(rapl: str, note: str) -> None:
    assert energy_of_nodes([node("n1", looks(rapl=rapl)), node("n2", looks())]) == (None, None, note)


def test_one_gpu_that_is_not_known_makes_all_unknown() -> None:
    load = Load(cores=1, rapl="read", during=LoadOf(seconds=9.0, package_j=5.0, gpus=(GpuLoad(uuid="GPU-1", looks=3, energy_j=7.0),)))
    assert energy_of_nodes([node("n1", load, "GPU-1", "GPU-2")]) == (None, 5.0, NO_COUNTER)
    assert energy_of_nodes([node("n1", load, "MIG-1", "MIG-2")])[2] == OF_INSTANCES
    older = "processors: nobody looked at RAPL in the window"
    assert energy_of_nodes([node("n1", None, "GPU-1")]) == (None, None, f"{NO_COUNTER}; {older}")


def test_a_record_of_an_earlier_version_has_none() -> None:
    assert energy_of_nodes([Node(name="n1", hostname="h", gpus=())]) == (None, None, "processors: nobody looked at RAPL in the window")
