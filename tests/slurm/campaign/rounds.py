"""One round: a study, the command that the user types for it, and what of it is on the cluster."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from tests.minicluster import Cluster
from tests.slurm.campaign.disk import Disk
from workflow.run.plan import TAG

ROOT = Path(__file__).parents[3]
BIN = ROOT / ".venv" / "bin"
STUDY = """\
study: {name}
datasets:
  digits: {{source: sklearn-digits, encoding: raw, size: 28, shards: 2}}
base: {{dataset: digits, model: lenet, batch_size: 16, optimizer: {{learning_rate: 0.01}}, steps: {{warmup: 2, measured: 30}}, repeats: 1}}
axes: {{nodes: [1, 2], seed: [0, 1]}}
baseline: {{nodes: 1}}
limits: {{walltime: 10m, init: 60s}}
"""
RUNS = 4


class Round:
    """One study, one fault. `command` is what the user types."""

    def __init__(self, cluster: Cluster, disk: Disk, profile: str, number: int, rng: random.Random) -> None:
        self.cluster, self.disk, self.profile, self.rng = cluster, disk, profile, rng
        self.name = f"faults-{number}"
        home = cluster.shared / "campaign"
        home.mkdir(exist_ok=True)
        self.study = home / f"{self.name}.yaml"
        self.study.write_text(STUDY.format(name=self.name))
        self.results = cluster.shared / "slipway" / "results" / self.name
        self.moment = "-"
        self.lost: list[str] = []
        """Nodes that lost their power or their link."""
        self.log = (home / f"{self.name}.log").open("ab")

    def start(self) -> subprocess.Popen[bytes]:
        """The user's command on the login node."""
        site = str(self.cluster.site_file)
        argv = (
            [str(BIN / "slipway"), "submit", str(self.study), "--site", site, "--wait"]
            if self.profile == "slurm-allocation"
            else [
                str(BIN / "snakemake"),
                *("--profile", str(ROOT / "profiles" / "slurm"), "--configfile", str(self.study), "--config", f"site={site}"),
            ]
        )
        return self.cluster.popen("login", argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def lose(self) -> str:
        """A node, by chance."""
        self.lost.append(self.rng.choice(self.cluster.nodes))
        return self.lost[-1]

    def records(self) -> int:
        return len(list(self.results.glob("runs/*/record.json")))

    def jobs(self) -> list[str]:
        """Ids of all jobs in the queue."""
        return self.cluster.exec("login", ["squeue", "-h", "-o", "%A"]).stdout.split()

    def running(self) -> list[str]:
        return self.cluster.exec("login", ["squeue", "-h", "-t", "R", "-o", "%A"]).stdout.split()

    def pids(self, node: str, words: str) -> list[int]:
        """Processes of a node whose command line holds `words`."""
        found = []
        for pid in self.cluster.processes(node):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if words in line:
                found.append(pid)
        return found

    def tagged(self) -> list[int]:
        """Processes of any attempt of this round, on any node."""
        found = []
        for node in self.cluster.nodes:
            for pid in self.cluster.processes(node):
                try:
                    env = Path(f"/proc/{pid}/environ").read_bytes()
                except OSError:
                    continue
                if f"{TAG}=".encode() in env:
                    found.append(pid)
        return found


def wait_for(what: str, condition: Callable[[], bool], limit_s: float) -> None:
    """Until `condition()`; raises TimeoutError."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {limit_s:g} s")
        time.sleep(0.2)
