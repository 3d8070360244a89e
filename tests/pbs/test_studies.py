"""A study through OpenPBS as its user types it: a job per run, and one job for all of it."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.minicluster import Cluster
from tests.pbs.studies import await_nothing_left, records, slipway, write

pytestmark = [pytest.mark.slow, pytest.mark.long]
IN_THE_RUN = ("stage", "train", "result", "push", "release")


def tables(results: Path) -> dict[str, list[str]]:
    """The columns of each table."""
    return {path.name: next(csv.reader(path.read_text().splitlines())) for path in sorted(results.glob("tables/*.csv"))}


def test_both_ways_of_a_study_give_the_same_tables(cluster: Cluster) -> None:
    found = {}
    for name, words in (("perjob", ("run", "perjob.yaml")), ("alljob", ("submit", "alljob.yaml", "--wait"))):
        results = write(cluster, name, 10, [1, 2])
        done = slipway(cluster, *words)
        recorded = records(results)
        assert (done.returncode, [record["status"] for record in recorded]) == (0, ["ok", "ok"]), done
        assert {record["scheduler"] for record in recorded} == {"pbs"}
        for record in recorded:
            steps = record["steps_s"]
            assert sum(steps[step] for step in IN_THE_RUN) == pytest.approx(record["run_s"], rel=0.01)
            assert steps["assign"] >= 0
        assert (results / "report.html").exists()
        await_nothing_left(cluster)
        found[name] = tables(results)
    assert found["perjob"]
    assert found["perjob"] == found["alljob"]
