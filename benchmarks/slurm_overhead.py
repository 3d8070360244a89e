"""What Slipway adds to a one-node run on Slurm: seconds per run of many, both ways, against Slurm alone with the same program.

    python -m benchmarks.slurm_overhead [--runs 100] [--peer-runs 30] [--ways allocation jobs srun sbatch]

On a mini-cluster of one compute node, so runs follow each other. `allocation`: `slipway submit --wait`. `jobs`: Snakemake with
profiles/slurm. `srun`: one batch job that runs the program as a step, so many times. `sbatch`: a job each, by `sbatch --wait`. Each way is
timed from the command to its end; Slipway's ways stage, push, hash and record besides. Needs root (tests/minicluster).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from containers.frameworks import load_framework
from containers.placeholders import fill
from tests.minicluster import Cluster
from workflow.run.node.workdir import copy_library

ROOT = Path(__file__).parents[1]
STUDY = """
study: {name}
datasets:
  digits: {{source: sklearn-digits, size: 32, shards: 2, splits: {{}}}}
base: {{dataset: digits, model: lenet, batch_size: 32, steps: {{warmup: 5, measured: 20}}, save_parameters: false, repeats: {runs}}}
axes: {{nodes: [1]}}
baseline: {{nodes: 1}}
"""


class Bench:
    """A cluster of one node, and how the user's commands are started on its login node."""

    def __init__(self, cluster: Cluster, runs: int, peer_runs: int) -> None:
        self.cluster, self.runs, self.peer_runs = cluster, runs, peer_runs
        self.home = cluster.shared / "bench"
        self.home.mkdir()
        self.results = cluster.shared / "slipway" / "results"

    def seconds(self, argv: list[str]) -> float:
        start = time.perf_counter()
        done = self.cluster.exec("login", argv, cwd=ROOT)
        if done.returncode:
            sys.exit(f"{shlex.join(argv)} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return time.perf_counter() - start

    def study(self, name: str, runs: int) -> str:
        path = self.home / f"{name}.yaml"
        path.write_text(STUDY.format(name=name, runs=runs))
        return str(path)

    def allocation(self, name: str = "allocation", runs: int = 0) -> float:
        argv = [_bin("slipway"), "submit", self.study(name, runs or self.runs), "--site", str(self.cluster.site_file), "--wait"]
        return self.seconds(argv)

    def jobs(self) -> float:
        site = f"site={self.cluster.site_file}"
        study = self.study("jobs", self.runs)
        return self.seconds([_bin("snakemake"), "--profile", "profiles/slurm", "--configfile", study, "--config", site, "--quiet"])

    def program(self) -> list[str]:
        """The program as Slipway starts it, with the cell and the dataset of a run that `warm` made."""
        attempt = next(self.results.glob("warm/runs/*/attempts/1"))
        data = self.cluster.exec("n1", ["sh", "-c", "ls -d /local/slipway/datasets/digits-*"]).stdout.split()[0]
        lib = self.home / "lib"
        if not lib.exists():
            lib.mkdir()
            copy_library(lib)
        threads = str(json.loads((attempt / "cell.json").read_text())["threads"])
        environment = {"PYTHONPATH": str(lib), "OMP_NUM_THREADS": threads, "SLIPWAY_CELL": str(attempt / "cell.json"), "RANK": "0"}
        environment |= {"SLIPWAY_DATA": data, "SLIPWAY_LIB": str(lib), "SLIPWAY_OUT": "/tmp", "SLIPWAY_NODE_RANK": "0", "LOCAL_RANK": "0"}
        environment |= {
            "SLIPWAY_NUM_NODES": "1",
            "SLIPWAY_GPUS_PER_NODE": "1",
            "WORLD_SIZE": "1",
            "LOCAL_WORLD_SIZE": "1",
            "NODE_RANK": "0",
        }
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "61999"}
        spec = load_framework("pytorch")
        program = [fill(word, {"python": sys.executable, "folder": str(spec.folder)}) for word in spec.command]
        return ["env", *(f"{key}={value}" for key, value in environment.items()), *program]

    def script(self, name: str, command: str) -> str:
        path = self.home / name
        path.write_text(f"#!/bin/bash\nset -e\n{command}\n")
        return str(path)

    def srun(self) -> float:
        step = f"srun --nodes=1 --ntasks=1 {shlex.join(self.program())}"
        script = self.script("steps.sh", f"for _ in $(seq {self.peer_runs}); do\n{step}\ndone")
        return self.seconds(["sbatch", "--wait", "--exclusive", f"--output={self.home}/peer.log", "--open-mode=append", script])

    def sbatch(self) -> float:
        script = self.script("job.sh", shlex.join(self.program()))
        return sum(
            self.seconds(["sbatch", "--wait", "--exclusive", f"--output={self.home}/peer.log", "--open-mode=append", script])
            for _ in range(self.peer_runs)
        )


def _bin(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def main() -> None:
    """Measure and print."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the cluster goes down also where a time limit ends us
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--peer-runs", type=int, default=30, help="of srun and sbatch, of which one is like the other")
    parser.add_argument(
        "--ways", nargs="+", choices=("allocation", "jobs", "srun", "sbatch"), default=("allocation", "jobs", "srun", "sbatch")
    )
    options = parser.parse_args()
    cluster = Cluster.up(f"bench{os.getpid()}", nodes=1, gpus=2, cores=2)
    try:
        bench = Bench(cluster, options.runs, options.peer_runs)
        bench.allocation("warm", 1)
        for way in options.ways:
            runs = options.peer_runs if way in ("srun", "sbatch") else options.runs
            total = getattr(bench, way)()
            print(f"{way:>10}: {total / runs:.2f} s per run, {total:.1f} s for {runs}", flush=True)
        for way in ("allocation", "jobs"):
            print(steps(bench.results / way))
    finally:
        cluster.down()


def steps(results: Path) -> str:
    """Mean seconds of each step, by the records."""
    records = [json.loads(path.read_text()) for path in results.glob("runs/*/record.json")]
    if not records:
        return f"{results.name}: no records"
    names = [name for name, value in records[0]["steps_s"].items() if value is not None]
    means = {name: sum(record["steps_s"][name] or 0.0 for record in records) / len(records) for name in names}
    return f"{results.name}: " + ", ".join(f"{name} {mean:.3f} s" for name, mean in means.items())


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))
