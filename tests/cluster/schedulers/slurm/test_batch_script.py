"""The batch script of a study: word for word as in tests/golden/slurm (UPDATE_GOLDEN=1 writes it anew), and a script that bash can read."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from base.errors import ConfigError
from cluster.schedulers.jobs import JOB_ID, BatchJob, JobSize, is_of_study, job_name
from cluster.schedulers.slurm.batch_script import batch_script, clock, sbatch_options

GOLDEN = Path(__file__).parents[3] / "golden" / "slurm"

SMALL = BatchJob(
    name="slipway-digits-0badcafe",
    size=JobSize(nodes=2, minutes=35, memory_mb=0),
    output=f"/nfs/results/digits/logs/slipway-digits-0badcafe-{JOB_ID}.log",
    directory="/home/me/slipway",
    argv=("/home/me/slipway/.venv/bin/python", "-m", "snakemake", "--resources", "nodes=2"),
)
FULL = dataclasses.replace(
    SMALL,
    size=JobSize(
        nodes=16,
        minutes=3 * 1440 + 125,
        whole_nodes=False,
        cores=24,
        memory_mb=64_000,
        gpus=4,
        queue="gpu",
        account="proj 7",
        qos="long",
        constraint="a100&ib",
        directives=("--reservation=thursdays", "--licenses=scratch:1"),
    ),
    output=f"/nfs/50% done/it's/logs/x-{JOB_ID}.log",
    directory="/home/me/my checkout",
    argv=("/opt/py thon", "-m", "snakemake", "--configfile", "/home/me/a $HOME `x`.yaml"),
    setup=("module load gcc/12", 'export PATH="$HOME/bin:$PATH"'),
)


@pytest.mark.processes
@pytest.mark.parametrize(("name", "job"), [("study-small", SMALL), ("study-full", FULL)])
def test_the_script_is_the_golden_one(name: str, job: BatchJob) -> None:
    path = GOLDEN / f"{name}.sh"
    script = batch_script(job)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(script)
    assert script == path.read_text()
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0


def test_it_ends_in_exec_and_begins_with_directives_only() -> None:
    lines = batch_script(FULL).splitlines()
    assert lines[0] == "#!/bin/bash"
    assert lines[-1].startswith("exec ")
    first_command = next(index for index, line in enumerate(lines) if line and not line.startswith("#"))
    assert not any(line.startswith("#SBATCH") for line in lines[first_command:])
    assert lines.index("export SLIPWAY_SUBMISSION=slipway-digits-0badcafe") < lines.index("module load gcc/12")


@pytest.mark.parametrize("field", ["queue", "account", "qos", "constraint"])
def test_a_value_cannot_begin_another_line(field: str) -> None:
    size = dataclasses.replace(SMALL.size, **{field: "x\n#SBATCH --uid=0"})
    with pytest.raises(ConfigError, match="end of a line"):
        batch_script(dataclasses.replace(SMALL, size=size))
    with pytest.raises(ConfigError, match="end of a line"):
        batch_script(dataclasses.replace(SMALL, output="x\n#SBATCH --uid=0"))


def test_what_is_not_stated_is_not_asked_for() -> None:
    options = " ".join(sbatch_options(SMALL))
    assert not [word for word in ("partition", "account", "qos", "constraint", "gres", "cpus-per-task") if word in options]
    assert "--exclusive" in options
    assert "--exclusive" not in sbatch_options(FULL)


@pytest.mark.parametrize(("minutes", "text"), [(1, "00:01:00"), (60, "01:00:00"), (1439, "23:59:00"), (1440, "1-00:00:00")])
def test_clock(minutes: int, text: str) -> None:
    assert clock(minutes) == text


def test_a_submission_is_known_by_its_name() -> None:
    assert is_of_study(job_name("digits", "0badcafe"), "digits")
    assert is_of_study(job_name("digits-scaling", "0badcafe"), "digits-scaling")
    assert not is_of_study(job_name("digits-scaling", "0badcafe"), "digits")
    assert not is_of_study("slipway-digits", "digits")


@pytest.mark.parametrize("values", [{"nodes": 0}, {"minutes": 0}])
def test_nothing_is_no_job(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        dataclasses.replace(SMALL.size, **values)
