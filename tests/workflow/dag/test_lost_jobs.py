"""When a job whose first node is silent is taken out of the queue, and what is not enough for that."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import pytest

from base.errors import SchedulerOutputError
from cluster.schedulers.jobs import QueuedJob
from tests.cluster import fake_pbs_jobs
from workflow.dag.queue_view import QueueView
from workflow.dag.watched_jobs import LOST_S, LostJobs

LOST = QueuedJob(job_id="7", stage="runs", state="running (r)", nodes="n1", lost="n1")
WELL = QueuedJob(job_id="8", stage="runs", state="running (r)", nodes="n2")


def view(began: float, *jobs: QueuedJob) -> QueueView:
    return QueueView(jobs=jobs, began=began)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(fake_pbs_jobs, "QUEUE", [LOST, WELL])
    return fake_pbs_jobs


def test_a_node_that_is_silent_in_all_answers_for_long_is_lost(jobs: ModuleType) -> None:
    said: list[str] = []
    one = LostJobs(jobs, said.append)
    for began in (5.0, 60.0, 4.0 + LOST_S):
        assert one.take_out(view(began, LOST, WELL), {"7", "8"}) == ()
    assert one.take_out(view(5.0 + LOST_S, LOST, WELL), {"7", "8"}) == (LOST,)
    assert jobs.QUEUE == [WELL]
    assert said == ["job 7 has lost its first node: n1 has not answered for 2 minutes; the job is taken out of the queue"]
    assert one.take_out(view(6.0 + LOST_S, LOST, WELL), {"7", "8"}) == (), "the same is not done at every look"


@pytest.mark.parametrize(
    "between", [view(60.0, WELL), QueueView(jobs=(LOST,), began=5.0, silent_s=1.0), QueueView()], ids=["it answers", "silent", "none"]
)
def test_an_answer_between_or_a_silent_scheduler_begins_the_time_again(jobs: ModuleType, between: QueueView) -> None:
    one = LostJobs(jobs, lambda _: None)
    assert one.take_out(view(5.0, LOST), {"7"}) == ()
    assert one.take_out(between, {"7"}) == ()
    assert one.take_out(view(5.0 + LOST_S, LOST), {"7"}) == ()
    assert one.take_out(view(5.0 + 2 * LOST_S, LOST), {"7"}) == (LOST,)


def test_jobs_of_others_are_left_alone(jobs: ModuleType) -> None:
    one = LostJobs(jobs, lambda _: None)
    one.take_out(view(5.0, LOST), {"8"})
    assert one.take_out(view(5.0 + LOST_S, LOST), {"8"}) == ()
    assert jobs.QUEUE == [LOST, WELL]


def test_what_could_not_be_taken_out_is_said_and_tried_again_later(jobs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(job_ids: Sequence[str], patience_s: float) -> None:  # noqa: ARG001 - it answers at once
        raise SchedulerOutputError("no")

    said: list[str] = []
    one = LostJobs(jobs, said.append)
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "forget", refuse)
        one.take_out(view(5.0, LOST), {"7"})
        assert one.take_out(view(5.0 + LOST_S, LOST), {"7"}) == ()
    assert len(said) == 1
    assert said[0].endswith("could not be taken out of the queue: no")
    one.take_out(view(6.0 + LOST_S, LOST), {"7"})
    assert one.take_out(view(6.0 + 2 * LOST_S, LOST), {"7"}) == (LOST,)
