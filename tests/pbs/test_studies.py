"""A study through OpenPBS as its user types it: a job per run, and one job for all of it."""

from __future__ import annotations

import pytest

from tests import launchers
from tests.minicluster import Cluster
from tests.minicluster.studies import await_nothing_left, check, records, slipway, tables, write
from tests.minicluster.waiting_run import lose_a_node_and_train_there_again

pytestmark = [pytest.mark.slow, pytest.mark.long]


def test_both_ways_of_a_study_give_the_same_tables(cluster: Cluster) -> None:
    found = {}
    for name, words in (("perjob", ("run", "perjob.yaml")), ("alljob", ("submit", "alljob.yaml", "--wait"))):
        results = write(cluster, name, 10, [1, 2])
        done = slipway(cluster, *words)
        assert done.returncode == 0, done
        check(results, "pbs", 2)
        await_nothing_left(cluster)
        found[name] = tables(results)
    assert found["perjob"]
    assert found["perjob"] == found["alljob"]


def test_programs_by_torchrun_mpirun_and_with_sidecars(cluster: Cluster) -> None:
    if why := launchers.missing_here():
        pytest.skip(why)
    (cluster.spec.home / "launchers.yaml").write_text(launchers.study("launchers"))
    launchers.write_folders(cluster.spec.home)
    done = slipway(cluster, "run", "launchers.yaml")
    assert done.returncode == 0, done
    recorded = records(cluster.shared / "slipway" / "results" / "launchers")
    launchers.check(recorded)
    assert {record["scheduler"] for record in recorded} == {"pbs"}
    await_nothing_left(cluster)


@pytest.mark.parametrize("words", [("run",), ("submit", "--wait")], ids=["run", "submit"])
def test_a_run_whose_job_holds_the_node_that_it_lost_before_trains_in_its_second_attempt(cluster: Cluster, words: tuple[str, ...]) -> None:
    lose_a_node_and_train_there_again(cluster, *words)
    await_nothing_left(cluster)
