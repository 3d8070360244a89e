"""The batch script: what it asks of PBS, what it takes along, and what of the site's it refuses."""

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from base.errors import ConfigError
from cluster.schedulers.jobs import JOB_ID_PLACEHOLDER, RUN, BatchJob, JobSize, Work
from cluster.schedulers.pbs.jobs import batch_script, others, qsub_options, taken_along

SIZE = JobSize(nodes=2, minutes=1563, cores=16, memory_mb=0, gpus=4, queue="gpu", account="mine", constraint="gpu_model=a100")
JOB = BatchJob(
    name="slipway-a-01234567",
    size=SIZE,
    environ=(("A", "x y"),),
    output=f"/nfs/a b/slipway-a-01234567-{JOB_ID_PLACEHOLDER}.log",
    directory="/nfs/a b",
    argv=("python", "-m", "snakemake"),
    setup=("umask 0077",),
)
WORK = Work(mark="slipway=a-1234", rule=RUN, wildcards="c-r1")


def test_the_script_of_a_study() -> None:
    assert batch_script(JOB, {}) == (
        "#!/bin/bash\n"
        "#PBS -N slipway-a-01234567\n"
        "#PBS -l select=2:ncpus=16:ngpus=4:mpiprocs=1:gpu_model=a100\n"
        "#PBS -l place=scatter:exclhost\n"
        "#PBS -l walltime=26:03:00\n"
        "#PBS -q gpu\n"
        "#PBS -A mine\n"
        "#PBS -S /bin/bash\n"
        "#PBS -r y\n"
        "#PBS -j oe\n"
        "#PBS -o /dev/null\n"
        "\n"
        "exec >>'/nfs/a b/'slipway-a-01234567-\"$PBS_JOBID\".log 2>&1\n"
        "cd '/nfs/a b' || exit\n"
        "export SLIPWAY_SUBMISSION=slipway-a-01234567\n"
        "export A='x y'\n"
        "umask 0077\n"
        "exec python -m snakemake\n"
    )


def test_a_run_says_its_work_and_a_share_of_a_node_its_memory() -> None:
    job = replace(JOB, work=WORK, size=replace(SIZE, whole_nodes=False, memory_mb=2000, directives=("-W group_list=x",)))
    options = qsub_options(job)
    assert "-v 'SLIPWAY_WORK=rule_stage_train_push_wildcards_c-r1 slipway=a-1234'" in options
    assert "-l select=2:ncpus=16:mem=2000mb:ngpus=4:mpiprocs=1:gpu_model=a100" in options
    assert "-l place=scatter" in options
    assert options[-1] == "-W group_list=x"
    assert "SLIPWAY_SUBMISSION" not in batch_script(job, {})


@pytest.mark.processes
def test_the_shell_that_submits_is_taken_along_as_it_is_but_for_secrets(tmp_path: Path) -> None:
    """In the script, which nobody else reads: `qstat -f` would show it, and OpenPBS would change quotes and backslashes."""
    odd = "a \"b\" \\ $(exit 3) 'c', \n d"
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": odd, "SLIPWAY_TOKEN": "x", "AWS_SECRET": "x", "PBS_JOBID": "1", "TMPDIR": "/tmp/x"}
    assert set(taken_along(environ)) == {"PATH", "PYTHONPATH"}
    output = f"{tmp_path}/log-{JOB_ID_PLACEHOLDER}"
    script = batch_script(replace(JOB, output=output, directory=str(tmp_path), argv=("printenv", "PYTHONPATH")), environ)
    result = subprocess.run(["bash"], input=script, text=True, check=False, env={"PBS_JOBID": "7.n0", "PATH": "/usr/bin:/bin"})
    assert result.returncode == 0
    assert (tmp_path / "log-7.n0").read_text() == f"{odd}\n"


def test_what_pbs_has_not_or_ends_a_line_is_refused() -> None:
    for size, word in (
        (replace(SIZE, qos="high"), "qos"),
        (replace(SIZE, constraint="a b"), "constraint"),
        (replace(SIZE, queue="a\nb"), "-q"),
    ):
        with pytest.raises(ConfigError, match=word):
            qsub_options(replace(JOB, size=size))
    with pytest.raises(ConfigError, match="directives"):
        qsub_options(replace(JOB, size=replace(SIZE, directives=("-a\n#PBS -q x",))))


def test_nodes_that_failed_are_left_out_by_asking_for_others() -> None:
    chunk = "ncpus=16:ngpus=4:mpiprocs=1:gpu_model=a100"
    assert f"-l select=1:host=n2:{chunk}+1:host=n4:{chunk}" in qsub_options(JOB, ("n2", "n4"))
    has = {"ncpus": 16, "ngpus": 4}
    nodes = {
        "n1": {"state": "free", "resources_available": has},
        "n2": {"state": "job-busy", "resources_available": has},
        "n3": {"state": "state-unknown,down", "resources_available": has},
        "n4": {"state": "free", "resources_available": has},
        "small": {"state": "free", "resources_available": {**has, "ngpus": 1}},
    }
    assert others(nodes, replace(SIZE, exclude=("n1",))) == ("n4", "n2")
    assert others(nodes, replace(SIZE, nodes=1, exclude=("n1", "n2"))) == ("n4",)
    assert others(nodes, replace(SIZE, exclude=("n1", "n2"))) == ()
