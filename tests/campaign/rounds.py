"""One round: a study, the command that the user types for it, and what of it is on the cluster."""

import json
import os
import random
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from tests.minicluster import Cluster, ClusterError, queue
from tests.minicluster.processes import read
from tests.minicluster.waiting import wait_until
from tests.workflow.run.valid import validate_record
from workflow.run.plan import TAG

# Network storage that can be full, for a whole cluster.


class Disk:
    """A small file system of its own as network storage, which can be full: one loop device, mounted by every host of the cluster."""

    def __init__(self, cluster: Cluster, megabytes: int = 600) -> None:
        self.cluster, self.path = cluster, cluster.shared / "slipway"
        image = cluster.shared / "disk.img"
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
        found = subprocess.run(["losetup", "--find", "--show", str(image)], check=True, capture_output=True, text=True)
        self.device = found.stdout.strip()
        subprocess.run(["mount", self.device, str(self.path)], check=True)
        self.path.chmod(0o1777)
        for host in ("login", *cluster.nodes):
            self.mount(host)

    def mount(self, host: str) -> None:
        """A host has a /dev of its own."""
        number = str(os.minor(Path(self.device).stat().st_rdev))
        there = self.cluster.exec(host, ["test", "-d", f"{self.path}/lost+found"]).returncode == 0
        if not there:
            self.cluster.exec(host, ["mknod", self.device, "b", "7", number])
            self.cluster.exec(host, ["mount", self.device, str(self.path)], check=True)

    def close(self) -> None:
        """After the end of the cluster's hosts would be too late: its directory goes with them."""
        subprocess.run(["umount", "--lazy", str(self.path)], check=False)
        subprocess.run(["losetup", "--detach", self.device], check=False)


ROOT = Path(__file__).parents[2]
BIN = ROOT / ".venv" / "bin"
STUDY = """\
study: {name}
datasets:
  digits: {{source: sklearn-digits, encoding: raw, size: 28, shards: 2}}
{trained}axes: {{nodes: [1, 2], seed: [0, 1]}}
baseline: {{nodes: 1}}
limits: {{walltime: {walltime}, init: 60s}}
"""
LENET = """\
base:
  {{dataset: digits, model: lenet, batch_size: 16, optimizer: {{learning_rate: 0.01}}, repeats: 1,
   steps: {{warmup: 2, measured: {steps}}}}}
"""
LIGHT = """\
programs:
  light: {{folder: {folder}, command: [sleep, "5"], launcher: ranks, events: none}}
base: {{program: light, dataset: digits, batch_size: 16, device: cpu, repeats: 1}}
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
        numbers = SHORT if self.endless else LONG
        trained = (LIGHT if light and not self.endless else LENET).format(folder=folder, steps=numbers["steps"])
        self.study.write_text(STUDY.format(name=self.name, trained=trained, walltime=numbers["walltime"]))
        self.results = cluster.shared / "slipway" / "results" / self.name
        self.moment = "-"
        self.lost: list[str] = []
        """Nodes that lost their power or their link, or on which a node program was killed: what it had stays until the next run there."""
        self.beside: list[subprocess.Popen[bytes]] = []
        """Commands that were typed while another one worked."""
        self.log = home / f"{self.name}.log"

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
        with self.log.open("ab") as log:
            options: dict[str, Any] = {"cwd": self.cluster.spec.home, "stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
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
            line = read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace")
            if words in line and Path(line.split(" ", 1)[0]).name.startswith(program):
                found.append(pid)
        return found

    def tagged(self) -> list[int]:
        """Processes of any attempt of this round, on any node."""
        ours = f"{TAG}=".encode()
        return [pid for node in self.cluster.nodes for pid in self.cluster.processes(node) if ours in read(pid, "environ")]


# What an outside observer finds after a round.


def missing(one: Round) -> list[str]:
    """Runs without a record."""
    study = json.loads((one.results / "study.json").read_text()) if (one.results / "study.json").exists() else None
    if study is None:
        return ["study.json"]
    expected = [f"{cell['cell_id']}-r1" for cell in study["cells"]]
    return [run for run in expected if not (one.results / "runs" / run / "record.json").exists()]


def attempts(one: Round) -> list[tuple[str, str]]:
    """Status and reason of all attempts."""
    records = [json.loads(path.read_text()) for path in sorted(one.results.glob("runs/*/attempts/[!.]*/record.json"))]
    return [(record["status"], record["status_reason"]) for record in records]


def look(one: Round, words: tuple[str, ...]) -> str:
    """What an outside observer finds wrong after the end."""
    try:
        wait_until(lambda: not one.tagged(), 60, "the last processes to end")
    except ClusterError:
        return f"processes are left: {one.tagged()}"
    wrong = []
    reap = [str(BIN / "slipway"), "reap", "--site", str(one.cluster.site_file)]
    for node in one.lost:  # what it had is removed by the next run there, or by hand
        one.cluster.exec(node, [*reap, "--remove"], user=one.user, cwd=ROOT, check=True)
    for path in one.results.glob("runs/*/record.json"):
        record = json.loads(path.read_text())
        validate_record(record, str(path))
        if record["status"] != "ok" and not (record["status"] == "timeout" and "timeout" in words):
            wrong.append(f"{path.parent.name}: {record['status']}: {record['status_reason']}")
        if one.endless and record["status"] == "ok":
            wrong.append(f"{path.parent.name}: ok after a million steps")
    done = Counter(
        path.parts[-4] for path in one.results.glob("runs/*/attempts/[!.]*/record.json") if json.loads(path.read_text())["kind"] == "result"
    )
    wrong += [f"{run} was trained {count} times" for run, count in done.items() if count > 1]
    for node in one.cluster.nodes:  # what storage did not take waits there, where the run has a result of another node since
        one.cluster.exec(node, [*reap, "--push"], user=one.user, cwd=ROOT, check=True)
    wrong += [f"an attempt says {status}: {why}" for status, why in attempts(one) if status not in ("ok", *words)]
    wrong += [f"left: {path}" for path in one.results.rglob("*") if ".part-" in path.name or path.name.startswith((".lease", "lease"))]
    for node in one.cluster.nodes:
        found = one.cluster.exec(
            node, ["find", "/local/slipway/runs", "/local/slipway/leases", "-mindepth", "1", "-type", "f"]
        ).stdout.split()
        wrong += [f"left on {node}: {path}" for path in found]
    return "; ".join(wrong)
