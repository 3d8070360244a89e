"""A study through Grid Engine as its user types it: one job for all of it, and a cancelled run that is recorded."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import launchers
from tests.minicluster import Cluster
from tests.minicluster.studies import await_nothing_left
from tests.minicluster.waiting import wait_until
from tests.minicluster.waiting_run import lose_a_node_and_train_there_again
from tests.sge.conftest import USER

pytestmark = pytest.mark.slow
STUDY = """\
study: {name}
datasets:
  digits: {{source: sklearn-digits, encoding: raw, size: 32, shards: 2}}
base:
  {{framework: pytorch, dataset: digits, model: lenet, batch_size: 32, gpus_per_node: 1, seed: 0, repeats: 1,
   steps: {{warmup: 1, measured: {steps}}}}}
axes: {{nodes: {nodes}}}
limits: {{walltime: 10m, init: 5m}}
"""
END_S = 400.0
IN_THE_RUN = ("stage", "train", "result", "push", "release")
ROOT = Path(__file__).parents[2]
KNOWN = """\
import sys
from cluster.schedulers.sge.jobs import known_jobs
print(*(job.ended_by for job in known_jobs(sys.argv[1:], 30.0)))
"""


def slipway(cluster: Cluster, *words: str) -> Any:
    return cluster.exec("login", ["slipway", *words], user=USER, cwd=cluster.spec.home, timeout=END_S)


def study(cluster: Cluster, name: str, steps: int, nodes: list[int]) -> Path:
    (cluster.spec.home / f"{name}.yaml").write_text(STUDY.format(name=name, steps=steps, nodes=nodes))
    return cluster.shared / "slipway" / "results" / name


def records(results: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(results.glob("runs/*/record.json"))]


def tables(results: Path) -> dict[str, list[str]]:
    """The columns of each table."""
    return {path.name: next(csv.reader(path.read_text().splitlines())) for path in sorted(results.glob("tables/*.csv"))}


def ours(cluster: Cluster) -> list[str]:
    """What is left of runs on nodes."""
    return [line for node in cluster.nodes for line in on_node(cluster, node)]


def on_node(cluster: Cluster, node: str) -> list[str]:
    """The same of one of them."""
    argv = ["pgrep", "-a", "-u", USER, "-f", "workflow.run|snakemake"]
    return cluster.exec(node, argv, timeout=60).stdout.splitlines()


def test_a_run_is_a_job_and_trains_on_two_nodes(cluster: Cluster) -> None:
    results = study(cluster, "one", 2, [2])
    done = slipway(cluster, "run", "one.yaml", "--site", str(cluster.site_file))
    assert done.returncode == 0, done
    (record,) = records(results)
    assert (record["status"], record["scheduler"]) == ("ok", "sge"), record
    assert ours(cluster) == []


@pytest.mark.long
def test_both_ways_of_a_study_give_the_same_tables(cluster: Cluster) -> None:
    found = {}
    for command, *more in (("submit", "--wait"), ("run",)):
        results = study(cluster, f"both{command}", 10, [1, 2])
        done = slipway(cluster, command, f"both{command}.yaml", "--site", str(cluster.site_file), *more)
        recorded = records(results)
        assert (done.returncode, [record["status"] for record in recorded]) == (0, ["ok", "ok"]), done
        assert {record["scheduler"] for record in recorded} == {"sge"}
        for record in recorded:
            steps = record["steps_s"]
            assert sum(steps[step] for step in IN_THE_RUN) == pytest.approx(record["run_s"], rel=0.01)
        assert (results / "report.html").exists()
        assert ours(cluster) == []
        found[command] = tables(results)
    assert found["run"]
    assert found["run"] == found["submit"]


@pytest.mark.long
def test_programs_by_torchrun_mpirun_and_with_sidecars(cluster: Cluster) -> None:
    if why := launchers.missing_here():
        pytest.skip(why)
    (cluster.spec.home / "launchers.yaml").write_text(launchers.study("launchers"))
    launchers.write_folders(cluster.spec.home)
    done = slipway(cluster, "run", "launchers.yaml", "--site", str(cluster.site_file))
    assert done.returncode == 0, done
    recorded = records(cluster.shared / "slipway" / "results" / "launchers")
    launchers.check(recorded)
    assert {record["scheduler"] for record in recorded} == {"sge"}
    assert ours(cluster) == []


@pytest.mark.long
def test_a_cancelled_run_says_so_and_leaves_nothing(cluster: Cluster) -> None:
    results = study(cluster, "cancelled", 100000, [2])
    submitted = slipway(cluster, "submit", "cancelled.yaml", "--site", str(cluster.site_file))
    job = submitted.stdout.split()[1]
    log = results / "logs"
    wait_until(lambda: any("step " in path.read_text() for path in log.glob("lenet*.log")), END_S, "the run trains")
    assert cluster.exec("login", ["qdel", job], user=USER, timeout=60).returncode == 0
    wait_until(lambda: bool(list(results.glob("runs/*/attempts/1/record.json"))), 120.0, "the attempt is recorded")
    (path,) = results.glob("runs/*/attempts/1/record.json")
    record = json.loads(path.read_text())
    assert (record["status"], "SIGUSR2" in record["status_reason"]) == ("cancelled", True), record["status_reason"]
    wait_until(lambda: not ours(cluster), 120.0, "nothing is left on the nodes")


@pytest.mark.long
def test_a_killed_snakemake_is_told_by_its_run_which_leaves_nothing(cluster: Cluster) -> None:
    """Grid Engine kills all of a job when its script ends."""
    results = study(cluster, "headless", 100000, [2])
    submitted = slipway(cluster, "submit", "headless.yaml", "--site", str(cluster.site_file))
    assert submitted.returncode == 0, submitted
    wait_until(lambda: any("step " in path.read_text() for path in (results / "logs").glob("lenet*.log")), END_S, "the run trains")
    argv = ["pkill", "-KILL", "-u", USER, "-f", "snakemake --configfile"]
    assert [cluster.exec(node, argv, timeout=60).returncode for node in cluster.nodes].count(0) == 1
    wait_until(lambda: bool(list(results.glob("runs/*/attempts/1/record.json"))), 120.0, "the attempt is recorded")
    (path,) = results.glob("runs/*/attempts/1/record.json")
    record = json.loads(path.read_text())
    assert record["status"] == "cancelled", record["status_reason"]
    await_nothing_left(cluster)


@pytest.mark.long
def test_a_run_whose_node_loses_its_power_goes_on_on_another(cluster: Cluster) -> None:
    """Grid Engine keeps its job until the node is back; it is not waited for."""
    results = study(cluster, "powerless", 200, [1])
    argv = ["slipway", "run", "powerless.yaml", "--site", str(cluster.site_file)]
    running = cluster.popen(
        "login",
        argv,
        user=USER,
        cwd=cluster.spec.home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_until(lambda: any("step " in path.read_text() for path in (results / "logs").glob("lenet*.log")), END_S, "the run trains")
        (lost,) = (node for node in cluster.nodes if on_node(cluster, node))
        cluster.kill(lost)
        said, _ = running.communicate(timeout=2 * END_S)
    finally:
        running.terminate()
        running.wait()
        for node in cluster.nodes:
            cluster.heal(node)
    assert running.returncode == 0, said
    snakemake = "".join(path.read_text() for path in (results / "logs").glob("snakemake*.log"))
    assert f"has lost its first node: {lost} has not answered" in snakemake, f"{said}\n{snakemake}"
    (record,) = records(results)
    assert (record["status"], [node["name"] == lost for node in record["nodes"]]) == ("ok", [False]), said
    (job,) = re.findall(r"job (\d+) has lost its first node", snakemake)
    ask = [sys.executable, "-c", KNOWN, job]
    told = cluster.exec("login", ask, user=USER, cwd=ROOT, timeout=60)
    assert told.stdout.strip() == "node_lost", told
    cluster.exec(lost, ["slipway", "reap", "--remove", "--site", str(cluster.site_file)], user=USER, timeout=60)
    assert ours(cluster) == []


@pytest.mark.long
@pytest.mark.parametrize("words", [("run",), ("submit", "--wait")], ids=["run", "submit"])
def test_a_run_whose_job_holds_the_node_that_it_lost_before_trains_in_its_second_attempt(cluster: Cluster, words: tuple[str, ...]) -> None:
    lose_a_node_and_train_there_again(cluster, *words)
    await_nothing_left(cluster)
