"""One real cluster of Grid Engine for the tests of this folder; each test leaves it as it found it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.minicluster import Cluster, missing_here
from tests.minicluster.waiting import wait_until

USER = "tester"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A login node and 2 nodes of 4 slots; a node that is silent for 10 s is not counted on."""
    if reason := missing_here(scheduler="sge"):
        pytest.skip(reason)
    cluster = Cluster.up(f"sge{os.getpid()}", scheduler="sge", nodes=2, gpus=2, cores=4, slurmd_timeout=10)
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(autouse=True)
def empty_queue(request: pytest.FixtureRequest) -> Iterator[None]:
    """No job outlives its test."""
    yield
    if "cluster" in request.fixturenames:
        cluster: Cluster = request.getfixturevalue("cluster")
        cluster.exec("login", ["qdel", "-f", "-u", USER], timeout=60)
        wait_until(lambda: not cluster.exec("login", ["qstat", "-u", "*"], timeout=60).stdout.strip(), 60.0, "the queue is empty")
