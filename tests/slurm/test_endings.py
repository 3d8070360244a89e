"""A few of the endings of `python -m tests.endings`, each once."""

import os
import random
from collections.abc import Iterator

import pytest

from tests.endings.faults import play
from tests.endings.place import One, Others, Place
from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def beside(docker_cluster: Cluster) -> Iterator[Others]:
    """With containers of others on every node."""
    place = Place(docker_cluster, f"endings{os.getpid()}", "docker")
    others = Others(place)
    yield others
    others.remove()
    docker_cluster.exec("login", ["scancel", "--user", "root"])
    wait_until(lambda: not docker_cluster.exec("login", ["squeue", "--noheader"]).stdout.strip(), 60.0, "the queue is empty")
    place.remove()


@pytest.mark.parametrize("kind", ["cancel", "supervisor", "node program", "slurmstepd of job"])
def test_nothing_is_left_and_containers_of_others_live(beside: Others, kind: str) -> None:
    seed = random.randrange(1 << 30)
    one = One(beside.place, beside, random.Random(seed))
    result = play(one, kind)
    assert result.problems == [], f"seed {seed}: {result}, it said: {one.log()}"
