"""The batch script for LSF, as text and as what bash makes of it."""

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from base.errors import ConfigError
from cluster.schedulers import lsf
from cluster.schedulers.jobs import JOB_ID_PLACEHOLDER, RUN, SHARD, BatchJob, JobSize, Work
from cluster.schedulers.lsf import jobs
from cluster.schedulers.lsf.jobs import batch_script, bsub_options
from tests.cluster.builders import allocation, write_command

SIZE = JobSize(nodes=2, minutes=90, cores=8, memory_mb=0, queue="gpu", account="p", constraint="type==X86_64")
JOB = BatchJob(
    name="slipway-demo-0a1b2c3d",
    size=replace(SIZE, directives=("-sla gold",)),
    output=f"/nfs/with blank/a-{JOB_ID_PLACEHOLDER}.log",
    directory="/nfs",
    argv=("true",),
)
WORK = Work(mark="slipway=demo-00000000", rule=RUN, wildcards="lenet-r1")


def test_options() -> None:
    assert bsub_options(JOB) == (
        "-J slipway-demo-0a1b2c3d",
        "-n 16",
        '-R "select[type==X86_64] span[ptile=8]"',
        "-W 90",
        "-q gpu",
        "-P p",
        "-cwd /nfs",
        "-o /dev/null",
        "-x",
        "-r",
        "-sla gold",
    )


def test_a_run_travels_in_its_name_and_leaves_out_nodes_that_failed_it() -> None:
    size = replace(SIZE, exclude=("n1", "n-2"), gpus=4, memory_mb=2000, whole_nodes=False, constraint=None)
    options = bsub_options(replace(JOB, work=WORK, size=size))
    assert options[0] == '-J "slipway-demo-0a1b2c3d rule_stage_train_push_wildcards_lenet-r1 slipway=demo-00000000"'
    assert "-R \"select[hname!='n1' && hname!='n-2'] rusage[mem=2000] span[ptile=8]\"" in options
    assert "-gpu num=4/host:mode=shared:j_exclusive=yes" in options
    assert "-x" not in options


def test_the_job_of_a_shard_shares_its_node() -> None:
    assert "-x" not in bsub_options(replace(JOB, work=replace(WORK, rule=SHARD)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"size": replace(SIZE, qos="high")}, "-sla NAME"),
        ({"size": replace(SIZE, queue="a\n#BSUB -q b")}, "end of a line"),
        ({"size": replace(SIZE, account='a"b')}, "which no line for LSF can carry"),
        ({"size": replace(SIZE, account="$HOME")}, "which no line for LSF can carry"),
        ({"name": "x" * 501}, "at most 500"),
    ],
)
def test_what_no_line_can_say_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        batch_script(replace(JOB, **change))  # type: ignore[arg-type]


@pytest.mark.processes
def test_the_script_counts_its_starts_and_ignores_the_warning_of_lsf(tmp_path: Path) -> None:
    output = tmp_path / "with blank"
    output.mkdir()
    words = "echo starts=$SLIPWAY_JOB_STARTS; kill -USR2 $$; echo alive; exit 7"
    job = replace(JOB, output=str(output / f"a-{JOB_ID_PLACEHOLDER}.log"), directory=str(tmp_path), argv=("sh", "-c", words))
    for _ in range(3):
        environ = {**os.environ, "LSB_JOBID": "12", "LSB_MCPU_HOSTS": "n1 8"}
        done = subprocess.run(["bash"], input=batch_script(job), text=True, capture_output=True, check=False, timeout=30, env=environ)
        assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
    log = (output / "a-12.log").read_text().splitlines()
    assert [line for line in log if line.startswith("starts=")] == ["starts=", "starts=1", "starts=2"]
    assert log.count("alive") == 3
    assert log[0] == "slipway: job 12 starts on n1 8"


@pytest.mark.processes
def test_a_job_is_submitted_put_back_and_cancelled_by_lsfs_commands(commands: Path) -> None:
    for name, answer in (("bsub", "is submitted to queue <gpu>."), ("brequeue", "is being requeued"), ("bkill", "is being terminated")):
        write_command(commands / name, f'echo "{name} $*" >>{commands}/asked; [ {name} = bsub ] && cat\necho "Job <7> {answer}"')
    assert jobs.submit(JOB, 0.0) == "7"
    lsf.requeue(allocation("lsf"))
    jobs.cancel(("7", "8"), 0.0)
    assert (commands / "asked").read_text() == "bsub \nbrequeue 7\nbkill 7 8\n"


def test_what_lsf_does_to_the_programs_of_a_job() -> None:
    assert lsf.LIMIT_SIGNAL == signal.SIGUSR2
    environ = {"LSB_JOBID": "7", "TMPDIR": "/tmp/7", "HOSTNAME": "n1", "PWD": "/x", "SLIPWAY_A": "b"}
    assert lsf.launch_environ(environ) == {"LSB_JOBID": "7", "SLIPWAY_A": "b", "LSB_BLAUNCH_SLEEPTIME": "1"}
