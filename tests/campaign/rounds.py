"""One round: a study, the command that the user types for it, and what of it is on the cluster."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.campaign.disk import Disk
from tests.minicluster import Cluster, queue
from workflow.run.plan import TAG

ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv" / "bin"
STUDY = """\
study: {name}
datasets:
  digits: {{source: sklearn-digits, encoding: raw, size: 28, shards: 2}}
base:
  {{dataset: digits, model: lenet, batch_size: 16, optimizer: {{learning_rate: 0.01}}, repeats: 1,
   steps: {{warmup: 2, measured: {steps}}}}}
axes: {{nodes: [1, 2], seed: [0, 1]}}
baseline: {{nodes: 1}}
limits: {{walltime: {walltime}, init: 60s}}
"""
LIGHT = """\
study: {name}
datasets:
  digits: {{source: sklearn-digits, encoding: raw, size: 28, shards: 2}}
programs:
  light: {{folder: {folder}, command: [sleep, "5"], launcher: ranks, events: none}}
base: {{program: light, dataset: digits, batch_size: 16, device: cpu, repeats: 1}}
axes: {{nodes: [1, 2], seed: [0, 1]}}
baseline: {{nodes: 1}}
limits: {{walltime: {walltime}, init: 60s}}
"""
"""The same without PyTorch, whose start costs seconds of a core for each rank."""
RUNS = 4
LONG = {"walltime": "10m", "steps": 30}
SHORT = {"walltime": "1m", "steps": 1000000}


class Round:
    """One study, one fault. `way`: `run`, a job per run, or `submit`, one for all."""

    def __init__(  # noqa: PLR0913
        self, cluster: Cluster, disk: Disk, way: str, fault: str, number: int, rng: random.Random, light: bool = False
    ) -> None:
        self.cluster, self.disk, self.way, self.fault, self.rng = cluster, disk, way, fault, rng
        words = queue.words_of(cluster)
        self.user = words.user
        self.endless = fault == "walltime" and words.shorten is None
        """Its runs end by their walltime only."""
        self.name = f"faults-{number}"
        home = cluster.spec.home
        self.study = home / f"{self.name}.yaml"
        folder = home / "light"
        folder.mkdir(exist_ok=True)
        text = LIGHT if light and not self.endless else STUDY
        self.study.write_text(text.format(name=self.name, folder=folder, **(SHORT if self.endless else LONG)))
        self.results = cluster.shared / "slipway" / "results" / self.name
        self.moment = "-"
        self.lost: list[str] = []
        """Nodes that lost their power or their link, or on which a node program was killed: what it had stays until the next run there."""
        self.beside: list[subprocess.Popen[bytes]] = []
        """Commands that were typed while another one worked."""
        self.log = (home / f"{self.name}.log").open("ab")

    def start(self) -> subprocess.Popen[bytes]:
        """The user's command on the login node."""
        self.command = self._typed(self.way)
        return self.command

    def start_beside(self, way: str) -> None:
        """Type a second command for the same study."""
        self.beside.append(self._typed(way))

    def _typed(self, way: str) -> subprocess.Popen[bytes]:
        site, profile = str(self.cluster.site_file), str(ROOT / "profiles" / self.cluster.spec.scheduler)
        argv = [str(BIN / "slipway"), "submit", str(self.study), "--site", site, "--wait"]
        if way == "run":
            words = ["--profile", profile, "--snakefile", str(ROOT / "Snakefile")]
            argv = [str(BIN / "snakemake"), *words, "--configfile", str(self.study), "--config", f"site={site}"]
        options: dict[str, Any] = {"cwd": self.cluster.spec.home, "stdin": subprocess.DEVNULL, "stdout": self.log, "stderr": self.log}
        return self.cluster.popen("login", argv, user=self.user, **options)

    def goes_on(self) -> bool:
        return self.command.poll() is None

    def lose(self, node: str) -> str:
        self.lost.append(node)
        return node

    def nodes_with(self, words: str) -> list[str]:
        """Nodes on which a process runs whose command line holds `words`."""
        return [node for node in self.cluster.nodes if self.pids(node, words)]

    def records(self) -> int:
        return len(list(self.results.glob("runs/*/record.json")))

    def jobs(self) -> list[str]:
        """Ids of all jobs in the queue."""
        return queue.listed(self.cluster)

    def running(self) -> list[str]:
        return queue.listed(self.cluster, running=True)

    def pids(self, node: str, words: str, program: str = "") -> list[int]:
        """Return the processes of a node whose command line holds `words`, and whose program's name begins with `program`."""
        found = []
        for pid in self.cluster.processes(node):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if words in line and Path(line.split(" ", 1)[0]).name.startswith(program):
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
