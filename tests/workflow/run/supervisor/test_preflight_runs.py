"""Runs whose nodes have different addresses: the network between them is tested before anything is staged."""

import os
import signal

import pytest

from tests.workflow.run.test_runs import checked
from tests.workflow.run.valid import validate_record
from tests.workflow.run.world import World

pytestmark = pytest.mark.slow


def cell(world: World, nodes: int) -> str:
    """A run whose nodes have a loopback address each."""
    world.addresses = [f"127.0.0.{index + 2}" for index in range(nodes)]
    return world.cell(nodes)


@pytest.mark.parametrize("nodes", [2, 4])
def test_a_healthy_network_is_measured_and_nobody_is_named(world: World, nodes: int) -> None:
    run_id = cell(world, nodes)
    log = world.ends(run_id)
    record = checked(world, run_id)
    found = record["preflight"]
    assert found["pairs"] == nodes * (nodes - 1)
    assert found["findings"] == []
    assert record["warnings"] == record["busy"], "others may work here while it measures"
    assert found["connect_ms_max"] > 0
    assert 0 < found["rate_mbit_min"] <= found["rate_mbit_median"]
    assert {found["slowest"]["from"], found["slowest"]["to"]} < {f"local-{index}" for index in range(nodes)} | {""}
    assert found["seconds"] < record["steps_s"]["stage"]
    assert "pairs connect in" in log
    assert world.left() == []


def test_a_node_that_has_not_its_address_is_named_in_a_record(world: World) -> None:
    world.addresses = ["127.0.0.2", "192.0.2.7"]
    run_id = world.cell(2)
    world.ends(run_id, 24)
    record = world.record(run_id, 1)
    validate_record(record)
    assert record["status"] == "node_lost"
    assert "preflight on local-1: nothing can listen on 192.0.2.7" in record["status_reason"]
    assert record["preflight"]["findings"] == []
    assert world.left() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_that_dies_ends_the_run_and_leaves_nothing(world: World, number: int) -> None:
    run_id = cell(world, 3)
    process = world.start(run_id)
    pid = world.wait_for(lambda: world.pids("cluster.preflight"))[0]
    os.kill(pid, number)
    world.end_of(process, 24)
    assert "the probes of this node ended with" in world.record(run_id, 1)["status_reason"]
    assert world.left() == []


def test_cancelled_during_the_preflight_nothing_stays(world: World) -> None:
    run_id = cell(world, 3)
    process = world.start(run_id)
    for pid in world.wait_for(lambda: world.pids("cluster.preflight")):
        os.kill(pid, signal.SIGSTOP)
    process.terminate()
    world.end_of(process, 26)
    assert world.left() == []
