"""A small study on a cluster, as its ordinary user types it, and what is left of it."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.minicluster import queue
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


# A run on two nodes that waits for a file, and what can happen to it meanwhile, with any scheduler.


ROOT = Path(__file__).parents[2]
LIMIT_S = 300.0
STUDY = """\
study: {name}
programs:
  waits: {{folder: program, command: [sh, "{{folder}}/waits.sh"], launcher: ranks, events: none}}
base: {{program: waits, dataset: none, batch_size: 1, device: cpu, nodes: 2, repeats: 1}}
axes: {{}}
limits: {{walltime: 5m}}
"""
WAITS = "touch {place}/began-$(hostname)\nuntil test -e {place}/go-on; do sleep 0.1; done\n"


def lose_a_node_and_train_there_again(cluster: Cluster, *words: str) -> None:
    """Kill the node program of a run's first node, where its next attempt has no other nodes: it takes that one last. `words`: of the
    command that starts the study, which is typed as the user of the cluster."""
    name = f"again{words[0]}"
    user, place, results = queue.words_of(cluster).user, cluster.spec.home / name, cluster.shared / "slipway" / "results" / name
    (place / "program").mkdir(parents=True)
    (place / "program" / "waits.sh").write_text(WAITS.format(place=place))
    (place / "study.yaml").write_text(STUDY.format(name=name))
    if user is not None:
        for path in (place, *place.rglob("*")):
            shutil.chown(path, cluster.spec.home.stat().st_uid)
    argv = [str(ROOT / ".venv/bin/slipway"), *words, str(place / "study.yaml"), "--site", str(cluster.site_file)]
    with (place / "said").open("wb") as said:
        command = cluster.popen("login", argv, user=user, cwd=place, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
    try:
        wait_until(lambda: len(list(place.glob("began-*"))) == 2, LIMIT_S, "the run trains")
        (lost,) = (node for node in cluster.nodes if cluster.exec(node, ["pgrep", "-f", " -m workflow.run.supervisor"], timeout=60).stdout)
        cluster.exec(lost, ["pkill", "-KILL", "-f", "^[^ ]*python[^ ]* -P -m workflow.run.node "], timeout=60, check=True)
        (place / "go-on").touch()
        code = command.wait(LIMIT_S)
    finally:
        command.terminate()
        command.wait()
    text = "".join(path.read_text() for path in (place / "said", *results.glob("logs/*.log")))
    attempts = [json.loads(path.read_text()) for path in sorted(results.glob("runs/*/attempts/[!.]*/record.json"))]
    found = [(attempt["status"], attempt["failed_nodes"]) for attempt in attempts]
    assert (code, found) == (0, [("node_lost", [lost]), ("ok", [])]), text
    first, second = ([node["name"] for node in attempt["nodes"]] for attempt in attempts)
    assert (len(second), set(second), second[-1]) == (2, set(first), lost), text
