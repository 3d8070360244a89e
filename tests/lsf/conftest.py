"""One real cluster of OpenLava, which speaks like LSF, for the tests of this folder; each test leaves it as it found it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.minicluster import Cluster, missing_here, queue
from tests.minicluster.waiting import wait_until


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A login node and 3 nodes of 4 slots; a node that is silent for 10 s is not counted on."""
    if reason := missing_here(scheduler="lsf"):
        pytest.skip(reason)
    cluster = Cluster.up(f"lsf{os.getpid()}", scheduler="lsf", nodes=3, cores=4, slurmd_timeout=10)
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
        for job in queue.listed(cluster):
            queue.order(cluster, queue.words_of(cluster).cancel, job)
        wait_until(lambda: not queue.listed(cluster), 60.0, "the queue is empty")
