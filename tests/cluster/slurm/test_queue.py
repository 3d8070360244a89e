"""Our jobs in Slurm's queue: a captured answer of squeue, read and said in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from cluster.schedulers.slurm.queue import COLUMNS, QUESTION, RUN, SHARD, QueuedJob, jobs_of_rule, jobs_of_submissions, mark_of, parse_queue
from cluster.schedulers.slurm.submissions import job_words, plain_reason

CAPTURED = json.loads((Path(__file__).parents[2] / "captured" / "slurm-22.05" / "squeue-ours.json").read_text())
JOBS = parse_queue(CAPTURED["stdout"])
MARK = "slipway=a-1234"


def test_the_captured_answer_is_to_our_question() -> None:
    assert tuple(CAPTURED["argv"]) == (*QUESTION, "--user=0")
    assert [(job.job_id, job.state, job.reason) for job in JOBS] == [
        ("19", "RUNNING", None),
        ("20", "PENDING", "Resources"),
        ("21", "PENDING", "PartitionTimeLimit"),
        ("22", "PENDING", "BeginTime"),
        ("23", "PENDING", "JobHeldUser"),
    ]
    assert (JOBS[0].nodes, JOBS[0].directory, JOBS[1].expected) == ("n[1-4]", "/tmp", 1795367792.0)


def test_each_job_is_of_its_study_and_run() -> None:
    assert {name: job.job_id for name, job in jobs_of_rule(JOBS, MARK, RUN).items()} == {"a-b-r1": "19", "a-b-r2": "20"}
    assert {name: job.job_id for name, job in jobs_of_rule(JOBS, MARK, SHARD).items()} == {"digits-0123_00001": "22"}
    assert jobs_of_rule(JOBS, "slipway=a-9999", RUN) == {}
    assert [job.job_id for job in jobs_of_submissions(JOBS, "a")] == ["21"]
    assert mark_of("a", "/x/results/a") != mark_of("a", "/y/results/a")
    again = replace(JOBS[0], job_id="30", state="PENDING")
    assert jobs_of_rule((again, *JOBS), MARK, RUN)["a-b-r1"].job_id == "19", "the one that runs speaks for the run"


def test_a_job_says_why_it_waits_since_when_and_until_when() -> None:
    assert job_words(JOBS[0], 0.0) == "job 19 is running on n[1-4]"
    waits = job_words(JOBS[1], (JOBS[1].submitted or 0.0) + 125)
    assert waits.startswith("job 20 waits for 2m05s: waiting for nodes to become free (Resources), expected to start ")
    assert "`scancel 21`, and a shorter walltime (PartitionTimeLimit)" in job_words(JOBS[2], 0.0)
    assert "`scontrol release 23` lets it go (JobHeldUser)" in job_words(JOBS[4], 0.0)
    requeued = QueuedJob(job_id="7", state="PENDING", reason="BeginTime", restarts=1)
    assert job_words(requeued, 0.0).startswith("job 7 waits, put back into the queue: its start time is not reached")
    assert plain_reason("QOSMaxWallDurationPerJobLimit") == "a limit of your QoS (QOSMaxWallDurationPerJobLimit)"
    assert plain_reason("AssocMaxJobsLimit") == "a limit of your account (AssocMaxJobsLimit)"


def test_foreign_lines_are_left_out() -> None:
    wide = "".join("\N{SNOWMAN}".ljust(width) for _, _, width in COLUMNS)
    assert parse_queue(f"{wide}\n\nslurm_load_jobs error\n{CAPTURED['stdout']}") == JOBS
