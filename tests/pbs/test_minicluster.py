"""The mini-cluster with OpenPBS: its ordinary user's jobs, a server that is lost, a node that loses its power."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from tests.pbs.conftest import USER, jobs

pytestmark = pytest.mark.slow
TWO_NODES = """\
exec >"$HOME/out" 2>&1
id -un
sort -u "$PBS_NODEFILE"
for node in $(sort -u "$PBS_NODEFILE"); do
    pbs_tmrsh "$node" /bin/sh -c 'id -un >"$0"; hostname >>"$0"; exit 7' "$HOME/from-$node"
    echo "$?"
done
"""


def do(cluster: Cluster, text: str, *options: str) -> Path:
    """Submit a job as the user, and wait until it has ended."""
    home = cluster.spec.home
    (home / "job.sh").write_text(text)
    argv = ["qsub", "-j", "oe", "-o", "/dev/null", *options, str(home / "job.sh")]
    submitted = cluster.exec("login", argv, user=USER, cwd=home, timeout=60)
    assert submitted.returncode == 0, submitted
    job = submitted.stdout.strip()
    wait_until(lambda: job not in jobs(cluster), 60.0, f"job {job} ends")
    return home


def test_a_users_job_starts_programs_on_its_nodes(cluster: Cluster) -> None:
    home = do(cluster, TWO_NODES, "-l", "select=2:ncpus=4:ngpus=2", "-l", "place=scatter")
    assert (home / "out").read_text().split() == [USER, "n1", "n2", "7", "7"]
    assert [(home / f"from-{node}").read_text().split() for node in cluster.nodes] == [[USER, "n1"], [USER, "n2"]]


def test_a_lost_server_and_a_lost_node_come_back(cluster: Cluster) -> None:
    cluster.ctld("kill")
    lost = cluster.exec("login", ["qstat"], user=USER, timeout=60)
    assert (lost.returncode, "cannot connect to server" in lost.stderr) == (255, True), lost
    cluster.ctld("start")
    cluster.kill("n2")
    wait_until(lambda: "down" in cluster.states()["n2"], 60.0, "n2 is missed")
    cluster.heal("n2")
    home = do(cluster, 'hostname >"$HOME/after"\n', "-l", "select=1:host=n2")
    assert (home / "after").read_text() == "n2\n"


SUBMITTING = """\
from cluster.schedulers.jobs import BatchJob, JobSize
from cluster.schedulers.pbs import jobs

size = JobSize(nodes=1, minutes=1, queue="workq", exclude=("n1",))
job = BatchJob(name="slipway-a.0a1b2c3d", size=size, output="/dev/null", directory="/tmp", argv=("sleep", "300"))
first, second = jobs.submit(job, 30.0), jobs.submit(job, 30.0)
for few in (16, 1):  # each by its id; all of everybody
    jobs.FEW = few
    found = jobs.our_jobs(30.0, 20.0)
    assert [job.job_id for job in found] == [first, second], found
"""


def test_a_job_gets_other_nodes_than_those_that_failed_and_is_listed_among_ours(cluster: Cluster) -> None:
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = cluster.exec("login", [sys.executable, "-c", SUBMITTING], user=USER, cwd=cluster.spec.home, env=env, timeout=120)
    assert done.returncode == 0, done
    wait_until(lambda: "(n2:" in shown(cluster), 60.0, "a job runs on n2")
    assert "(n1:" not in shown(cluster)


def shown(cluster: Cluster) -> str:
    """The nodes of each job."""
    lines = cluster.exec("login", ["qstat", "-f", "-w"], timeout=60).stdout.splitlines()
    return "\n".join(line for line in lines if "exec_vnode" in line)
