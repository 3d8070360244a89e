"""Which jobs that have ended well are taken out of the queue again, and when nobody waits for that any more."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import cast

import pytest

from base.errors import SchedulerSilent
from cluster.schedulers.jobs import Jobs, QueuedJob
from cluster.schedulers.pbs.answers import JobInfo
from cluster.schedulers.pbs.jobs import queued_job as of_pbs
from cluster.schedulers.sge.answers import Listed
from cluster.schedulers.sge.jobs import joined
from cluster.schedulers.slurm.jobs import queued_job as of_slurm
from workflow.dag.queue_view import QueueView
from workflow.dag.watched_jobs import EndedJobs, is_back, is_settled

NAME = "slipway-a-r1.0"


def of_sge(letters: str) -> QueuedJob:
    (job,) = joined([Listed(job_id="7", name=NAME, letters=letters, slots=4, host="n1")], {})
    return job


PENDING = of_slurm(job_id="7", state="PENDING", reason="BeginTime", restarts=1, name=NAME)
RT = of_sge("Rt")


class Queue:
    """Of a scheduler that is told which jobs to take out, and does it at once."""

    def __init__(self) -> None:
        self.jobs: tuple[QueuedJob, ...] = ()
        self.told: list[tuple[str, str]] = []
        self.silent = False

    def cancel(self, job_ids: tuple[str, ...], _patience_s: float) -> None:
        self._take_out("cancel", job_ids)

    def forget(self, job_ids: tuple[str, ...], _patience_s: float) -> None:
        self._take_out("forget", job_ids)

    def _take_out(self, how: str, job_ids: tuple[str, ...]) -> None:
        if self.silent:
            raise SchedulerSilent("nobody answers")
        self.told += [(how, job_id) for job_id in job_ids]
        self.jobs = tuple(job for job in self.jobs if job.job_id not in job_ids)


class Ending:
    """Job 7 has ended well."""

    def __init__(self) -> None:
        self.queue, self.said = Queue(), list[str]()
        self.ended = EndedJobs(cast(Jobs, self.queue), self.said.append)
        self.ended.add("7", NAME)

    def look(self, *jobs: QueuedJob, began: float | None = None) -> bool:
        self.queue.jobs = jobs
        return self.ended.take_out(QueueView(jobs=jobs, began=time.monotonic() if began is None else began))

    def is_settled(self) -> bool:
        return self.ended._settled.is_set()


@pytest.fixture
def one() -> Ending:
    return Ending()


@pytest.mark.parametrize(
    ("job", "back", "settled"),
    [
        (of_sge("Rq"), True, False),
        (RT, True, False),
        (of_sge("dRt"), True, False),
        (of_sge("Rr"), False, False),
        (of_sge("r"), False, True),
        (of_sge("t"), False, True),
        (PENDING, True, False),
        (of_slurm(job_id="7", state="REQUEUE_HOLD"), True, False),
        (of_slurm(job_id="7", state="COMPLETING"), False, False),
        (of_slurm(job_id="7", state="RUNNING"), False, True),
        (of_slurm(job_id="7", state="RUNNING", restarts=1), False, False),
        (of_pbs(JobInfo(job_id="7", name="slipway-a-r1.0", owner="me", state="Q", restarts=1)), True, False),
        (of_pbs(JobInfo(job_id="7", name="slipway-a-r1.0", owner="me", state="E")), False, False),
    ],
    ids=lambda value: value.state if isinstance(value, QueuedJob) else None,
)
def test_who_is_back(job: QueuedJob, back: bool, settled: bool) -> None:
    assert (is_back(job), is_settled(job)) == (back, settled)


@pytest.mark.parametrize(("job", "how"), [(PENDING, "cancel"), (RT, "forget")], ids=["Slurm", "Grid Engine"])
def test_a_job_that_is_back_is_taken_out_once_and_waited_for_until_the_queue_has_forgotten_it(
    one: Ending, job: QueuedJob, how: str
) -> None:
    before = time.monotonic() - 60.0
    assert not one.look(job, began=before), "what was asked before its end says nothing"
    assert not one.is_settled()
    assert one.look(job)
    assert (one.queue.told, one.is_settled()) == ([(how, "7")], False)
    assert one.look(job), "it is there still"
    assert not one.look()
    assert one.is_settled()
    assert one.queue.told == [(how, "7")] * 2
    assert one.said == ["job 7 was put back into the queue when it had ended well; it is taken out"]


def test_a_job_that_is_just_ending_is_let_end_and_nobody_waits_for_that(one: Ending) -> None:
    assert not one.look(of_sge("r"), replace(PENDING, job_id="8"))
    assert (one.is_settled(), one.queue.told) == (True, [])


def test_a_job_whose_processes_are_being_ended_may_come_back(one: Ending) -> None:
    assert not one.look(of_slurm(job_id="7", state="COMPLETING", name=NAME))
    assert not one.is_settled()
    assert one.look(PENDING)
    one.look()
    assert one.is_settled()


def test_a_scheduler_that_is_silent_is_asked_again(one: Ending) -> None:
    one.queue.silent = True
    assert one.look(PENDING)
    assert one.look(PENDING)
    assert one.said[1:] == ["job 7 was put back into the queue when it had ended well, and could not be taken out: nobody answers"]
    one.queue.silent = False
    assert one.look(PENDING)
    assert (one.queue.told, len(one.said)) == ([("cancel", "7")], 2)


def test_a_later_end_is_waited_for_too(one: Ending) -> None:
    one.look()
    one.ended.add("9", NAME)
    assert not one.is_settled()
    one.look(replace(PENDING, job_id="9"))
    assert one.queue.told == [("cancel", "9")]


def test_a_job_of_the_same_id_and_another_name_is_somebody_s(one: Ending) -> None:
    """A scheduler that has lost its memory counts from the beginning."""
    assert not one.look(replace(PENDING, name="slipway-b-r1.1"))
    assert (one.queue.told, one.said, one.is_settled()) == ([], [], True)
