"""Both ways to run a study on a real cluster: the real Snakemake, plugin and Slurm, a supervisor that only sleeps and writes a record."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.checkout import copy_checkout
from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]

SUPERVISOR = """
import argparse, json, os, time
from pathlib import Path
from base.seal import publish_sealed
from workflow.run.storage.results import parse_requested
from workflow.run.builder import make_record
from workflow.study.publishing import find_run, read_resolved
parser = argparse.ArgumentParser()
parser.add_argument("--results", type=Path)
parser.add_argument("--run")
parser.add_argument("--log")
arguments = parser.parse_args()
arguments.run, after = parse_requested(arguments.run)
with (arguments.results / "started").open("a") as log:
    print(arguments.run, os.environ["SLURM_JOB_ID"], os.environ.get("SLIPWAY_SUBMISSION", "-"), file=log)
assert "AWS_SECRET_ACCESS_KEY" not in os.environ, "a job has all of the environment in which it was submitted"
time.sleep(float(os.environ["SLIPWAY_FAKE_S"]))
run = find_run(read_resolved(arguments.results), arguments.run)
record = make_record(run.cell.to_json(), run.repeat, result_number=after + 1)
run_dir = arguments.results / "runs" / arguments.run
run_dir.mkdir(parents=True, exist_ok=True)
publish_sealed(run_dir / "record.json", record)
"""

STUDY = """
study: {name}
datasets:
  noise: {{source: synthetic, samples: 40, size: 32, channels: grey, shards: 2}}
base: {{framework: pytorch, dataset: noise, batch_size: 8, steps: {{warmup: 1, measured: 2}}, repeats: 2}}
axes:
  model: [lenet]
  nodes: [1, 2]
baseline: {{nodes: 1}}
limits: {{walltime: 1m}}
"""


class Place:
    """A checkout with that supervisor on the cluster's shared storage, and one study."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.root = Path(cluster.shared) / "checkout"
        if not self.root.exists():
            self.root.mkdir()
            copy_checkout(self.root)
            (self.root / "workflow" / "run" / "supervisor" / "__main__.py").write_text(SUPERVISOR)
            shutil.copy(ROOT / "tests" / "workflow" / "report" / "builder.py", self.root / "workflow" / "run")
        (self.root / f"{name}.yaml").write_text(STUDY.format(name=name))
        self.processes: list[subprocess.Popen[Any]] = []
        self.results = Path(cluster.shared) / "slipway" / "results" / name

    def environ(self, seconds: float) -> dict[str, str]:
        own = {"SLIPWAY_SITE": str(self.cluster.site_file), "SLIPWAY_FAKE_S": str(seconds), "PYTHONPATH": str(self.root)}
        return {**own, "AWS_SECRET_ACCESS_KEY": "of the shell that submits"}

    def snakemake(self, seconds: float) -> subprocess.Popen[Any]:
        argv = [str(Path(sys.executable).parent / "snakemake"), "--profile", "profiles/slurm", "--configfile", f"{self.name}.yaml"]
        return self._popen([*argv, "--until", "stage_train_push"], seconds)

    def slipway(self, *words: str, seconds: float = 1.0) -> subprocess.Popen[Any]:
        return self._popen([sys.executable, "-m", "workflow.commands.main", *words], seconds)

    def _popen(self, argv: list[str], seconds: float) -> subprocess.Popen[Any]:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        process = self.cluster.popen("login", argv, cwd=self.root, env=self.environ(seconds), **streams)
        self.processes.append(process)
        return process

    def close(self) -> None:
        """End what a failed test has left. What its processes started may hold their output open, so nobody reads on: it ends with the
        cluster."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def started(self) -> list[list[str]]:
        path = self.results / "started"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def place(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Place]:
    place = Place(cluster, request.node.name.replace("_", "-")[5:35].strip("-"))
    yield place
    place.close()


def ended(process: subprocess.Popen[Any], limit_s: float = 240) -> str:
    out, _ = process.communicate(timeout=limit_s)
    assert process.returncode == 0, out
    return str(out)


def test_each_run_is_a_job_that_says_slurms_reason_and_once_cancelled_is_not_tried_again(place: Place) -> None:
    """Four runs of one and two nodes on three nodes: some wait. How runs in jobs of their own end well: test_shared_nodes.py."""
    run = place.slipway("run", f"{place.name}.yaml", seconds=200.0)

    def jobs(*options: str) -> list[str]:
        lines = place.cluster.exec("login", ["squeue", "--noheader", *options, "--format=%i %k"]).stdout.splitlines()
        return [line.split()[0] for line in lines if f" slipway={place.name}-" in line and "stage_train_push" in line]

    wait_until(lambda: len(jobs()) == 4 and bool(place.started()), 120, "all runs are in the queue, and one has started")
    said, _ = place.slipway("status", f"{place.name}.yaml").communicate(timeout=60)
    assert "queued" in said
    assert "Resources" in said
    beside = place.slipway("submit", f"{place.name}.yaml")
    said, _ = beside.communicate(timeout=60)
    assert beside.returncode == 12
    assert "has 4 jobs of slipway submit or slipway run in the queue already" in said
    assert sorted(place.cluster.exec("login", ["squeue", "--noheader", "--format=%D"]).stdout.split()) == ["1", "1", "2", "2"]
    place.cluster.exec("login", ["scancel", *jobs()])
    said, _ = run.communicate(timeout=240)
    assert run.returncode == 19
    assert said.count("or by an administrator; it is not tried again in this call") == 4
    runs = place.started()
    assert len({run for run, *_ in runs}) == len({job for _, job, _ in runs}) == len(runs)
    assert {submission for *_, submission in runs} == {"-"}


def test_one_job_for_the_study(place: Place) -> None:
    study = place.root / f"{place.name}.yaml"
    study.write_text(study.read_text().replace("repeats: 2", "repeats: 1"))
    first = place.slipway("submit", f"{place.name}.yaml", "--wait", seconds=5.0)
    wait_until(lambda: bool(place.started()), 90, "the first run has started")
    second = place.slipway("submit", f"{place.name}.yaml")
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 12
    assert "has 1 job of slipway submit or slipway run in the queue already" in said
    said = ended(first)
    _, ended_so, ending = said.partition("2 of 2 runs have a result")
    assert ended_so
    assert "speed-up" in ending.lower()
    assert str(place.results / "report.html") in ending
    runs = place.started()
    assert len({run for run, _, _ in runs}) == len(runs) == 2
    assert len({(job, submission) for _, job, submission in runs}) == 1
    assert runs[0][2].startswith(f"slipway-{place.name}-")
    assert "nothing is left to do" in ended(place.slipway("submit", f"{place.name}.yaml"))


def ours(place: Place, *options: str) -> dict[str, str]:
    """Our jobs of runs in the queue: the state of each, by its id."""
    lines = place.cluster.exec("login", ["squeue", "--noheader", *options, "--format=%i %T %k"]).stdout.splitlines()
    return {
        words[0]: words[1]
        for words in map(str.split, lines)
        if "stage_train_push" in words[2] and words[3].startswith(f"slipway={place.name}-")
    }


@pytest.mark.long
def test_ctrl_c_cancels_all_jobs_at_once(place: Place) -> None:
    """Once the command has shown why some wait: of jobs that it has not yet seen in the queue it says nothing."""
    run = place.slipway("run", f"{place.name}.yaml", seconds=200.0)
    wait_until(lambda: len(ours(place)) == 4 and bool(place.started()), 120, "all runs are in the queue, and one has started")
    assert any(" waits" in line and ("Resources" in line or "Priority" in line) for line in run.stdout or ())
    for pid in place.cluster.processes("login"):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if "workflow.commands.main" in words and f"{place.name}.yaml" in words:
            os.kill(pid, signal.SIGINT)
    said, _ = run.communicate(timeout=120)
    assert run.returncode not in (0, 1), said
    wait_until(lambda: not ours(place), 60, "no job is left")
    assert "cancelled" in said


@pytest.mark.long
def test_a_requeued_job_is_waited_for(place: Place) -> None:
    """A requeue ends the first start of a job with an exit code that is none of the run's."""
    snakemake = place.snakemake(seconds=15.0)
    wait_until(lambda: bool(place.started()), 120, "the first run has started")
    job_id = place.started()[0][1]
    assert place.cluster.exec("login", ["scontrol", "requeue", job_id]).returncode == 0
    said = ended(snakemake, 400)
    assert len(list(place.results.glob("runs/*/record.json"))) == 4
    assert len([run for run, job, _ in place.started() if job == job_id]) == 2, said
    assert len({job for _, job, _ in place.started()}) == 4, "no run has a second job"
