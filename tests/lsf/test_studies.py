"""A study through OpenLava as its user types it, and every fault of tests/campaign: the same words in the record as with any scheduler."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.campaign.disk import Disk
from tests.campaign.faults import faults_of
from tests.campaign.playing import TOO_LATE, play
from tests.campaign.rounds import Round
from tests.minicluster import Cluster
from tests.minicluster.studies import await_nothing_left, check, slipway, tables
from tests.minicluster.waiting_run import lose_a_node_and_train_there_again

pytestmark = [pytest.mark.slow, pytest.mark.long]
DEMO = (Path(__file__).parents[2] / "config" / "study.yaml").read_text()
WAYS = ("run", "submit")
NUMBERS = count()


@pytest.fixture(scope="module")
def disk(cluster: Cluster) -> Iterator[Disk]:
    disk = Disk(cluster)
    yield disk
    disk.close()


def test_both_ways_of_the_demo_give_the_same_tables(cluster: Cluster) -> None:
    """Each of its small cells once."""
    found = {}
    small = (
        re.sub(r"^include:.*\n(  - .*\n)+", "", DEMO, flags=re.MULTILINE)
        .replace("repeats: 3", "repeats: 1")
        .replace("measured: 40", "measured: 10")
    )
    for way in WAYS:
        text = small.replace("study: digits-scaling", f"study: {way}")
        (cluster.spec.home / f"{way}.yaml").write_text(text)
        results = cluster.shared / "slipway" / "results" / way
        done = slipway(cluster, way, f"{way}.yaml", *(["--wait"] if way == "submit" else []))
        assert done.returncode == 0, done
        check(results, "lsf", 4)
        await_nothing_left(cluster)
        found[way] = tables(results)
    assert found["run"]
    assert found["run"] == found["submit"]


@pytest.mark.parametrize(("fault", "way"), [(fault, WAYS[index % 2]) for index, fault in enumerate(faults_of("lsf"))])
def test_what_a_fault_comes_to(cluster: Cluster, disk: Disk, fault: str, way: str) -> None:
    """At a random moment, which may come too late: then of another study."""
    for _ in range(3):
        seed = random.randrange(1 << 20)
        problem = play(Round(cluster, disk, way, fault, next(NUMBERS), random.Random(seed)))
        if problem != TOO_LATE:
            break
    assert problem == "", f"seed {seed}"


def test_a_run_whose_job_holds_the_node_that_it_lost_before_trains_in_its_second_attempt(cluster: Cluster) -> None:
    """A job of its own would wait for the third node."""
    lose_a_node_and_train_there_again(cluster, "submit", "--wait")
    await_nothing_left(cluster)
