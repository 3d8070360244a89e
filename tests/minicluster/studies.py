"""A small study on a cluster, as its ordinary user types it, and what is left of it."""

import csv
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.minicluster import queue
from tests.minicluster.cluster import Cluster
from tests.minicluster.spec import USER, USER_ID
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
    """A command of ours about a study, with the cluster's site file. Raises AssertionError with what is at work, if it does not end."""
    argv = ["slipway", *words, "--site", str(cluster.site_file)]
    try:
        return cluster.exec("login", argv, user=USER, cwd=cluster.spec.home, timeout=END_S)
    except subprocess.TimeoutExpired as error:
        jobs = cluster.exec("login", queue.words_of(cluster).listed.split(), timeout=60).stdout
        processes = [cluster.exec(node, ["ps", "-eo", "pid,stat,wchan:30,etimes,args"], timeout=60).stdout for node in cluster.nodes]
        raise AssertionError("\n".join([str(error), repr(error.stderr), jobs, *processes])) from None


def records(results: Path) -> list[dict[str, Any]]:
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


# Runs that wait for a file, and what can happen to them meanwhile, with any scheduler.


LIMIT_S = 300.0
WAITING = """
study: {name}
programs:
  waits: {{folder: program, command: [sh, "{{folder}}/waits.sh"], launcher: ranks, events: none}}
base: {{program: waits, dataset: none, batch_size: 1, device: cpu, nodes: {nodes}, repeats: {repeats}}}
axes: {{}}
limits: {{walltime: 5m}}
"""
WAITS = "touch {place}/began-$(hostname)\nuntil test -e {place}/go-on; do sleep 0.1; done\n"


class Started:
    """A study of runs that wait for the file `go_on`, and the commands that its user typed for it on the login node."""

    def __init__(self, cluster: Cluster, name: str, nodes: int, repeats: int) -> None:
        self.cluster, self.user = cluster, queue.words_of(cluster).user
        self.place = (cluster.shared if self.user is None else cluster.spec.home) / name
        self.results = cluster.shared / "slipway" / "results" / name
        self.go_on = self.place / "go-on"
        (self.place / "program").mkdir(parents=True)
        (self.place / "program" / "waits.sh").write_text(WAITS.format(place=self.place))
        (self.place / "study.yaml").write_text(WAITING.format(name=name, nodes=nodes, repeats=repeats))
        self.site = self.place / "site.yaml"
        self.directives()
        for path in (self.place, *self.place.rglob("*")) if self.user is not None else ():
            shutil.chown(path, USER_ID)
        self.commands: list[subprocess.Popen[Any]] = []

    def directives(self, *lines: str) -> None:
        self.site.write_text(f"{self.cluster.site_file.read_text()}directives: [{', '.join(lines)}]\n")

    def start(self, command: str = "run", *options: str) -> None:
        argv = ["slipway", command, str(self.place / "study.yaml"), "--site", str(self.site), *options]
        with (self.place / f"said-{len(self.commands)}").open("wb") as said:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": said, "stderr": said}
            self.commands.append(self.cluster.popen("login", argv, user=self.user, cwd=self.place, **streams))

    def codes(self) -> list[int]:
        return [command.wait(LIMIT_S) for command in self.commands]

    def said(self) -> str:
        """On the terminal, and by Snakemake."""
        paths = [*sorted(self.place.glob("said-*")), *sorted(self.results.glob("logs/snakemake-*.log"))]
        return "\n".join(path.read_text(errors="replace") for path in paths)

    def slurm(self, *argv: str) -> str:
        return self.cluster.exec("login", list(argv), check=True, timeout=60).stdout

    def jobs(self) -> list[str]:
        return self.slurm("squeue", "--noheader", "--format=%i").split()

    def wait_for(self, word: str) -> None:
        wait_until(lambda: word in self.said(), LIMIT_S, word)

    def attempts(self) -> list[dict[str, Any]]:
        """Records of all attempts, by run and number."""
        return [json.loads(path.read_text()) for path in sorted(self.results.glob("runs/*/attempts/[!.]*/record.json"))]

    def began(self) -> set[str]:
        return {path.name.removeprefix("began-") for path in self.place.glob("began-*")}

    def end(self) -> None:
        for command in self.commands:
            if command.poll() is None:
                command.terminate()
                command.wait(60)


def lose_a_node_and_train_there_again(cluster: Cluster, *words: str) -> None:
    """Kill the node program of a run's first node, where its next attempt has no other nodes: it takes that one last. `words`: of the
    command that starts the study."""
    started = Started(cluster, f"again{words[0]}", nodes=2, repeats=1)
    started.start(*words)
    try:
        wait_until(lambda: len(started.began()) == 2, LIMIT_S, "the run trains")
        (lost,) = (node for node in cluster.nodes if cluster.exec(node, ["pgrep", "-f", " -m workflow.run.supervisor"], timeout=60).stdout)
        cluster.exec(lost, ["pkill", "-KILL", "-f", "^[^ ]*python[^ ]* -P -m workflow.run.node "], timeout=60, check=True)
        started.go_on.touch()
        codes = started.codes()
    finally:
        started.end()
    attempts = started.attempts()
    found = [(attempt["status"], attempt["failed_nodes"]) for attempt in attempts]
    assert (codes, found) == ([0], [("node_lost", [lost]), ("ok", [])]), started.said()
    first, second = ([node["name"] for node in attempt["nodes"]] for attempt in attempts)
    assert (len(second), set(second), second[-1]) == (2, set(first), lost), started.said()
