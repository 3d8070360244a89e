"""What Slipway's own submissions come to with each scheduler of the mini-cluster."""

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.schedulers.jobs import BatchJob, JobSize
from cluster.schedulers.sge.jobs import batch_script
from tests.minicluster import Cluster, queue
from tests.minicluster.spec import USER
from tests.minicluster.waiting import wait_until
from tests.schedulers import LONG, on

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


SUBMITTING = """\
from cluster.schedulers import jobs_of
from cluster.schedulers.jobs import BatchJob, JobSize

jobs = jobs_of({scheduler!r})
job = BatchJob(name="slipway-a.0a1b2c3d", size={size!r}, output="/dev/null", directory="/tmp", argv=("sleep", "300"))
first, second = jobs.submit(job, 30.0), jobs.submit(job, 30.0)
for few in (16, 1):  # PBS: each by its id; all of everybody
    jobs.FEW = few
    found = jobs.our_jobs(30.0, 20.0)
    assert [job.job_id for job in found] == [first, second], found
"""
SIZES = {
    "pbs": JobSize(nodes=1, minutes=1, queue="workq", exclude=("n1",)),
    "lsf": JobSize(nodes=1, minutes=1, queue="normal", cores=4, exclude=("n1", "n3")),
}
SHOWN = {"pbs": ("qstat -f -w", r"exec_vnode = \((\w+):"), "lsf": ("bjobs -u all -noheader -o exec_host", r"\*(\w+)")}


@on("pbs", "lsf", long="")
def test_a_job_gets_other_nodes_than_those_that_failed_and_is_listed_among_ours(cluster: Cluster) -> None:
    scheduler = cluster.spec.scheduler
    argv = [sys.executable, "-c", SUBMITTING.format(scheduler=scheduler, size=SIZES[scheduler])]
    done = cluster.exec("login", argv, user=USER, cwd=cluster.spec.home, env={"PYTHONPATH": str(ROOT)}, timeout=120)
    assert done.returncode == 0, done

    def shown() -> set[str]:
        command, pattern = SHOWN[scheduler]
        return set(re.findall(pattern, cluster.exec("login", command.split(), timeout=60).stdout))

    wait_until(lambda: "n2" in shown(), 60.0, "a job runs on n2")
    assert shown() == {"n2"}


@on("sge")
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


@on("sge")
def test_a_job_works_where_paths_have_colons_and_blanks(cluster: Cluster) -> None:
    """The characters that Slipway refuses (NOT_IN_PATHS) are those with which this fails."""
    place = cluster.spec.home / "n1:a b;c=d\\é"
    assert cluster.exec("login", ["mkdir", str(place)], user=USER, timeout=60).returncode == 0
    size = JobSize(nodes=1, minutes=1, queue="all.q", parallel_environment="whole 4")
    job = BatchJob(name="slipway-odd.0a1b2c3d", size=size, output=str(place / "log"), directory=str(place), argv=("pwd",))
    script = cluster.spec.home / "odd"
    script.write_text(batch_script(job))
    cluster.exec("login", ["qsub", str(script)], user=USER, timeout=60, check=True)
    wait_until(lambda: not queue.listed(cluster), 60.0, "it ends")
    assert (place / "log").read_text() == f"{place}\n"


ASK = """\
import sys
from cluster.schedulers.sge.jobs import accounting
print(sorted((job_id, record["exit_status"]) for job_id, record in accounting(sys.argv[1:], 30.0).items()))
"""


@LONG
@on("sge")
def test_one_question_tells_how_several_jobs_have_ended(cluster: Cluster) -> None:
    """By their names, since qacct takes one job or a pattern; nobody else's are among them."""
    home, jobs = cluster.spec.home, []
    for name, code in (("slipway-one.0a1b2c3d", 3), ("slipway-two.0a1b2c3d", 4), ("other", 5)):
        words = ["qsub", "-terse", "-j", "y", "-o", str(home), "-N", name, "-b", "y", "/bin/sh", "-c", f"'exit {code}'"]
        jobs.append(cluster.exec("login", words, user=USER, timeout=60).stdout.strip())

    def told(*wanted: str) -> str:
        argv = [sys.executable, "-c", ASK, *wanted]
        return cluster.exec("login", argv, user=USER, cwd=ROOT, timeout=60).stdout.strip()

    one, two, other = jobs
    wait_until(lambda: told(one, two, other) == f"[('{one}', '3'), ('{two}', '4')]", 60.0, "the accounting has both")
    assert told(other) == f"[('{other}', '5')]"
    assert told(one, "999999") == f"[('{one}', '3')]"
