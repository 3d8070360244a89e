"""One run in containers that is to be ended, and what of it can be seen on the nodes."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

from cluster.processes import state_of
from containers.engines import STORES
from tests.endings.others import Others
from tests.endings.place import GPUS, Place
from tests.minicluster import queue
from workflow.run.plan import TAG

_ID = re.compile(rb"[0-9a-f]{64}")


class One:
    """A job with one run. `submitted`: through `slipway submit`, Snakemake and all; else by the batch script alone."""

    def __init__(self, place: Place, others: Others, rng: random.Random, number: int) -> None:
        self.place, self.others, self.rng, self.number = place, others, rng, number
        self.cluster = place.cluster
        self.nodes: tuple[str, ...] = ()
        self.job = self.run_id = ""
        self.struck = ""
        """The node that the fault is done to, where it is done to one."""
        self.began = time.time()
        self.files_before = place.files_left()

    def start(self, *, submitted: bool, much: bool, deaf: bool, walltime_s: float, minutes: int, nodes: int) -> None:  # noqa: PLR0913
        if submitted:
            self.nodes = self.cluster.nodes
            self.job = self.place.submit_study(f"{self.place.engine}-{self.number}")
            return
        self.nodes = self.cluster.nodes if nodes == len(self.cluster.nodes) else (self.rng.choice(self.cluster.nodes),)
        self.run_id = self.place.one_run(nodes, walltime_s, much=much, deaf=deaf)
        self.job = self.place.batch(self.run_id, self.nodes, minutes)

    def runs(self) -> bool:
        """Whether the scheduler says that the job does."""
        return self.job in queue.listed(self.cluster, running=True)

    def listed(self) -> bool:
        """Whether the scheduler still has it."""
        return self.job in queue.listed(self.cluster)

    def order(self, command: str | None) -> None:
        """Of queue.Words, about the job."""
        queue.order(self.cluster, command, self.job)

    def log(self) -> str:
        """What the supervisor said; a submitted one says it elsewhere."""
        return "".join(path.read_text(errors="replace") for path in self.place.path.glob(f"log-{self.job}-*"))

    # -- processes

    def pids(self, *words: str, node: str | None = None) -> list[int]:
        """Those on our nodes (or one) whose command line has these words, one after the other."""
        sought = b"\0".join(word.encode() for word in words)
        return [pid for host in ((node,) if node else self.nodes) for pid in self.cluster.processes(host) if sought in read(pid, "cmdline")]

    def programs(self, *words: str) -> list[int]:
        """Those of `pids` that are Python, without the children that they fork and the srun that started them."""
        found = [pid for pid in self.pids(*words) if Path(read(pid, "cmdline").split(b"\0")[0].decode()).name.startswith("python")]
        return [pid for pid in found if (state := state_of(pid)) is not None and state.parent not in found]

    def clients(self) -> list[int]:
        """Of the engine: where it has no daemon, what begins a session below a node program, whatever it calls itself."""
        if self.place.engine in STORES:
            return self.pids(self.place.engine, "run")
        nodes = self.programs("-m", "workflow.run.node")
        words = (self.place.engine.encode(), b"Apptainer runtime", b"slipway_watchdog.py")
        pids = [pid for host in self.nodes for pid in self.cluster.processes(host) if any(word in read(pid, "cmdline") for word in words)]
        return [pid for pid in pids if (state := state_of(pid)) is not None and state.parent in nodes and begins_session(pid)]

    def ranks(self) -> list[int]:
        return [pid for host in self.nodes for pid in self.cluster.processes(host) if is_rank(read(pid, "environ"))]

    @property
    def all_ranks(self) -> int:
        return GPUS * len(self.nodes)

    def processes_left(self) -> list[str]:
        """On any node: of an attempt, of this place, of the job, or in a container that is not one of the others'."""
        path, theirs = str(self.place.path).encode(), {found.encode() for found in self.others.ids}
        own = f"/{self.place.path.name}/runs/".encode()
        steps = re.compile(rf"(slurmstepd: \[{self.job}\.|sge_shepherd-{self.job} )".encode())
        found = []
        for node in self.cluster.nodes:
            for pid in self.cluster.processes(node):
                line, environ = read(pid, "cmdline"), read(pid, "environ")
                containers = set(_ID.findall(line) + _ID.findall(read(pid, "cgroup"))) - theirs
                inside = self.place.engine not in STORES and (b"squashfuse" in line or own in read(pid, "mountinfo"))
                if f"{TAG}=".encode() in environ or path in line or path in environ or steps.match(line) or containers or inside:
                    found.append(f"{node}:{pid} {line[:100].replace(bytes(1), b' ').decode(errors='replace')}")
        return found

    # -- what else is left

    def containers_left(self) -> list[str]:
        """Of whatever name, in every state but that of one which was never started; an engine that does not answer is no proof."""
        return [f"{node}: {line}" for node, line in self._listed() if not line.endswith(" Created")]

    def take_created(self) -> list[str]:
        """Containers that were created and never started, as a client leaves them that is killed between the two: the next start there
        removes them, or `slipway reap`; here it is done by hand."""
        found = [(node, line) for node, line in self._listed() if line.endswith(" Created")]
        for node, line in found:
            self.place.told(node, "rm", line.split()[0])
        return [line for _, line in found]

    def _listed(self) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        for node in self.cluster.nodes if self.place.engine in STORES else ():
            done = self.cluster.exec(node, [self.place.engine, "ps", "--all", "--no-trunc", "--format", "{{.ID}} {{.Names}} {{.Status}}"])
            lines = done.stdout.splitlines() if done.returncode == 0 else ["- does not answer"]
            found += [(node, line) for line in lines if line.split()[0] not in self.others.ids]
        return found

    def locks_held(self) -> list[str]:
        """Leases and locks of ours that a process holds: of work directories, of images, of a shared job's nodes."""
        held = {tuple(line.split()[5].split(":")[:3]) for line in Path("/proc/locks").read_text().splitlines() if "->" not in line}
        found = []
        for node in self.cluster.nodes:
            for path in self.place.node_files(
                node, f"local/{self.place.path.name}/**/*.lock", f"tmp/slipway-*/{self.place.scheduler}-{self.job}-*/*.lock"
            ):
                try:
                    stat = path.stat()
                except OSError:
                    continue
                number = (f"{stat.st_dev >> 8 & 0xFFF:02x}", f"{stat.st_dev & 0xFF:02x}", str(stat.st_ino))
                found += [f"{node}: lock {path.name}"] if number in held else []
        return found


def read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def begins_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def is_rank(environ: bytes) -> bool:
    """A rank has its number, a node program has not."""
    return b"LOCAL_RANK=" in environ and f"{TAG}=".encode() in environ
