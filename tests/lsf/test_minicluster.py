"""The mini-cluster with OpenLava: its ordinary user's jobs, an mbatchd that is lost, a node that loses its power."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.minicluster import Cluster, queue
from tests.minicluster.spec import USER
from tests.minicluster.waiting import wait_until

pytestmark = pytest.mark.slow
TWO_NODES = """\
#!/bin/bash
exec >"$HOME/out" 2>&1
id -un
for node in $(tr ' ' '\\n' <<<"$LSB_HOSTS" | sort -u); do
    from="$HOME/from-$node"
    until [ -s "$from" ]; do blaunch -z "$node" /bin/sh -c "sleep 0.2; id -un >$from; hostname >>$from"; done
    echo "$?"
done
"""


def do(cluster: Cluster, text: str, *options: str) -> Path:
    """Submit a job as the user, and wait until it has ended."""
    home = cluster.spec.home
    argv = ["bsub", "-o", "/dev/null", *options]
    submitted = cluster.exec("login", argv, user=USER, cwd=home, input=text, timeout=60)
    assert "is submitted" in submitted.stdout, submitted
    job = submitted.stdout.partition("<")[2].partition(">")[0]
    wait_until(lambda: job not in queue.listed(cluster), 60.0, f"job {job} ends")
    return home


def test_a_users_job_starts_programs_on_its_nodes(cluster: Cluster) -> None:
    """Again where blaunch has started nothing (cluster/schedulers/lsf/__init__.py)."""
    home = do(cluster, TWO_NODES, "-n", "8", "-R", "span[ptile=4]", "-m", "n1 n2")
    assert (home / "out").read_text().split() == [USER, "0", "0"]
    assert [(home / f"from-{node}").read_text().split() for node in ("n1", "n2")] == [[USER, "n1"], [USER, "n2"]]


@pytest.mark.long
def test_a_lost_server_and_a_lost_node_come_back(cluster: Cluster) -> None:
    cluster.ctld("kill")
    with pytest.raises(subprocess.TimeoutExpired):  # LSF's commands wait until it is back
        cluster.exec("login", ["bjobs"], user=USER, timeout=5)
    cluster.ctld("start")
    cluster.kill("n2")
    wait_until(lambda: cluster.states()["n2"] in ("unavail", "unreach"), 60.0, "n2 is missed")
    cluster.heal("n2")
    home = do(cluster, 'hostname >"$HOME/after"\n', "-m", "n2")
    assert (home / "after").read_text() == "n2\n"


SUBMITTING = """\
from cluster.schedulers.jobs import BatchJob, JobSize
from cluster.schedulers.lsf import jobs

size = JobSize(nodes=1, minutes=1, queue="normal", cores=4, exclude=("n1", "n3"))
job = BatchJob(name="slipway-a.0a1b2c3d", size=size, output="/dev/null", directory="/tmp", argv=("sleep", "300"))
first, second = jobs.submit(job, 30.0), jobs.submit(job, 30.0)
found = jobs.our_jobs(30.0, 20.0)
assert [job.job_id for job in found] == [first, second], found
"""


def test_a_job_gets_other_nodes_than_those_that_failed_and_is_listed_among_ours(cluster: Cluster) -> None:
    env = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = cluster.exec("login", [sys.executable, "-c", SUBMITTING], user=USER, cwd=cluster.spec.home, env=env, timeout=120)
    assert done.returncode == 0, done
    wait_until(lambda: "n2" in shown(cluster), 60.0, "a job runs on n2")
    assert not {"n1", "n3"} & shown(cluster)


def shown(cluster: Cluster) -> set[str]:
    """The nodes of all jobs."""
    listed = cluster.exec("login", ["bjobs", "-u", "all", "-noheader", "-o", "exec_host"], timeout=60).stdout
    return {word.partition("*")[2] for word in listed.split()}
