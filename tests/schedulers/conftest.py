"""A real cluster of Grid Engine, OpenPBS or OpenLava, which speaks like LSF, one after the other; each test leaves it as it found it."""

import os
from collections.abc import Iterator
from typing import Any, Final

import pytest

from tests.minicluster import Cluster, missing_here, queue
from tests.minicluster.waiting import wait_until

SIZES: Final[dict[str, dict[str, Any]]] = {"sge": {"nodes": 2, "gpus": 2}, "pbs": {"nodes": 2, "gpus": 2}, "lsf": {"nodes": 3}}
FORCE: Final = {"sge": "qdel -f {job}", "pbs": "qdel -W force {job}", "lsf": "bkill {job}"}
"""The command that removes a job of a lost node too."""


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A login node and nodes of 4 slots; a node that is silent for 10 s is not counted on."""
    scheduler = request.param
    if reason := missing_here(scheduler=scheduler):
        pytest.skip(reason)
    with Cluster.up(f"{scheduler}{os.getpid()}", scheduler=scheduler, cores=4, slurmd_timeout=10, **SIZES[scheduler]) as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def empty_queue(request: pytest.FixtureRequest) -> Iterator[None]:
    """No job outlives its test."""
    yield
    if "cluster" in request.fixturenames:
        cluster: Cluster = request.getfixturevalue("cluster")
        for job in queue.listed(cluster):
            queue.order(cluster, FORCE[cluster.spec.scheduler], job)
        wait_until(lambda: not queue.listed(cluster), 60.0, "the queue is empty")
