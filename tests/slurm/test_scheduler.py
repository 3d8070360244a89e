"""Runs on a real Slurm: in a job of their own and side by side in one, and what the scheduler does to them."""

import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.schedulers.jobs import QueuedJob
from cluster.schedulers.slurm.answers import QUESTION, parse_queue
from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from tests.workflow.run.world import PATIENCE_S, ROOT, World

pytestmark = pytest.mark.slow


class ClusterWorld(World):
    """A world on the cluster's shared storage; each node has a cache of its own."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        path = Path(cluster.spec.shared) / name
        path.mkdir()
        super().__init__(path)
        self.site |= {"scheduler": "slurm", "cache": {"path": f"/local/{name}", "max_bytes": None}, "deadline_margin_s": 2.0}

    def wait_for(self, condition: Callable[[], Any], limit_s: float = PATIENCE_S) -> Any:
        """Less and less often: each look is a command on the cluster, or at all processes of a node."""
        found: list[Any] = []

        def holds() -> bool:
            found[:] = [condition()]
            return bool(found[0])

        wait_until(holds, limit_s, f"something comes of {condition}")
        return found[0]

    def script(self, *lines: str) -> Path:
        path = self.path / "job.sh"
        path.write_text("\n".join(["#!/bin/bash", f"cd {ROOT}", f"export SLIPWAY_TEST_WORLD={self.path}", *lines, ""]))
        return path

    def supervisor(self, run_id: str) -> str:
        return shlex.join(self.argv(run_id))

    def submit(self, script: Path, *options: str) -> str:
        argv = ["sbatch", "--parsable", "--cpus-per-task=4", f"--output={self.path}/log-%j-%t", *options, str(script)]
        done = self.cluster.exec("login", argv, check=True)
        return done.stdout.strip()

    def job(self, job_id: str) -> QueuedJob | None:
        argv = [*QUESTION, "--states=all", f"--jobs={job_id}"]
        return next(iter(parse_queue(self.cluster.exec("login", argv, env={"SLURM_TIME_FORMAT": "%s"}).stdout)), None)

    def ended(self, job_id: str) -> QueuedJob:
        found: QueuedJob = self.wait_for(
            lambda: (job := self.job(job_id)) is not None and job.state in ("completed", "failed", "cancelled") and job
        )
        return found

    def begin_again(self, job_id: str) -> None:
        """Once it is back in the queue. Slurm lets it wait longer: in the second in which it revoked the credential of the first start it
        would revoke that of the next, and call the job failed."""
        self.wait_for(lambda: (found := self.job(job_id)) is not None and found.state == "pending")
        self.cluster.exec("login", ["scontrol", "update", f"JobId={job_id}", "StartTime=now+3"], check=True)

    def log(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.path.glob("log-*")))

    def ranks(self, node: str) -> list[int]:
        """Ranks that run on a node."""
        found = []
        for pid in self.cluster.processes(node):
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if b"LOCAL_RANK=" in environ and self.path.name.encode() in environ:
                found.append(pid)
        return found

    def node_program(self, node: str) -> int:
        """The process of the node program on a node, whose srun runs on the first node too."""
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in self.cluster.processes(node)}
        (found,) = (pid for pid, words in commands.items() if words[1:4] == [b"-P", b"-m", b"workflow.run.node"])
        return found

    def stays(self) -> list[str]:
        """What must not be there when all is over."""
        pids = [
            f"process {pid} of {node}" for node in ("n1", "n2", "n3") for pid in self.cluster.processes(node) if pid in self.processes()
        ]
        return pids + [
            str(path) for pattern in ("**/lease.json", "**/.lease-after-*", "**/.*.part-*") for path in self.storage.glob(pattern)
        ]


@pytest.fixture
def world(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[ClusterWorld]:
    world = ClusterWorld(cluster, f"w{os.getpid()}-{abs(hash(request.node.name)) % 10**6}")
    yield world
    cluster.exec("login", ["scancel", "--user", "root"])
    world.wait_for(lambda: not cluster.exec("login", ["squeue", "--noheader"]).stdout.strip())
    for node in ("n1", "n2", "n3"):
        cluster.exec(node, ["rm", "-rf", f"/local/{world.path.name}"])


def test_a_run_in_its_own_job_gets_its_nodes_and_reads_its_grant_back(world: ClusterWorld) -> None:
    world.site |= {"gpus_per_node": 2}
    run_id = world.cell(nodes=2, each=2)
    job = world.submit(world.script(f"exec {world.supervisor(run_id)}"), "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:2", "--time=5")
    assert world.ended(job).state == "completed", world.log()
    record = world.record(run_id)
    assert (record["status"], record["scheduler"], record["job_id"], record["restart_count"]) == ("ok", "slurm", job, 0)
    assert [node["name"] for node in record["nodes"]] == [node["hostname"] for node in record["nodes"]] == ["n1", "n2"]
    assert record["scheduler_version"].startswith("22.05")
    assert record["steps_s"]["assign"] is not None
    assert record["oversubscribed"] == (len(os.sched_getaffinity(0)) < 4)
    assert world.stays() == []


def test_fewer_gpus_or_nodes_than_asked_are_refused_by_name(world: ClusterWorld) -> None:
    world.site |= {"gpus_per_node": 2}
    run_id, wide = world.cell(nodes=1, each=2), world.cell(nodes=2)
    supervisors = (f"{world.supervisor(run_id)}; echo ended with $?", f"{world.supervisor(wide)}; echo ended with $?")
    job = world.submit(world.script(*supervisors), "--nodes=1", "--gres=gpu:1", "--time=5")
    world.ended(job)
    assert "2 nodes were asked, 1 granted (n1); submit it with --nodes=2" in world.log()
    assert world.log().count("ended with 14") == 2, world.log()
    assert not (world.run_dir(wide) / "lease.json").exists()


def test_runs_side_by_side_take_different_nodes_and_wait_for_free_ones(world: ClusterWorld) -> None:
    """And repeats of a spread submission run on nodes of their own, one after the other when all are free: without sets each would take
    the first node again."""
    world.repeats = 2
    runs = [world.cell(nodes=2), world.cell(), world.cell(nodes=3), world.cell(nodes=2), world.cell()]
    commands = [f"{world.supervisor(run_id)} &" for run_id in runs]
    spread = [run_id := world.cell(), run_id.replace("-r1", "-r2")]
    later = ["export SLIPWAY_NODE_SETS=2", *map(world.supervisor, spread)]
    script = world.script("export SLIPWAY_SUBMISSION=test", *commands, "wait", *later)
    job = world.submit(script, "--nodes=3", "--ntasks-per-node=1", "--time=5")
    assert world.ended(job).state == "completed", world.log()
    spans = []
    for run_id in runs:
        record = world.record(run_id)
        assert (record["status"], record["job_id"]) == ("ok", job), world.log()
        spans += [(node["name"], record["time"]["start"], record["steps_s"]["assign"], record["time"]["end"]) for node in record["nodes"]]
    assert len(spans) == 9
    assert sorted(node["name"] for run_id in spread for node in world.record(run_id)["nodes"]) == ["n1", "n2"]
    assert world.stays() == []


def test_a_killed_supervisor_s_nodes_stay_taken_until_its_step_has_ended(world: ClusterWorld) -> None:
    first, second = world.cell(measured=2000, step_s=0.05), world.cell()
    lines = (
        f"{world.supervisor(first)} & one=$!",
        f"while [ ! -e {world.path}/go ]; do sleep 0.1; done",
        "kill -9 $one",
        world.supervisor(second),
    )
    job = world.submit(world.script("export SLIPWAY_SUBMISSION=test", *lines), "--nodes=1", "--time=5")
    world.wait_for(lambda: world.ranks("n1"))
    (world.path / "go").touch()
    assert world.ended(job).state == "completed", world.log()
    assert world.record(second)["status"] == "ok"
    assert not world.ranks("n1")


def test_scancel_ends_a_run_with_a_record_and_nothing_stays(world: ClusterWorld) -> None:
    run_id = world.cell(nodes=2, measured=2000, step_s=0.05)
    job = world.submit(world.script(f"exec {world.supervisor(run_id)}"), "--nodes=2", "--ntasks-per-node=1", "--time=5")
    world.wait_for(lambda: world.ranks("n1") and world.ranks("n2"))
    world.cluster.exec("login", ["scancel", job], check=True)
    world.wait_for(lambda: (world.run_dir(run_id) / "attempts" / "1" / "record.json").exists())
    record = world.record(run_id, 1)
    assert record["status"] == "cancelled", world.log()
    assert "the job was cancelled" in record["status_reason"]
    world.wait_for(lambda: not world.stays())


@pytest.mark.parametrize("shared", [False, True], ids=["a job of its own", "a job that runs share"])
def test_a_run_whose_job_holds_the_node_that_it_lost_before_trains_in_its_second_attempt(world: ClusterWorld, shared: bool) -> None:
    run_id = world.cell(nodes=2, measured=100, step_s=0.05)
    way = "export SLIPWAY_SUBMISSION=test" if shared else "unset SLIPWAY_SUBMISSION"
    lines = (way, world.supervisor(run_id), f"exec {world.supervisor(run_id)}")
    job = world.submit(world.script(*lines), "--nodes=2", "--nodelist=n1,n2", "--ntasks-per-node=1", "--time=5")
    world.wait_for(lambda: world.ranks("n1") and world.ranks("n2"))
    os.kill(world.node_program("n1"), 9)
    assert world.ended(job).state == "completed", world.log()
    first, second = world.record(run_id, 1), world.record(run_id, 2)
    assert (first["status"], first["failed_nodes"]) == ("node_lost", ["n1"]), world.log()
    assert (second["status"], [node["name"] for node in second["nodes"]]) == ("ok", ["n2", "n1"]), world.log()
    assert [node["name"] for node in second["nodes"]] == [node["hostname"] for node in second["nodes"]]
    assert world.stays() == []


def test_a_run_begins_and_ends_while_slurmctld_is_silent(world: ClusterWorld) -> None:
    run_id = world.cell(measured=20, step_s=0.05)
    go = f"while [ ! -e {world.path}/go ]; do sleep 0.1; done"
    job = world.submit(world.script(go, f"{world.supervisor(run_id)}; echo ended with $?"), "--nodes=1", "--time=5")
    world.wait_for(lambda: (found := world.job(job)) is not None and found.state == "running")
    try:
        world.cluster.ctld("stop")
        (world.path / "go").touch()
        world.wait_for(lambda: "does not answer" in world.log())
        world.cluster.ctld("cont")
        world.wait_for(lambda: world.ranks("n1"))
        world.cluster.ctld("stop")
        world.wait_for(lambda: "ended with" in world.log())
    finally:
        world.cluster.ctld("cont")
    assert "ended with 0" in world.log(), world.log()
    assert world.record(run_id)["status"] == "ok"
