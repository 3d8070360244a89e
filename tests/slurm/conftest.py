"""One real cluster for the tests of this folder; each test leaves it as it found it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.minicluster import Cluster, missing_here


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """3 nodes x 2 GPUs; a node that is silent for 10 s is down."""
    if reason := missing_here():
        pytest.skip(reason)
    cluster = Cluster.up(f"test{os.getpid()}", nodes=3, gpus=2, cores=4, slurmd_timeout=10)
    try:
        yield cluster
    finally:
        cluster.down()
