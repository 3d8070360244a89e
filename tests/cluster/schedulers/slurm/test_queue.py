"""Our jobs in Slurm's queue: a captured answer of squeue, read and said in words."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from base.errors import SchedulerOutputError
from cluster.schedulers.jobs import RUN, SHARD, job_words, jobs_of_rule, jobs_of_submissions, mark_of
from cluster.schedulers.slurm.answers import plain_reason
from cluster.schedulers.slurm.jobs import COLUMNS, QUESTION, jobs_named, known_jobs, parse_queue, queued_job, stage_of

CAPTURED = json.loads((Path(__file__).parents[3] / "captured" / "slurm-22.05" / "squeue-ours.json").read_text())
JOBS = parse_queue(CAPTURED["stdout"])
MARK = "slipway=a-1234"


def test_the_captured_answer_is_to_our_question() -> None:
    assert tuple(CAPTURED["argv"]) == (*QUESTION, "--user=0")
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
    assert waits.startswith("job 20 waits for 2m05s: waiting for nodes to become free (Resources), expected to start ")
    assert "`scancel 21`, and a shorter walltime (PartitionTimeLimit)" in job_words(JOBS[2], 0.0)
    assert "held by you (JobHeldUser); `scontrol release 23` lets it go" in job_words(JOBS[4], 0.0)
    requeued = queued_job(job_id="7", state="PENDING", reason="BeginTime", restarts=1)
    assert job_words(requeued, 0.0).startswith("job 7 waits, put back into the queue: its start time is not reached")
    assert plain_reason("QOSMaxWallDurationPerJobLimit") == "a limit of your QoS (QOSMaxWallDurationPerJobLimit)"
    assert plain_reason("AssocMaxJobsLimit") == "a limit of your account (AssocMaxJobsLimit)"


@pytest.mark.parametrize(
    ("reason", "hold", "words"),
    [
        ("JobHeldUser", "held", "held by you (JobHeldUser); `scontrol release 5` lets it go"),
        ("JobHeldAdmin", "held", "held by an administrator (JobHeldAdmin); nobody else lets it go, and `scancel 5` ends it"),
        (
            "JobHoldMaxRequeue",
            "held",
            "held, since it was put back into the queue too often (JobHoldMaxRequeue); `scontrol release 5` lets",
        ),
        ("job requeued in held state", "held", "put back into the queue, and held (job requeued in held state); `scontrol release 5` lets"),
        *(
            (words, "failed", f"Slurm could not start it on its nodes ({words}); `scontrol release 5` tries again, `scancel 5` ends it")
            for words in ("launch failed requeued held", "launch_failed_requeued_held", "something_new_failed_requeued_held")
        ),
        ("Resources", "", "waiting for nodes to become free (Resources)"),
    ],
)
def test_a_job_that_somebody_must_let_go_says_how(reason: str, hold: str, words: str) -> None:
    """The words of squeue 22.05, which are sentences, and of `scontrol show job`."""
    job = queued_job(job_id="5", state="PENDING", reason=reason, expected="1795367792")
    assert job.hold == hold
    assert job_words(job, 0.0).startswith(f"job 5 waits: {words}")
    assert ("expected to start" in job_words(job, 0.0)) == (not hold), "Slurm says when it could have started"
    assert queued_job(job_id="5", state="RUNNING", reason=reason).hold == ""


def test_a_state_is_a_stage_and_an_end_has_a_word() -> None:
    assert [stage_of(state) for state in ("REQUEUE_HOLD", "CONFIGURING", "COMPLETING", "NODE_FAIL")] == ["waits", "runs", "ends", "over"]
    ends = {state: queued_job(job_id="1", state=state).ended_by for state in ("COMPLETED", "CANCELLED by 7", "DEADLINE", "PENDING")}
    assert ends == {"COMPLETED": None, "CANCELLED by 7": "cancelled", "DEADLINE": "timeout", "PENDING": None}
    assert plain_reason("Priority") == "others are before it in the queue (Priority)"
    assert plain_reason("Nodes_required_for_job_are_DOWN,_DRAINED").startswith("nodes it needs are down")
    assert plain_reason("SomethingNew_inSlurm") == "SomethingNew inSlurm"
    assert plain_reason("") == "Slurm has not looked at it yet"


def test_a_time_that_no_calendar_has_is_not_known() -> None:
    far = str(10**12)
    job = queued_job(job_id="7", state="PENDING", reason="Resources", submitted=far, expected=far)
    assert (job.submitted, job.expected) == (None, None)
    assert job_words(job, 0.0) == "job 7 waits: waiting for nodes to become free (Resources)"


@pytest.mark.processes
def test_jobs_are_found_by_their_whole_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "answer").write_text(CAPTURED["stdout"])
    (tmp_path / "squeue").write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/asked\ncat {tmp_path}/answer\n')
    (tmp_path / "squeue").chmod(0o755)
    assert [job.job_id for job in jobs_named("slipway-a-0badcafe", 0.0)] == ["21"]
    assert "--states=all --name=slipway-a-0badcafe" in (tmp_path / "asked").read_text()
    assert jobs_named("slipway-a", 0.0) == ()
    (tmp_path / "answer").write_text(f"{CAPTURED['stdout']}\nwhat is this\n")
    with pytest.raises(SchedulerOutputError, match="a line of squeue cannot be read"):
        jobs_named("slipway-a-0badcafe", 0.0)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("nodes", "node", "ended_by"),
    [
        ("n1", "State=IDLE+DRAIN Reason=Prolog error [root@1795741876]", "not_started"),
        ("n1", "State=IDLE+DRAIN Reason=Kill task failed [root@1795741876]", "cancelled"),
        ("n1", "State=IDLE", "cancelled"),
        ("n[1-4],n", "", "cancelled"),
        ("", "State=IDLE+DRAIN Reason=Prolog error [root@1795741876]", "cancelled"),
    ],
)
def test_a_job_that_its_node_could_not_start_was_not_cancelled_by_a_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nodes: str, node: str, ended_by: str
) -> None:
    """Slurm 22.05 cancels such a job itself where it may not put it back into the queue; a job that never had nodes is another matter."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    values = {"job_id": "9", "state": "CANCELLED", "name": "slipway-a-b-r1.0a1b2c3d", "nodes": nodes}
    line = "".join(values.get(key, "").ljust(width) for key, _, width in COLUMNS)
    for name, script in (
        ("squeue", f"echo '{line}'"),
        ("scontrol", f"echo NodeName=n1 {node}" if node else "echo scontrol: error: Invalid node name >&2; exit 1"),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    assert [(job.job_id, job.ended_by) for job in known_jobs(["9"], 0.0)] == [("9", ended_by)]


def test_a_job_of_which_squeue_does_not_tell_its_restarts_is_a_job() -> None:
    values = {"job_id": "7", "state": "PENDING", "name": "slipway-a-0badcafe"}
    (job,) = parse_queue("".join(values.get(key, "").ljust(width) for key, _, width in COLUMNS))
    assert (job.job_id, job.restarts) == ("7", 0)


def test_foreign_lines_are_left_out() -> None:
    wide = "".join("\N{SNOWMAN}".ljust(width) for _, _, width in COLUMNS)
    assert parse_queue(f"{wide}\n\nslurm_load_jobs error\n{CAPTURED['stdout']}") == JOBS
