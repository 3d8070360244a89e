"""A cluster with container daemons as a user of one engine finds it: storage, and an image."""

import json
import os
import random
import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

from cluster.processes import state_of
from cluster.schedulers import jobs_of
from cluster.schedulers.jobs import JOB_ID_PLACEHOLDER, BatchJob, JobSize
from containers import spec
from containers.engines import STORES
from containers.engines.docker_podman import remove_argv
from containers.images import pyxis_images
from tests import images, runtimes
from tests.minicluster import Cluster, queue
from tests.minicluster.hosts import environment
from tests.minicluster.processes import init_of, read
from tests.minicluster.spec import USER_ID
from tests.slurm.test_container_runs import ContainerWorld
from tests.slurm.test_scheduler import ClusterWorld
from tests.workflow.run.world import ROOT
from workflow.run.plan import TAG

STEP_S = 0.05
STEPS = 4000
"""More than any fault waits for."""
PUSHED_AFTER = 10
"""Steps of a run that shall be caught while it pushes."""
GPUS = 2
"""Of a run on each of its nodes."""


def give_pyxis(cluster: Cluster, user: str | None) -> None:
    """As an administrator does it: a line of Slurm's configuration, a slurmd that reads it, and enroot on that one's PATH, since pyxis
    takes no PATH of a job's; for `user` a place of enroot's that root has by itself. Root's trees lie on the node, the user's in a home
    that all nodes share."""
    line = f"required {runtimes.plugin()} runtime_path=/run/pyxis\n"
    cluster.spec.slurm_conf.with_name("plugstack.conf").write_text(line)
    programs = (runtimes.path_of("pyxis") or "").partition(":")[0]
    for node in cluster.nodes:
        here = f'mount -t tmpfs none /usr/local/sbin && ln -s "{programs}"/* /usr/local/sbin'
        own = "mkdir -p /local/enroot ~/.local/share/enroot && mount --bind /local/enroot ~/.local/share/enroot"
        if user is not None:
            own = f"mkdir -p /run/enroot /sys/fs/cgroup/unified && chown {user} /run/enroot"
        cluster.exec(node, ["sh", "-c", own], check=True)
        cluster.exec(node, ["sh", "-c", here], check=True)  # of this node's alone
        cluster.heal(node)


class Place(ContainerWorld):
    """Every node has the base image, from which others start theirs; the image of runs comes to them by the runs themselves."""

    def __init__(self, cluster: Cluster, name: str, engine: str, user: str | None = None) -> None:
        """`user`: whose runs they are where root's jobs are taken too."""
        self.device = "cuda" if cluster.spec.gpus else "cpu"
        self.words = queue.words_of(cluster)
        self.user = user or self.words.user
        self.scheduler = cluster.spec.scheduler
        if self.user is not None:
            self.user_id = USER_ID
        if engine in STORES:
            for host in ("login", *cluster.nodes):
                cluster.load_image(images.base_image(), host, engine=engine)
            super().__init__(cluster, name, engine)
        else:
            ClusterWorld.__init__(self, cluster, name)
            self.engine = engine
            if engine == "pyxis":
                give_pyxis(cluster, user)
            directory, own = (runtimes.path_of(engine) or "").partition(":")[0], runtimes.environment(engine)
            self.login_environ = {**own, "PATH": f"{directory}:{os.environ['PATH']}"}
            setup = [f"export PATH={shlex.quote(directory)}:$PATH", *(f"export {key}={value}" for key, value in own.items())]
            image = runtimes.image_of(engine, images.base_image())
            self.site |= {"engine": engine, "images": {"fake": str(image)}, "device": self.device, "setup": setup}
        self.site["scheduler"] = self.scheduler
        if self.device == "cuda":
            self.site["gpus_per_node"] = cluster.spec.gpus
        self.user_limits = dict(self.limits)
        self.cell()  # pinning wants a cell
        self.pin()

    def one_run(self, nodes: int, walltime_s: float, *, much: bool, deaf: bool) -> str:
        """A run of the fake framework, in study.json; with `much`, soon over and long pushed; with `deaf`, its ranks ignore TERM."""
        self.limits = {**self.user_limits, "walltime_s": walltime_s, "init_s": 60.0}
        do = {"0": [PUSHED_AFTER, "much"]} if much else {str(rank): [1, "deaf"] for rank in range(nodes * GPUS)} if deaf else {}
        run_id = self.cell(nodes=nodes, each=GPUS, measured=PUSHED_AFTER if much else STEPS, step_s=STEP_S, do=do)
        self.cells[-1]["device"] = self.device
        self.write()
        return run_id

    def batch(self, run_id: str, nodelist: tuple[str, ...], minutes: int = 5) -> str:
        """The job that a profile makes of a run, without the Snakemake in it; its id."""
        if self.user is not None:
            for path in (self.path, *self.path.rglob("*")):
                os.chown(path, USER_ID, USER_ID, follow_symlinks=False)
        if self.scheduler != "slurm":
            environ = {"SLIPWAY_TEST_WORLD": str(self.path), "PYTHONPATH": str(ROOT)}
            return self.submit_as_user(self.path, self.argv(run_id), nodelist, minutes, environ)
        options = (
            "--ntasks-per-node=1",
            "--cpus-per-task=2",
            *((f"--gres=gpu:{GPUS}",) if self.device == "cuda" else ()),
            f"--time={minutes}",
        )
        nodes = (f"--nodes={len(nodelist)}", f"--nodelist={','.join(nodelist)}")
        return self.submit(self.script(f"exec {self.supervisor(run_id)}"), *nodes, *options)

    def submit(self, script: Path, *options: str) -> str:
        """To Slurm, as whose runs they are."""
        argv = ["sbatch", "--parsable", f"--output={self.path}/log-%j-%t", *options, str(script)]
        return str(self.cluster.exec("login", argv, user=self.user, cwd=self.path, check=True).stdout.strip())

    def submit_as_user(self, place: Path, argv: list[str], nodes: tuple[str, ...], minutes: int, environ: Mapping[str, str]) -> str:
        """A job of the cluster's ordinary user by Slipway's own script, which leaves room for others on its nodes; its id."""
        jobs = jobs_of(self.scheduler)
        assert jobs is not None
        path = environment(self.cluster.spec, user=self.words.user)["PATH"]
        only = None if len(nodes) > 1 else (self.words.on_node or "").format(node=nodes[0])
        size = JobSize(nodes=len(nodes), minutes=minutes, cores=1, whole_nodes=False, parallel_environment="node 1", constraint=only)
        job = BatchJob(
            name="slipway-ending.00000000",
            size=size,
            environ=(*environ.items(), ("PATH", path)),
            output=f"{place}/log-{JOB_ID_PLACEHOLDER}-0",
            directory=str(place),
            argv=tuple(argv),
        )
        script = place / "job.sh"
        script.write_text(jobs.script(job))
        done = self.cluster.exec("login", [jobs.SERVER.submit[0]], input=script.read_text(), user=self.words.user, cwd=place, timeout=60)
        found = re.search(r"[jJ]ob <?(\d+)[ >]|^(\d+\.\w+)$", done.stdout, re.MULTILINE)
        if found is None:
            raise RuntimeError(f"{jobs.SERVER.submit[0]} said {done.stdout!r} {done.stderr!r}")
        return found[1] or found[2]

    def forget_images(self) -> None:
        """The nodes load the pinned image again, whatever they had."""
        for node in self.cluster.nodes:
            if self.engine not in STORES:
                for file in self.node_files(node, f"local/{self.path.name}/images/*"):
                    file.unlink()
                continue
            for image in self.ours(node):
                self.told(node, "rmi", "--force", image)

    def halves(self) -> list[str]:
        """What pyxis has unpacked of an image that has no mark."""
        found = []
        for node in self.cluster.nodes if self.engine == pyxis_images.ENGINE else ():
            listed = self.cluster.exec(node, ["enroot", "list"], env=dict(self.login_environ), check=True).stdout.split()
            marks = self.node_files(node, f"local/{self.path.name}/images/*.{pyxis_images.ENGINE}.json")
            whole = [f"-{path.name.partition('.')[0]}-" for path in marks]
            found += [f"{node}: {name}" for name in listed if not any(short in name for short in whole)]
        return found

    def ends(self, since: float) -> list[tuple[str, str]]:
        """Status and reason of the attempts that were recorded since that moment."""
        paths = self.storage.glob("results/*/runs/*/attempts/[!.]*/record.json")
        records = [json.loads(path.read_text()) for path in paths if path.stat().st_mtime >= since]
        return [(record["status"], record["status_reason"]) for record in records]

    def files_left(self) -> set[str]:
        """Work directories and leases of datasets, whoever holds them."""
        name = self.path.name
        patterns = (f"local/{name}/runs/*", f"local/{name}/leases/*/*.json")
        return {f"{node}:{path.name}" for node in self.cluster.nodes for path in self.node_files(node, *patterns)}

    def node_files(self, node: str, *patterns: str) -> list[Path]:
        """As the node sees its own disk."""
        root = Path(f"/proc/{init_of(self.cluster.spec, node)}/root")
        return [path for pattern in patterns for path in root.glob(pattern)]


# Containers of others on every node, which must live through all that is done to ours: nobody's, another user's, another living job's.


BACK_S = 60.0


class Others:
    """Per node three containers, known by id and by when they were started; and a job that runs all the time."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.job = self._submit()
        marked: dict[str, dict[str, str]] = {
            "nobody": {},
            "user": {spec.TAG: "theirs-r1-a1-00000000", spec.JOB: f"{place.scheduler}:999999:0", spec.USER: "12345"},
            "job": {spec.TAG: "other-r1-a1-00000000", spec.JOB: f"{place.scheduler}:{self.job}:0", spec.USER: str(place.user_id)},
        }
        self.started: dict[str, dict[str, str]] = {}
        """Node -> id -> moment."""
        for node in place.cluster.nodes if place.engine in STORES else ():
            for name, values in marked.items():
                words = [word for label, value in values.items() for word in ("--label", f"{label}={value}")]
                restart = ["--restart", "always"] if place.engine == "docker" else []
                options = ["--detach", "--network", "host", *restart, *(["--init"] if restart else []), "--name", f"others-{name}", *words]
                place.told(node, "run", *options, images.BASE, "sleep", "100000")
            self.started[node] = self.look(node)

    def _submit(self) -> str:
        if self.place.scheduler != "slurm":
            return self.place.submit_as_user(self.place.cluster.spec.home, ["sleep", "100000"], self.place.cluster.nodes, 120, {})
        nodes = len(self.place.cluster.nodes)
        options = [f"--nodes={nodes}", "--ntasks-per-node=1", "--cpus-per-task=1", "--mem=100", "--output=/dev/null"]
        done = self.place.cluster.exec("login", ["sbatch", "--parsable", *options, "--wrap", "exec sleep 100000"], check=True)
        return str(done.stdout.strip())

    def remove(self) -> None:
        """By id."""
        for node, found in self.started.items():
            self.place.told(node, *remove_argv(self.place.engine, "")[1:-1], *found)
        queue.order(self.place.cluster, self.place.words.cancel, self.job)

    @property
    def ids(self) -> set[str]:
        return {found for node in self.started.values() for found in node}

    def look(self, node: str) -> dict[str, str]:
        """Those that run there now."""
        ids = self.place.told(node, "ps", "--quiet", "--no-trunc", "--filter", "name=others-").split()
        if not ids:
            return {}
        told = self.place.told(node, "inspect", "--format", "{{.Id}} {{.State.Running}} {{.State.StartedAt}}", *ids)
        words = [line.split(" ", 2) for line in told.splitlines()]
        return {found: moment for found, running, moment in words if running == "true"}

    def wrong(self, restarted: str | None) -> list[str]:
        """Which are not as they were. On the node `restarted` dockerd has ended, and with it, without live-restore, all its containers:
        there they are the same containers, started again by the daemon."""
        found = []
        for node, before in self.started.items():
            now = self.look(node)
            give_up = time.monotonic() + BACK_S
            while node == restarted and set(now) != set(before) and time.monotonic() < give_up:
                time.sleep(0.3)
                now = self.look(node)
            if now != before and not (node == restarted and set(now) == set(before)):
                found.append(f"containers of others on {node}: {before} became {now}")
            if set(now) == set(before):
                self.started[node] = now
        return found


# One run in containers that is to be ended, and what of it can be seen on the nodes.


_ID = re.compile(rb"[0-9a-f]{64}")


class One:
    """A job with one run, by the batch script alone. How submitted studies end: tests/campaign."""

    def __init__(self, place: Place, others: Others, rng: random.Random) -> None:
        self.place, self.others, self.rng = place, others, rng
        self.cluster = place.cluster
        self.nodes: tuple[str, ...] = ()
        self.job = self.run_id = ""
        self.struck = ""
        """The node that the fault is done to, where it is done to one."""
        self.began = time.time()
        self.files_before = place.files_left()

    def start(self, *, much: bool, deaf: bool, walltime_s: float, minutes: int, nodes: int) -> None:
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
        """What the supervisor said."""
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


def begins_session(pid: int) -> bool:
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def is_rank(environ: bytes) -> bool:
    """A rank has its number, a node program has not."""
    return b"LOCAL_RANK=" in environ and f"{TAG}=".encode() in environ
