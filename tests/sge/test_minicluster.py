"""The mini-cluster with Grid Engine: its ordinary user's jobs, a controller that is lost, a node that loses its power."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.schedulers.jobs import BatchJob, JobSize
from cluster.schedulers.sge.jobs import batch_script
from tests.minicluster import Cluster
from tests.minicluster.waiting import wait_until
from tests.sge.conftest import USER

pytestmark = pytest.mark.slow
TWO_NODES = """\
for node in $(cut -d' ' -f1 "$PE_HOSTFILE" | sort); do
    echo "word for $node" | qrsh -inherit "$node" /bin/sh -c "'id -un; hostname; cat'"
done
"""


def do(cluster: Cluster, *words: str) -> None:
    """Submit a job as the user, and wait until it has ended. `qsub -sync y` may wait for ever once qmaster was started again."""
    submitted = cluster.exec("login", ["qsub", "-terse", "-j", "y", *words], user=USER, timeout=60)
    job = submitted.stdout.strip()
    assert job.isdecimal(), submitted
    wait_until(lambda: "do not exist" in cluster.exec("login", ["qstat", "-j", job], timeout=60).stderr, 60.0, f"job {job} ends")


def test_a_users_job_starts_programs_on_its_nodes(cluster: Cluster) -> None:
    script = cluster.spec.home / "two-nodes.sh"
    script.write_text(TWO_NODES)
    do(cluster, "-o", str(cluster.spec.home / "out"), "-pe", "whole", "8", str(script))
    assert (cluster.spec.home / "out").read_text().split("\n") == [USER, "n1", "word for n1", USER, "n2", "word for n2", ""]


def test_a_lost_controller_and_a_lost_node_come_back(cluster: Cluster) -> None:
    cluster.ctld("kill")
    lost = cluster.exec("login", ["qstat"], user=USER, timeout=60)
    assert (lost.returncode, "unable to send message to qmaster" in lost.stderr) == (1, True), lost
    cluster.ctld("start")
    cluster.kill("n2")
    wait_until(lambda: cluster.states()["n2"] == "u", 60.0, "n2 is missed")
    cluster.heal("n2")
    do(cluster, "-o", str(cluster.spec.home), "-l", "h=n2", "-N", "after", "-b", "y", "/bin/hostname")
    (said,) = cluster.spec.home.glob("after.o*")
    assert said.read_text() == "n2\n"


def test_a_job_that_leaves_out_more_nodes_than_there_are_others_is_refused(cluster: Cluster) -> None:
    size = JobSize(nodes=2, minutes=1, queue="all.q", parallel_environment="whole 4")
    home = cluster.spec.home
    job = BatchJob(name="slipway-none.0a1b2c3d", size=size, output=str(home / "none.log"), directory=str(home), argv=("true",))
    for name, exclude in (("all", ()), ("none", ("n1",))):
        (home / name).write_text(batch_script(replace(job, size=replace(size, exclude=exclude))))
    assert cluster.exec("login", ["qsub", str(home / "all")], user=USER, cwd=home, timeout=60).returncode == 0
    refused = cluster.exec("login", ["qsub", str(home / "none")], user=USER, cwd=home, timeout=60)
    assert refused.returncode != 0
    assert "no suitable queues" in refused.stderr


def test_a_job_works_where_paths_have_colons_and_blanks(cluster: Cluster) -> None:
    """The characters that Slipway refuses (NOT_IN_PATHS) are those with which this fails."""
    place = cluster.spec.home / "n1:a b;c=d\\é"
    assert cluster.exec("login", ["mkdir", str(place)], user=USER, timeout=60).returncode == 0
    size = JobSize(nodes=1, minutes=1, queue="all.q", parallel_environment="whole 4")
    job = BatchJob(name="slipway-odd.0a1b2c3d", size=size, output=str(place / "log"), directory=str(place), argv=("pwd",))
    script = cluster.spec.home / "odd"
    script.write_text(batch_script(job))
    do(cluster, str(script))
    assert (place / "log").read_text() == f"{place}\n"


ASK = """\
import sys
from cluster.schedulers.sge.jobs import accounting
print(sorted((job_id, record["exit_status"]) for job_id, record in accounting(sys.argv[1:], 30.0).items()))
"""


@pytest.mark.long
def test_one_question_tells_how_several_jobs_have_ended(cluster: Cluster) -> None:
    """By their names, since qacct takes one job or a pattern; nobody else's are among them."""
    home, jobs = cluster.spec.home, []
    for name, code in (("slipway-one.0a1b2c3d", 3), ("slipway-two.0a1b2c3d", 4), ("other", 5)):
        words = ["qsub", "-terse", "-j", "y", "-o", str(home), "-N", name, "-b", "y", "/bin/sh", "-c", f"'exit {code}'"]
        jobs.append(cluster.exec("login", words, user=USER, timeout=60).stdout.strip())

    def told(*wanted: str) -> str:
        argv = [sys.executable, "-c", ASK, *wanted]
        return cluster.exec("login", argv, user=USER, cwd=Path(__file__).parents[2], timeout=60).stdout.strip()

    one, two, other = jobs
    wait_until(lambda: told(one, two, other) == f"[('{one}', '3'), ('{two}', '4')]", 60.0, "the accounting has both")
    assert told(other) == f"[('{other}', '5')]"
    assert told(one, "999999") == f"[('{one}', '3')]"
