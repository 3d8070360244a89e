"""The batch script of a study: word for word as in tests/golden/slurm (UPDATE_GOLDEN=1 writes it anew), and a script that bash can read."""

import dataclasses
import json
import os
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from base.errors import ConfigError, SchedulerOutputError
from base.process import run
from cluster.schedulers.jobs import (
    JOB_ID_PLACEHOLDER,
    RUN,
    SHARD,
    BatchJob,
    JobSize,
    Work,
    is_of_study,
    job_name,
    job_words,
    jobs_of_rule,
    jobs_of_submissions,
    mark_of,
    parse_work,
    work_words,
)
from cluster.schedulers.slurm.answers import COLUMNS, QUESTION, parse_queue, plain_reason, stage_of
from cluster.schedulers.slurm.jobs import batch_script, jobs_named, sbatch_options, split_comment
from tests.cluster.builders import write_command
from tests.cluster.schedulers.slurm.squeue import squeue_job

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
    assert parse_work(comment.partition("=")[2]) == ({} if work is None else dataclasses.asdict(work))
    assert work is None or parse_work(f"{work_words(work)} docker") == dataclasses.asdict(work), "a job that an older version has submitted"
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
    assert split_comment(directives) == split


def test_a_long_comment_of_the_site_does_not_hide_the_job() -> None:
    size = JobSize(nodes=1, minutes=1, directives=(f"--comment={'ü' * 250}",))
    options = sbatch_options(dataclasses.replace(SMALL, size=size, work=WORK))
    (comment,) = (shlex.split(option)[0].partition("=")[2] for option in options if option.startswith("--comment"))
    width = next(width for key, _, width in COLUMNS if key == "comment")
    assert parse_work(comment.encode()[:width].decode(errors="replace")) == dataclasses.asdict(WORK)


@pytest.mark.parametrize("field", ["queue", "account", "qos", "constraint"])
def test_a_value_cannot_begin_another_line(field: str) -> None:
    size = dataclasses.replace(SMALL.size, **{field: "x\n#SBATCH --uid=0"})
    with pytest.raises(ConfigError, match="end of a line"):
        batch_script(dataclasses.replace(SMALL, size=size))
    with pytest.raises(ConfigError, match="end of a line"):
        batch_script(dataclasses.replace(SMALL, output="x\n#SBATCH --uid=0"))


def test_a_submission_is_known_by_its_name() -> None:
    assert is_of_study(job_name("digits", "0badcafe"), "digits")
    assert is_of_study(job_name("digits-scaling", "0badcafe"), "digits-scaling")
    assert not is_of_study(job_name("digits-scaling", "0badcafe"), "digits")
    assert not is_of_study("slipway-digits", "digits")


@pytest.mark.parametrize("values", [{"nodes": 0}, {"minutes": 0}])
def test_nothing_is_no_job(values: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        dataclasses.replace(SMALL.size, **values)


# Our jobs in Slurm's queue: a captured answer of squeue, read and said in words.


CAPTURED = json.loads((Path(__file__).parents[3] / "captured" / "slurm-22.05" / "squeue-ours.json").read_text())
JOBS = parse_queue(CAPTURED["stdout"])
MARK = "slipway=a-1234"


def test_the_captured_answer_is_to_our_question() -> None:
    assert QUESTION[:2] == tuple(CAPTURED["argv"][:2])
    assert QUESTION[2].startswith(CAPTURED["argv"][2]), "of later columns nothing is known then"
    assert [(job.job_id, job.stage, job.state) for job in JOBS] == [
        ("19", "runs", "running"),
        *((job_id, "waits", "pending") for job_id in ("20", "21", "22", "23")),
    ]
    assert (JOBS[0].nodes, JOBS[0].directory, JOBS[1].expected) == ("n[1-4]", "/tmp", 1795367792.0)


def test_each_job_is_of_its_study_and_run() -> None:
    assert {name: job.job_id for name, job in jobs_of_rule(JOBS, MARK, RUN).items()} == {"a-b-r1": "19", "a-b-r2": "20"}
    assert {name: job.job_id for name, job in jobs_of_rule(JOBS, MARK, SHARD).items()} == {"digits-0123_00001": "22"}
    assert jobs_of_rule(JOBS, "slipway=a-9999", RUN) == {}
    assert [job.job_id for job in jobs_of_submissions(JOBS, "a")] == ["21"]
    assert mark_of("a", "/x/results/a") != mark_of("a", "/y/results/a")
    again = replace(JOBS[0], job_id="30", stage="waits")
    assert jobs_of_rule((again, *JOBS), MARK, RUN)["a-b-r1"].job_id == "19", "the one that runs speaks for the run"


def test_a_job_says_why_it_waits_since_when_and_until_when() -> None:
    assert job_words(JOBS[0], 0.0) == "job 19 is running on n[1-4]"
    waits = job_words(JOBS[1], (JOBS[1].submitted or 0.0) + 125)
    assert waits.startswith("job 20 waits for 2m05s: Resources, expected to start ")
    assert "held (JobHeldUser)" in job_words(JOBS[4], 0.0)
    requeued = squeue_job(job_id="7", state="PENDING", reason="BeginTime", restarts=1)
    assert job_words(requeued, 0.0).startswith("job 7 waits, put back into the queue: BeginTime")


@pytest.mark.parametrize(
    ("reason", "hold", "words"),
    [
        ("JobHeldUser", "held", "held (JobHeldUser)"),
        ("JobHeldAdmin", "held", "held (JobHeldAdmin)"),
        ("JobHoldMaxRequeue", "held", "held (JobHoldMaxRequeue)"),
        ("job requeued in held state", "held", "held (job requeued in held state)"),
        *(
            (words, "failed", f"Slurm could not start it on its nodes ({words})")
            for words in ("launch failed requeued held", "launch_failed_requeued_held", "something_new_failed_requeued_held")
        ),
        ("Resources", "", "Resources"),
        ("PartitionTimeLimit", "", "PartitionTimeLimit: it never starts; end it, and ask for fewer nodes, a shorter walltime or another"),
    ],
)
def test_a_held_job_is_called_held(reason: str, hold: str, words: str) -> None:
    """The words of squeue 22.05, which are sentences, and of `scontrol show job`."""
    job = squeue_job(job_id="5", state="PENDING", reason=reason, started=1795367792)
    assert job.hold == hold
    assert job_words(job, 0.0).startswith(f"job 5 waits: {words}")
    assert ("expected to start" in job_words(job, 0.0)) == (not hold), "Slurm says when it could have started"
    assert squeue_job(job_id="5", state="RUNNING", reason=reason).hold == ""


def test_a_state_is_a_stage_and_an_end_has_a_word() -> None:
    assert [stage_of(state) for state in ("REQUEUE_HOLD", "CONFIGURING", "COMPLETING", "NODE_FAIL")] == ["waits", "runs", "ends", "over"]
    ends = {state: squeue_job(job_id="1", state=state).ended_by for state in ("COMPLETED", "CANCELLED", "DEADLINE", "PENDING")}
    assert ends == {"COMPLETED": None, "CANCELLED": "cancelled", "DEADLINE": "timeout", "PENDING": None}
    assert plain_reason("") == "Slurm has not looked at it yet"


def test_a_job_that_was_preempted_before_ends_as_its_state_says() -> None:
    """Slurm also sets the time of a preemption when it suspends a job, and at the begin of the job's grace time."""
    ends = {
        "COMPLETED": None,
        "FAILED": None,
        "OUT_OF_MEMORY": None,
        "CANCELLED": "cancelled",
        "TIMEOUT": "timeout",
        "PREEMPTED": "preempted",
    }
    assert {state: squeue_job(job_id="1", state=state, preempted=700).ended_by for state in ends} == ends
    assert squeue_job(job_id="1", state="RUNNING", preempted=700).ended_by is None


def test_a_time_that_no_calendar_has_is_not_known() -> None:
    far = str(10**12)
    job = squeue_job(job_id="7", state="PENDING", reason="Resources", submitted=far, started=far)
    assert (job.submitted, job.expected) == (None, None)
    assert job_words(job, 0.0) == "job 7 waits: Resources"


@pytest.mark.processes
@pytest.mark.parametrize("comment", ["für Ä".encode(), ("€" * 200).encode()[:400], b"\xff\xe2\x82", "\ufffd\u2028".encode()])
def test_columns_are_counted_in_bytes_as_squeue_counts_them(comment: bytes) -> None:
    words = {"name": "größe", "directory": "/home/jürgen/\udcfc", "end": "1795775617", "limit_s": "5:00"}
    values = {key: words.get(key, "7").encode(errors="surrogateescape") for key, _, _ in COLUMNS} | {"comment": comment}
    line = b"".join(values[key].ljust(width) for key, _, width in COLUMNS)
    answer = run(["cat"], timeout_s=60, stdin=line.decode(errors="surrogateescape")).stdout
    (job,) = parse_queue(answer)
    assert (job.name, job.directory, job.end, job.preempted) == ("größe", "/home/jürgen/?", 1795775617.0, True)


@pytest.mark.processes
def test_jobs_are_found_by_their_whole_name(commands: Path) -> None:
    (commands / "answer").write_text(CAPTURED["stdout"])
    write_command(commands / "squeue", f'echo "$*" > {commands}/asked\ncat {commands}/answer')
    assert [job.job_id for job in jobs_named("slipway-a-0badcafe", 0.0)] == ["21"]
    assert f"--states=all --user={os.getuid()} --name=slipway-a-0badcafe" in (commands / "asked").read_text()
    assert jobs_named("slipway-a", 0.0) == ()
    (commands / "answer").write_text(f"{CAPTURED['stdout']}\nwhat is this\n")
    with pytest.raises(SchedulerOutputError, match="a line of squeue cannot be read"):
        jobs_named("slipway-a-0badcafe", 0.0)
