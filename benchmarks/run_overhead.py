"""What Slipway adds to a run as a job of a scheduler, and to one inside of a job for the whole study, against the scheduler alone.

    python -m benchmarks.run_overhead [--scheduler slurm sge pbs lsf] [--runs 10] [--ways trivial jobs allocation] [--site FILE]

On a mini-cluster of one compute node each, so that runs follow each other, or with `--site` on the cluster of this login node.

* `own start`: a job that leaves a file, by the scheduler's command: from the command to the file, looked for every 0.1 s.
* `executor`: a job of the same size whose command does nothing, by Slipway's executor: from its submission to the moment in which it would
  tell Snakemake of the end. In turns with the first, job by job, so that a busy machine disturbs both alike.
* `own, in a row`: the first again, each as soon as the file of the one before is seen: its node may not be free for the scheduler yet.
* `slipway run`: runs as jobs, one at a time: from the end of one run to the end of the next, without the run itself (`run_s`).
* `slipway submit`: the same runs inside of one job.

Needs root (tests/minicluster), but for `--site`.
"""

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import yaml

from cluster.schedulers import jobs_of
from cluster.schedulers.jobs import RUN, BatchJob, JobSize
from tests.minicluster import Cluster
from tests.minicluster.spec import USER
from workflow.dag.queue_view import poll_queue
from workflow.dag.submitting import LONGEST_S, Submissions

ROOT: Final = Path(__file__).parents[1]
WAYS: Final = ("trivial", "jobs", "allocation")
SCHEDULERS: Final = ("slurm", "sge", "pbs", "lsf")
LOOK_S: Final = 0.1
LIMIT_S: Final = 300.0
SETTLE_S: Final = 3.0
"""After a job has left the queue: a scheduler may give its node to the next one only when it looks again."""
STUDY: Final = """
study: {name}
programs:
  nothing: {{folder: program, command: [sh, "{{folder}}/nothing.sh"], launcher: single, events: none}}
base: {{program: nothing, dataset: none, batch_size: 1, gpus_per_node: 1, device: cpu, save_parameters: false, repeats: {runs}}}
axes: {{nodes: [1]}}
limits: {{walltime: 5m}}
"""


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where commands are typed: on the login node of `cluster`, or here."""

    cluster: Cluster | None
    directory: Path
    site_file: Path

    @property
    def site(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(self.site_file.read_text())
        return found

    def run(self, *argv: str) -> str:
        """The standard output."""
        if self.cluster is None:
            done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        else:
            done = self.cluster.exec("login", list(argv), cwd=ROOT, user=user_of(self.cluster))
        if done.returncode:
            sys.exit(f"{shlex.join(argv)} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return done.stdout

    def slipway(self, verb: str, name: str, runs: int, *options: str) -> list[dict[str, Any]]:
        """The records of a study of so many runs, by their ends."""
        (self.directory / f"{name}.yaml").write_text(STUDY.format(name=name, runs=runs))
        program = str(Path(sys.executable).parent / "slipway")
        self.run(program, verb, str(self.directory / f"{name}.yaml"), "--site", str(self.site_file), *options)
        paths = Path(self.site["storage"], "results", name).glob("runs/*/record.json")
        return sorted((json.loads(path.read_text()) for path in paths), key=lambda record: record["time"]["end"])


def user_of(cluster: Cluster) -> str | None:
    """Grid Engine and PBS let root submit nothing; the Python of root's jobs of Slurm is nobody else's."""
    return None if cluster.spec.scheduler == "slurm" else USER


# -- on the login node


class Alone:
    """The scheduler of a site, and jobs that do nothing."""

    def __init__(self, site: dict[str, Any], directory: Path) -> None:
        words = {key: site[key] for key in ("queue", "account", "parallel_environment") if key in site}
        gpus = 1 if site.get("gpus_per_node") else None
        self.size = JobSize(nodes=1, minutes=5, cores=site.get("cpus_per_node"), gpus=gpus, **words)
        self.scheduler, self.directory = site["scheduler"], directory

    def own_start(self) -> float:
        """Of a job that the scheduler's command has submitted, until its file is seen."""
        jobs = jobs_of(self.scheduler)
        assert jobs is not None
        token = f"{time.time_ns() % 16**8:08x}"
        mark, log = self.directory / f"peer-{token}", self.directory / f"peer-{token}.log"
        job = BatchJob(
            name=f"slipway-peer-{token}", size=self.size, output=str(log), directory=str(self.directory), argv=("touch", str(mark))
        )
        start = time.perf_counter()
        jobs.submit(job, 0.0)
        wait_until(lambda: mark.name in os.listdir(self.directory))
        return time.perf_counter() - start

    def executor(self, submissions: Submissions, ended: threading.Event) -> float:
        """The same by Slipway's."""
        ended.clear()
        start = time.perf_counter()
        submissions.watch(submissions.submit(RUN, f"trivial-{time.time_ns()}", self.size, "true"), None)
        assert ended.wait(LIMIT_S)
        return time.perf_counter() - start

    def both(self, runs: int) -> dict[str, list[float]]:
        """In turns, each when the other's job has left the node; then the first in a row."""
        ended = threading.Event()
        jobs = jobs_of(self.scheduler)
        assert jobs is not None
        queue = poll_queue(self.scheduler, jobs, LONGEST_S)
        submissions = Submissions(jobs, queue, "slipway=trivial-00000000", str(self.directory), lambda *_: ended.set())
        found: dict[str, list[float]] = {"own start": [], "executor": []}
        try:
            for _ in range(runs):
                for name, one in (("own start", self.own_start), ("executor", lambda: self.executor(submissions, ended))):
                    wait_until(lambda: not submissions.jobs.our_jobs(LIMIT_S, LIMIT_S))
                    time.sleep(SETTLE_S)
                    found[name].append(one())
            found["own, in a row"] = [self.own_start() for _ in range(runs + 1)][1:]
        finally:
            submissions.close()
        return found


def wait_until(condition: Any) -> None:
    give_up = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up, f"not within {LIMIT_S:g} s"
        time.sleep(LOOK_S)


# -- here


def between(records: Sequence[dict[str, Any]]) -> list[float]:
    """Seconds from the end of one run to the end of the next, without what the run itself took."""
    ends = [datetime.fromisoformat(record["time"]["end"]).timestamp() for record in records]
    return [after - before - record["run_s"] for before, after, record in zip(ends, ends[1:], records[1:], strict=False)]


def told(values: Iterable[float]) -> str:
    found = sorted(values)
    return f"{statistics.median(found):5.2f} s ({found[0]:.2f} to {found[-1]:.2f}, of {len(found)})"


def measure(place: Place, runs: int, ways: Sequence[str]) -> None:
    """Print one scheduler's lines."""
    (place.directory / "program").mkdir(parents=True, exist_ok=True)
    (place.directory / "program" / "nothing.sh").write_text("exit 0\n")
    title = place.site["scheduler"]
    if "trivial" in ways:
        argv = [
            sys.executable,
            "-m",
            "benchmarks.run_overhead",
            "--inside",
            str(place.site_file),
            str(place.directory),
            "--runs",
            str(runs),
        ]
        for name, values in json.loads(place.run(*argv).splitlines()[-1]).items():
            print(f"{title:>6}, {name:>14}: {told(values)}", flush=True)
    for way, verb, option in (("jobs", "run", ("--jobs", "1")), ("allocation", "submit", ("--wait",))):
        if way in ways:
            records = place.slipway(verb, f"overhead-{way}", runs + 1, *option)
            own = told(record["run_s"] for record in records)
            print(f"{title:>6}, {f'slipway {verb}':>14}: {told(between(records))} beside run_s of {own}", flush=True)


def main() -> None:
    """Measure and print."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster goes down also where a time limit ends us
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scheduler", nargs="+", choices=SCHEDULERS, default=SCHEDULERS)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--site", type=Path, help="of the cluster whose login node this is; its storage is written to")
    parser.add_argument("--inside", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside:
        file, directory = options.inside
        print(json.dumps(Alone(yaml.safe_load(file.read_text()), directory).both(options.runs)))
    elif options.site:
        directory = Path(yaml.safe_load(options.site.read_text())["storage"]) / "overhead"
        measure(Place(cluster=None, directory=directory, site_file=options.site.absolute()), options.runs, options.ways)
    else:
        for scheduler in options.scheduler:
            cluster = Cluster.up(f"over{os.getpid()}", scheduler=scheduler, nodes=1, gpus=1, cores=2)
            try:
                home = Path(cluster.shared, "overhead")
                cluster.exec(
                    "login", ["install", "-d", "-o", user_of(cluster) or "root", str(home), str(cluster.shared / "slipway")], check=True
                )
                measure(Place(cluster=cluster, directory=home, site_file=cluster.site_file), options.runs, options.ways)
            finally:
                cluster.down()


if __name__ == "__main__":
    main()
