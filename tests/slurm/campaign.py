"""Faults at random moments of a running study, then the same command again: `python -m tests.slurm.campaign --faults 50 --seed 1`.

Each round runs one small study on a mini-cluster, through one of the two profiles, injects one fault (after some of its four runs have a
result, and some seconds more), heals what is broken, and starts the same command until it has nothing to do. Then it looks: every run has
one whole, valid record; no process of ours, no lease, no temporary file, no half result, no job is left. Prints one line per round and the
counts; exit code 1 if any round failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from cluster import processes
from tests.minicluster import Cluster
from workflow.run.plan import TAG
from workflow.run.record_model import validate_record

ROOT = Path(__file__).parents[2]
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
ROUND_S = 420.0
AGAIN = 4


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


# Faults: each is done to a running study; the returned function heals, or is None.


def scancel(one: Round) -> Callable[[], None] | None:
    if jobs := one.jobs():
        one.cluster.exec("login", ["scancel", one.rng.choice(jobs)])
    return None


def requeue(one: Round) -> Callable[[], None] | None:
    if jobs := one.running():
        one.cluster.exec("login", ["scontrol", "requeue", one.rng.choice(jobs)])
    return None


def walltime(one: Round) -> Callable[[], None] | None:
    if jobs := one.running():
        one.cluster.exec("login", ["scontrol", "update", f"JobId={one.rng.choice(jobs)}", "TimeLimit=1"])
    return None


def _kill(one: Round, words: str, nodes: tuple[str, ...]) -> None:
    pids = [pid for node in nodes for pid in one.pids(node, words)]
    if pids:
        processes.send([one.rng.choice(pids)], signal.SIGKILL)


def slurmstepd(one: Round) -> Callable[[], None] | None:
    _kill(one, "slurmstepd", one.cluster.nodes)
    return None


def supervisor(one: Round) -> Callable[[], None] | None:
    _kill(one, "workflow.run.supervisor", one.cluster.nodes)
    return None


def node_program(one: Round) -> Callable[[], None] | None:
    _kill(one, "workflow.run.node", one.cluster.nodes)
    return None


def snakemake(one: Round) -> Callable[[], None] | None:
    _kill(one, "snakemake", ("login", *one.cluster.nodes))
    return None


def kill_node(one: Round) -> Callable[[], None] | None:
    node = one.lose()
    one.cluster.kill(node)

    def heal() -> None:
        one.cluster.heal(node)
        one.disk.mount(node)

    return heal


def cut_node(one: Round) -> Callable[[], None] | None:
    node = one.lose()
    one.cluster.cut(node)
    return lambda: one.cluster.heal(node)


def silent_controller(one: Round) -> Callable[[], None] | None:
    one.cluster.ctld("stop")
    return lambda: one.cluster.ctld("cont")


def controller_restart(one: Round) -> Callable[[], None] | None:
    one.cluster.ctld("kill")
    return lambda: one.cluster.ctld("start")


def storage_refuses(one: Round) -> Callable[[], None] | None:
    """The results' directory takes no new file (its mode is of no use against root, the attribute is)."""
    directory = one.results / "runs"
    if not directory.is_dir():
        return None
    subprocess.run(["chattr", "-R", "+i", str(directory)], check=False, capture_output=True)
    return lambda: subprocess.run(["chattr", "-R", "-i", str(directory)], check=False, capture_output=True) and None


def storage_full(one: Round) -> Callable[[], None] | None:
    """Somebody else's file takes all that is free, for every node alike."""
    filler = one.disk.path / "filler"
    with filler.open("wb") as file:
        free = os.statvfs(one.disk.path)
        with contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
        with contextlib.suppress(OSError):
            while file.write(bytes(1 << 16)):
                file.flush()
    return lambda: filler.unlink()


FAULTS: dict[str, tuple[Callable[[Round], Callable[[], None] | None], float]] = {
    "scancel": (scancel, 0),
    "requeue": (requeue, 0),
    "walltime": (walltime, 0),
    "slurmstepd": (slurmstepd, 0),
    "supervisor": (supervisor, 0),
    "node program": (node_program, 0),
    "snakemake": (snakemake, 0),
    "kill node": (kill_node, 15),
    "cut node": (cut_node, 15),
    "slurmctld silent": (silent_controller, 60),
    "slurmctld restart": (controller_restart, 5),
    "storage full": (storage_full, 10),
    "storage refuses": (storage_refuses, 10),
}
"""Name -> what to do, and for how long it lasts."""


def play(one: Round, fault: str) -> str:
    """One round; an empty text, or what is wrong."""
    act, lasts_s = FAULTS[fault]
    process = one.start()
    done, seconds = one.rng.randrange(RUNS), one.rng.uniform(0.0, 15.0)
    one.moment = f"{done} runs and {seconds:4.1f} s"
    with contextlib.suppress(TimeoutError):
        wait_for(f"{done} runs", lambda: process.poll() is not None or one.records() >= done, ROUND_S)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        heal = act(one)
        if heal is not None:
            time.sleep(one.rng.uniform(0.3, 1.0) * lasts_s)
            heal()
    try:
        for _ in range(AGAIN):
            code = process.wait(ROUND_S)
            wait_for("the queue to become empty", lambda: not one.jobs(), 120)
            if code == 0 and not missing(one):
                break
            process = one.start()
        else:
            return f"not finished after {AGAIN} times: missing {missing(one)}, exit code {process.poll()}"
        return look(one)
    except (subprocess.TimeoutExpired, TimeoutError) as error:
        process.kill()
        for job in one.jobs():
            one.cluster.exec("login", ["scancel", job])
        return f"hangs: {error}"


def missing(one: Round) -> list[str]:
    """Runs without a record."""
    study = json.loads((one.results / "study.json").read_text()) if (one.results / "study.json").exists() else None
    if study is None:
        return ["study.json"]
    expected = [f"{cell['cell_id']}-r1" for cell in study["cells"]]
    return [run for run in expected if not (one.results / "runs" / run / "record.json").exists()]


def look(one: Round) -> str:
    """What an outside observer finds wrong after the end."""
    try:
        wait_for("the last processes to end", lambda: not one.tagged(), 60)
    except TimeoutError:
        return f"processes are left: {one.tagged()}"
    wrong = []
    for node in one.lost:  # what it had is removed by the next run there, or by hand
        one.cluster.exec(node, [str(BIN / "slipway"), "reap", "--remove", "--site", str(one.cluster.site_file)], cwd=ROOT, check=True)
    for path in one.results.glob("runs/*/record.json"):
        record = json.loads(path.read_text())
        validate_record(record, str(path))
        if record["status"] not in ("ok", "timeout"):
            wrong.append(f"{path.parent.name}: {record['status']}: {record['status_reason']}")
    wrong += [f"left: {path}" for path in one.results.rglob("*") if ".part-" in path.name or path.name.startswith((".lease", "lease"))]
    for node in one.cluster.nodes:
        found = one.cluster.exec(
            node, ["find", "/local/slipway/runs", "/local/slipway/leases", "-mindepth", "1", "-type", "f"]
        ).stdout.split()
        wrong += [f"left on {node}: {path}" for path in found]
    return "; ".join(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slurm.campaign", description=__doc__)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", choices=("slurm", "slurm-allocation", "both"), default="both")
    parser.add_argument("--only", choices=sorted(FAULTS), nargs="+")
    parser.add_argument("--nodes", type=int, default=3)
    options = parser.parse_args()
    profiles = ("slurm-allocation", "slurm") if options.profile == "both" else (options.profile,)
    names = options.only or list(FAULTS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # clean up then too
    cluster = Cluster.up(f"faults{os.getpid()}", nodes=options.nodes, gpus=2, cores=2, slurmd_timeout=10)
    counts: Counter[str] = Counter()
    disk = Disk(cluster)
    try:
        for number in range(options.faults):
            fault, profile = names[number % len(names)], profiles[(number // len(names)) % len(profiles)]
            began = time.monotonic()
            one = Round(cluster, disk, profile, number, random.Random(options.seed * 1000 + number))  # noqa: S311 - no secret
            problem = play(one, fault)
            counts[f"{fault}: {'wrong' if problem else 'right'}"] += 1
            seconds = time.monotonic() - began
            sys.stdout.write(f"{number + 1:3} {profile:17} {fault:18} after {one.moment:20} {seconds:6.1f} s  {problem or 'right'}\n")
            sys.stdout.flush()
    finally:
        disk.close()
        cluster.down()
    wrong = sum(count for name, count in counts.items() if name.endswith("wrong"))
    sys.stdout.write(f"{options.faults - wrong} of {options.faults} right, seed {options.seed}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
