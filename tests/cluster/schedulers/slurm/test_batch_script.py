"""The batch script of a study: word for word as in tests/golden/slurm (UPDATE_GOLDEN=1 writes it anew), and a script that bash can read."""

from __future__ import annotations

import dataclasses
import os
import shlex
import subprocess
from pathlib import Path

import pytest

from base.errors import ConfigError
from cluster.schedulers.jobs import JOB_ID_PLACEHOLDER, RUN, BatchJob, JobSize, Work, is_of_study, job_name, parse_work, work_words
from cluster.schedulers.slurm.jobs import COLUMNS, batch_script, clock, owned_by_us, sbatch_options, split_comment

GOLDEN = Path(__file__).parents[3] / "golden" / "slurm"

SMALL = BatchJob(
    name="slipway-digits-0badcafe",
    size=JobSize(nodes=2, minutes=35, memory_mb=0),
    output=f"/nfs/results/digits/logs/slipway-digits-0badcafe-{JOB_ID_PLACEHOLDER}.log",
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
    output=f"/nfs/50% done/it's/logs/x-{JOB_ID_PLACEHOLDER}.log",
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


WORK = Work(mark="slipway=digits-0badcafe", rule=RUN, wildcards="lenet-r1")


@pytest.mark.parametrize("work", [None, WORK], ids=["submit and session", "run"])
def test_the_comment_of_the_site_is_kept_and_ours_is_joined_to_it(work: Work | None) -> None:
    size = JobSize(nodes=1, minutes=1, directives=("--comment=docker", "--licenses=a"))
    options = sbatch_options(dataclasses.replace(SMALL, size=size, work=work))
    (comment,) = (shlex.split(option)[0] for option in options if option.startswith("--comment"))
    assert comment == ("--comment=docker" if work is None else f"--comment=docker rule_{RUN}_wildcards_lenet-r1 slipway=digits-0badcafe")
    assert parse_work(comment.partition("=")[2]) == work
    assert work is None or parse_work(f"{work_words(work)} docker") == work, "a job that an older version has submitted"
    assert options[-1] == "--licenses=a"


@pytest.mark.parametrize(
    ("directives", "split"),
    [
        (("--comment docker",), ("docker", ())),
        (("--comment='my docker' --licenses=a", '--comment="b c"'), ("my docker b c", ("--licenses=a",))),
        (("--licenses=a --comment=x --reservation=b",), ("x", ("--licenses=a --reservation=b",))),
        (("--commentary=x", "--admin-comment=y"), ("", ("--commentary=x", "--admin-comment=y"))),
        (("--comment=", '--comment="" --licenses=a', "--comment"), ("", ("--licenses=a",))),
        (("--comm=docker", "--com other"), ("docker other", ())),
        (('--comment=a"b c"d --reservation="e f"',), ("ab cd", ("'--reservation=e f'",))),
        ((r'--comment="a\"b" --licenses=a', "--comment=x#y --licenses=b"), ('a"b x', ("--licenses=a",))),
        (('--reservation="unclosed',), ("", ('--reservation="unclosed',))),
    ],
)
def test_a_comment_is_taken_out_of_the_directives(directives: tuple[str, ...], split: tuple[str, tuple[str, ...]]) -> None:
    assert not any(owned_by_us(line) for line in directives)
    assert split_comment(directives) == split


def test_a_long_comment_of_the_site_does_not_hide_the_job() -> None:
    size = JobSize(nodes=1, minutes=1, directives=(f"--comment={'c' * 900}",))
    options = sbatch_options(dataclasses.replace(SMALL, size=size, work=WORK))
    (comment,) = (shlex.split(option)[0].partition("=")[2] for option in options if option.startswith("--comment"))
    width = next(width for key, _, width in COLUMNS if key == "comment")
    assert parse_work(comment[:width]) == WORK


def test_a_directive_is_refused_for_what_it_sets() -> None:
    assert [owned_by_us(line) for line in ("--export=NONE", "--chdir=/x", "-D /x")] == ["environment", *["working directory"] * 2]


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
