"""A study through Grid Engine, OpenPBS and OpenLava as its user types it, and what faults come to; for OpenLava every fault of
tests/campaign: the same words in the record as with any scheduler."""

import json
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests import launchers
from tests.campaign.faults import TOO_LATE, faults_of, play
from tests.campaign.rounds import Disk, Round
from tests.minicluster import Cluster, queue
from tests.minicluster.spec import USER
from tests.minicluster.studies import (
    END_S,
    LIMIT_S,
    Started,
    await_nothing_left,
    check,
    left,
    lose_a_node_and_train_there_again,
    records,
    slipway,
    tables,
    write,
)
from tests.minicluster.waiting import wait_until
from tests.schedulers import LONG, on

pytestmark = pytest.mark.slow
WAYS = ("run", "submit")
NUMBERS = count()


@on("sge")
def test_a_run_is_a_job_and_trains_on_two_nodes(cluster: Cluster) -> None:
    results = write(cluster, "one", 2, [2])
    done = slipway(cluster, "run", "one.yaml")
    assert done.returncode == 0, done
    check(results, "sge", 1)
    assert left(cluster) == []


@LONG
@on("sge", "pbs", "lsf")
def test_both_ways_of_a_study_give_the_same_tables(cluster: Cluster) -> None:
    found = {}
    for way in WAYS:
        results = write(cluster, f"both{way}", 10, [1, 2])
        done = slipway(cluster, way, f"both{way}.yaml", *(["--wait"] if way == "submit" else []))
        assert done.returncode == 0, done
        check(results, cluster.spec.scheduler, 2)
        await_nothing_left(cluster)
        found[way] = tables(results)
    assert found["run"]
    assert found["run"] == found["submit"]


@LONG
@on("sge", "pbs")
def test_programs_by_torchrun_mpirun_and_with_sidecars(cluster: Cluster) -> None:
    if why := launchers.missing_here():
        pytest.skip(why)
    (cluster.spec.home / "launchers.yaml").write_text(launchers.study("launchers"))
    launchers.write_folders(cluster.spec.home)
    done = slipway(cluster, "run", "launchers.yaml")
    assert done.returncode == 0, done
    recorded = records(cluster.shared / "slipway" / "results" / "launchers")
    launchers.check(recorded)
    assert {record["scheduler"] for record in recorded} == {cluster.spec.scheduler}
    await_nothing_left(cluster)


@LONG
@pytest.mark.parametrize(
    ("cluster", "words"),
    [("sge", ("run",)), ("sge", ("submit", "--wait")), ("pbs", ("run",)), ("pbs", ("submit", "--wait")), ("lsf", ("submit", "--wait"))],
    indirect=["cluster"],
    scope="session",
)
def test_a_run_whose_job_holds_the_node_that_it_lost_before_trains_in_its_second_attempt(cluster: Cluster, words: tuple[str, ...]) -> None:
    """Not `run` on LSF: with a third node its job would wait for that."""
    lose_a_node_and_train_there_again(cluster, *words)
    await_nothing_left(cluster)


def await_training(results: Path) -> None:
    wait_until(lambda: any("step " in path.read_text() for path in (results / "logs").glob("lenet*.log")), END_S, "the run trains")


def end_of_first_attempt(results: Path) -> dict[str, Any]:
    wait_until(lambda: bool(list(results.glob("runs/*/attempts/1/record.json"))), 120.0, "the attempt is recorded")
    (path,) = results.glob("runs/*/attempts/1/record.json")
    record: dict[str, Any] = json.loads(path.read_text())
    return record


@LONG
@on("sge")
@pytest.mark.parametrize(("end", "words"), [("qdel", "SIGUSR2"), ("snakemake", "")])
def test_a_submitted_run_whose_job_is_ended_says_so_and_leaves_nothing(cluster: Cluster, end: str, words: str) -> None:
    """By qdel; and by the end of its Snakemake: Grid Engine kills all of a job when its script ends."""
    results = write(cluster, f"ended-{end}", 100000, [2])
    submitted = slipway(cluster, "submit", f"ended-{end}.yaml")
    assert submitted.returncode == 0, submitted
    await_training(results)
    if end == "qdel":
        cluster.exec("login", ["qdel", submitted.stdout.split()[1]], user=USER, timeout=60, check=True)
    else:
        argv = ["pkill", "-KILL", "-u", USER, "-f", "snakemake --configfile"]
        assert [cluster.exec(node, argv, timeout=60).returncode for node in cluster.nodes].count(0) == 1
    record = end_of_first_attempt(results)
    assert (record["status"], words in record["status_reason"]) == ("cancelled", True), record["status_reason"]
    await_nothing_left(cluster)


@LONG
@on("sge")
def test_a_run_whose_node_loses_its_power_goes_on_on_another(cluster: Cluster) -> None:
    """Grid Engine keeps its job until the node is back; its owner removes it, as the how-to says."""
    started = Started(cluster, "powerless", nodes=1, repeats=1)
    started.start()
    try:
        wait_until(lambda: bool(started.began()), LIMIT_S, "the run trains")
        (lost,) = started.began()
        (job,) = queue.listed(cluster)
        cluster.kill(lost)
        started.go_on.touch()
        status = ["slipway", "status", str(started.place / "study.yaml"), "--site", str(started.site)]
        asked = lambda: cluster.exec("login", status, user=USER, timeout=60).stdout  # noqa: E731
        wait_until(lambda: f"{lost} does not answer" in asked(), LIMIT_S, "the status names the node that does not answer")
        for argv in (["qdel", job], ["qmod", "-f", "-rj", job]):
            cluster.exec("login", argv, user=USER, timeout=60, check=True)
        codes = started.codes()
    finally:
        started.end()
        for node in cluster.nodes:
            cluster.heal(node)
    said = started.said()
    assert codes == [0], said
    (record,) = records(started.results)
    assert (record["status"], [node["name"] == lost for node in record["nodes"]]) == ("ok", [False]), said
    cluster.exec(lost, ["slipway", "reap", "--remove", "--site", str(cluster.site_file)], user=USER, timeout=60)
    assert left(cluster) == []


@pytest.fixture(scope="module")
def disk(cluster: Cluster) -> Iterator[Disk]:
    disk = Disk(cluster)
    yield disk
    disk.close()


@LONG
@on("lsf")
@pytest.mark.parametrize(("fault", "way"), [(fault, WAYS[index % 2]) for index, fault in enumerate(faults_of("lsf"))])
def test_what_a_fault_comes_to(cluster: Cluster, disk: Disk, fault: str, way: str) -> None:
    """At a random moment, which may come too late: then of another study."""
    for _ in range(3):
        seed = random.randrange(1 << 20)
        problem = play(Round(cluster, disk, way, fault, next(NUMBERS), random.Random(seed)))
        if problem != TOO_LATE:
            break
    assert problem == "", f"seed {seed}"
