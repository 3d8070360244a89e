"""A study through Grid Engine as its user types it: one job for all of it, and a cancelled run that is recorded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
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


def slipway(cluster: Cluster, *words: str) -> Any:
    return cluster.exec("login", ["slipway", *words], user=USER, cwd=cluster.spec.home, timeout=END_S)


def study(cluster: Cluster, name: str, steps: int, nodes: list[int]) -> Path:
    (cluster.spec.home / f"{name}.yaml").write_text(STUDY.format(name=name, steps=steps, nodes=nodes))
    return cluster.shared / "slipway" / "results" / name


def records(results: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(results.glob("runs/*/record.json"))]


def ours(cluster: Cluster) -> list[str]:
    """What is left of runs on nodes."""
    argv = ["pgrep", "-a", "-u", USER, "-f", "workflow.run|snakemake"]
    return [line for node in cluster.nodes for line in cluster.exec(node, argv, timeout=60).stdout.splitlines()]


def test_a_run_is_a_job_and_trains_on_two_nodes(cluster: Cluster) -> None:
    results = study(cluster, "one", 2, [2])
    done = slipway(cluster, "run", "one.yaml", "--site", str(cluster.site_file))
    assert done.returncode == 0, done
    (record,) = records(results)
    assert (record["status"], record["scheduler"]) == ("ok", "sge"), record
    assert ours(cluster) == []


@pytest.mark.long
@pytest.mark.parametrize("how", [("submit", "--wait"), ("run",)], ids=["one-job", "job-per-run"])
def test_runs_on_one_and_two_nodes(cluster: Cluster, how: tuple[str, ...]) -> None:
    results = study(cluster, f"both{how[0]}", 10, [1, 2])
    command, *more = how
    done = slipway(cluster, command, f"both{how[0]}.yaml", "--site", str(cluster.site_file), *more)
    found = records(results)
    assert (done.returncode, [record["status"] for record in found]) == (0, ["ok", "ok"]), done
    for record in found:
        assert record["scheduler"] == "sge"
        steps = record["steps_s"]
        assert sum(steps[name] for name in ("stage", "train", "result", "push", "release")) == pytest.approx(record["run_s"], rel=0.01)
    assert (results / "report.html").exists()
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
