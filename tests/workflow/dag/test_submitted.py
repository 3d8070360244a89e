"""When a submitted job is over: by its exit file, by the queue, by what the scheduler says of a job that is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.schedulers.jobs import QueuedJob, Work
from workflow.dag.queue_view import QueueView
from workflow.dag.watched_jobs import Submitted, end_words, is_over, step

JOB = Submitted(
    job_id="7", name="slipway-a-r1.0badcafe", work=Work(mark="slipway=a-1", rule="r", wildcards="a-r1"), directory="/r", asked=10.0
)
QUEUED = QueuedJob(job_id="7", stage="runs", state="running")
SILENT = QueueView(jobs=(QUEUED,), began=9.0, silent_s=1e6)
GONE = QueueView(began=30.0)


def view(began: float, *jobs: QueuedJob) -> QueueView:
    return QueueView(jobs=jobs, began=began)


def test_an_exit_code_of_0_is_an_end_whatever_the_queue_says() -> None:
    for seen in (view(30.0, QUEUED), GONE, SILENT, QueueView()):
        assert step(JOB, 0, seen, 31.0)[0] == "done"


def test_a_scheduler_that_is_silent_or_was_asked_before_says_nothing() -> None:
    for seen in (SILENT, QueueView(), view(9.0)):
        assert step(JOB, None, seen, 1e6)[0] == "goes on"


def test_another_exit_code_counts_when_the_queue_has_forgotten_the_job() -> None:
    found, job = step(JOB, 3, view(30.0, QUEUED), 31.0)
    assert (found, job.asked) == ("goes on", 31.0), "it may be put back into the queue"
    assert step(job, 3, GONE, 33.0)[0] == "goes on", "what was asked before the file was seen says nothing of a requeue"
    assert step(job, None, view(34.0, replace(QUEUED, stage="waits")), 35.0)[0] == "goes on"
    found, job = step(job, 3, view(34.0), 35.0)
    assert found == "failed"
    assert is_over(job, None, 35.0)
    assert not is_over(job, QUEUED, 35.0)


def test_a_job_without_an_exit_file_is_waited_for() -> None:
    found, job = step(JOB, None, GONE, 31.0)
    assert (found, job.gone) == ("gone", 31.0)
    again = step(job, None, GONE, 40.0)[1]
    assert again.gone == 31.0
    assert not is_over(again, None, 40.0, late_s=60.0)
    assert is_over(again, None, 92.0, late_s=60.0)
    assert step(again, None, view(41.0, QUEUED), 42.0)[1].gone is None, "a server that was started anew has it again"
    assert is_over(again, replace(QUEUED, stage="over", ended_by="cancelled"), 40.0, late_s=60.0)
    assert not is_over(again, replace(QUEUED, stage="over"), 40.0, late_s=60.0), "it has ended by itself: its file will be seen"


@pytest.mark.parametrize(
    ("ended_by", "code", "words"),
    [
        ("cancelled", None, "job 7 was cancelled and left no exit code"),
        ("not_started", None, "job 7 could not be started on n1 and left no exit code"),
        ("timeout", 137, "job 7 was ended at its time limit with exit code 137"),
        (None, 21, "job 7 has failed with exit code 21"),
        (None, None, "job 7 is no longer in the queue and left no exit code"),
    ],
)
def test_an_end_has_words(ended_by: str | None, code: int | None, words: str) -> None:
    known = None if ended_by is None else replace(QUEUED, stage="over", ended_by=ended_by, nodes="n1")
    assert end_words(replace(JOB, code=code), known) == words


def test_a_job_that_was_taken_out_for_its_node_is_over_when_the_queue_has_forgotten_it() -> None:
    job = replace(JOB, taken_out="has lost its node n1")
    found, job = step(job, None, GONE, 31.0)
    assert found == "gone"
    assert not is_over(job, QUEUED, 31.0), "qmaster has not done it yet"
    assert is_over(job, None, 31.0)
    assert end_words(job, None) == "job 7 has lost its node n1"
