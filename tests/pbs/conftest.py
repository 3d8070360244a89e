"""One real cluster of OpenPBS for the tests of this folder; each test leaves it as it found it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.minicluster import Cluster, missing_here
from tests.minicluster.waiting import wait_until

USER = "tester"


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A login node and 2 nodes of 4 cores; a job whose first node is silent for 10 s is started again."""
    if reason := missing_here(scheduler="pbs"):
        pytest.skip(reason)
    cluster = Cluster.up(f"pbs{os.getpid()}", scheduler="pbs", nodes=2, gpus=2, cores=4, slurmd_timeout=10)
    try:
        yield cluster
    finally:
        cluster.down()


@pytest.fixture(autouse=True)
def empty_queue(request: pytest.FixtureRequest) -> Iterator[None]:
    """No job outlives its test. `force`: also one of a node that was lost."""
    yield
    if "cluster" in request.fixturenames:
        cluster: Cluster = request.getfixturevalue("cluster")
        for job in jobs(cluster):
            cluster.exec("login", ["qdel", "-W", "force", job], timeout=60)
        wait_until(lambda: not jobs(cluster), 60.0, "the queue is empty")


def jobs(cluster: Cluster) -> list[str]:
    """The user's, that are not over."""
    return cluster.exec("login", ["qselect", "-u", USER], timeout=60, check=True).stdout.split()
