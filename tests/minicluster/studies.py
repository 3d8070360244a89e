"""A small study on a cluster, as its ordinary user types it, and what is left of it."""

from __future__ import annotations

import csv
import json
import subprocess
from pathlib import Path
from typing import Any

from tests.minicluster.cluster import Cluster
from tests.minicluster.spec import USER
from tests.minicluster.waiting import wait_until

STUDY = """\
study: {name}
datasets:
  digits: {{source: sklearn-digits, encoding: raw, size: 32, shards: 2}}
base:
  {{framework: pytorch, dataset: digits, model: lenet, batch_size: 32, gpus_per_node: 1, seed: 0, repeats: 1,
   steps: {{warmup: 1, measured: {steps}}}}}
axes: {{nodes: {nodes}}}
limits: {{walltime: {walltime}, init: 5m}}
"""
END_S = 400.0
LEFT_S = 60.0
IN_THE_RUN = ("stage", "train", "result", "push", "release")


def write(cluster: Cluster, name: str, steps: int, nodes: list[int], walltime: str = "10m") -> Path:
    """The study file in the user's home; where its results will be."""
    (cluster.spec.home / f"{name}.yaml").write_text(STUDY.format(name=name, steps=steps, nodes=nodes, walltime=walltime))
    return cluster.shared / "slipway" / "results" / name


def slipway(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of ours about a study, with the cluster's site file."""
    argv = ["slipway", *words, "--site", str(cluster.site_file)]
    return cluster.exec("login", argv, user=USER, cwd=cluster.spec.home, timeout=END_S)


def records(results: Path) -> list[dict[str, Any]]:
    """Of the runs that have a result."""
    return [json.loads(path.read_text()) for path in sorted(results.glob("runs/*/record.json"))]


def check(results: Path, scheduler: str, runs: int) -> None:
    """All is well: the seconds of the steps of each run are those of the run."""
    recorded = records(results)
    ends = [(record["status"], record["scheduler"]) for record in recorded]
    assert ends == [("ok", scheduler)] * runs, ends
    for record in recorded:
        steps = record["steps_s"]
        assert abs(sum(steps[step] for step in IN_THE_RUN) - record["run_s"]) <= 0.01 * record["run_s"], (steps, record["run_s"])
        assert steps["assign"] >= 0, steps
    assert (results / "report.html").exists(), results


def tables(results: Path) -> dict[str, list[str]]:
    """The columns of each table."""
    return {path.name: next(csv.reader(path.read_text().splitlines())) for path in sorted(results.glob("tables/*.csv"))}


def left(cluster: Cluster) -> list[str]:
    """What is left of runs on nodes: processes, and files that only a run has."""
    found = []
    for node in cluster.nodes:
        places = ["/local/slipway/runs", "/local/slipway/leases"]
        for argv in (["pgrep", "-a", "-u", USER, "-f", "workflow.run|snakemake"], ["find", *places, "-mindepth", "1", "-type", "f"]):
            found += [f"{node}: {line}" for line in cluster.exec(node, argv, timeout=60).stdout.splitlines()]
    return found


def await_nothing_left(cluster: Cluster) -> None:
    """Within the time in which node programs end by themselves."""
    wait_until(lambda: not left(cluster), LEFT_S, "nothing is left on the nodes")
