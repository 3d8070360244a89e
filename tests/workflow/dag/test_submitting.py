"""How jobs are submitted, found again and watched, and what a job leaves for those who wait for it: two Snakemakes may wait for one."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from base.errors import SchedulerSilent
from cluster.schedulers import Jobs, jobs_of
from cluster.schedulers.jobs import RUN, QueuedJob, Work
from snakemake_executor_plugin_slipway import Executor
from tests.cluster.schedulers.slurm.squeue import squeue_job
from tests.workflow.commands.conftest import Queue, queued
from workflow.dag.queue_view import PolledQueue, QueueView, poll_queue
from workflow.dag.submitting import FRESH_S, Submissions, Submitted, describe_end, exit_file, is_over, remove_old_exit_files, seen

pytestmark = pytest.mark.processes  # also of the thread that a test before has left to end

MARK = "slipway=a-00000000"
WORK = Work(mark=MARK, rule=RUN, wildcards="a-r1")
SHARD = Work(mark=MARK, rule="dataset_shard", wildcards="digits_00000")
COMMENT = f"rule_{RUN}_wildcards_a-r1 {MARK}"


def submissions(scheduler: str, directory: Path, ended: Callable[[Any, str | None], None] = lambda *_: None) -> Submissions:
    """Those of a study, by the scheduler's own commands."""
    jobs = jobs_of(scheduler)
    assert jobs is not None
    return Submissions(jobs, poll_queue(scheduler, jobs), MARK, str(directory), ended)


def test_the_end_of_a_job_is_seen_by_both_who_wait_for_it(tmp_path: Path) -> None:
    file = Path(exit_file(str(tmp_path), "slipway-digits.0"))
    file.parent.mkdir(parents=True)
    file.write_text("0\n")
    ended: list[tuple[Any, str | None]] = []
    for adopted in (True, False):
        one = submissions("sge", tmp_path, lambda what, why: ended.append((what, why)))
        one.close()
        one.watch(
            Submitted(job_id="17", name="slipway-digits.0", work=SHARD, directory=str(tmp_path), asked_at=0.0, adopted=adopted), adopted
        )
        one.look()
    assert ended == [(True, None), (False, None)]


def test_exit_codes_of_yesterday_are_taken_away(tmp_path: Path) -> None:
    for name, age in (("old", 90000), ("new", 10)):
        (tmp_path / f"{name}.exit").write_text("0\n")
        os.utime(tmp_path / f"{name}.exit", (time.time() - age,) * 2)
    remove_old_exit_files(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new.exit"]


def test_a_second_ctrl_c_does_not_keep_jobs_from_being_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(tmp_path / "slurm", monkeypatch)
    queue.command("scancel", f'kill -INT $PPID $$\necho "$@" > {tmp_path}/cancelled')
    before = signal.getsignal(signal.SIGINT)
    one = submissions("slurm", tmp_path)
    one.watch(Submitted(job_id="17", name="slipway-digits.0", work=SHARD, directory=str(tmp_path), asked_at=0.0), None)
    one.cancel()
    assert (tmp_path / "cancelled").read_text() == "17\n"
    assert signal.getsignal(signal.SIGINT) == before


def test_a_job_that_another_snakemake_has_submitted_meanwhile_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    queue = Queue(tmp_path / "slurm", monkeypatch)
    one = submissions("slurm", tmp_path)
    one.close()
    assert one.earlier("stage_train_push", "b-r1") is None
    comment = "rule_stage_train_push_wildcards_a-r1 slipway=a-00000000"
    queue.shows(queued(job_id="17", state="PENDING", comment=comment, name="slipway-a-r1.0"))
    assert one.earlier("stage_train_push", "a-r1") is None, "one question serves many submissions"
    one._looked -= FRESH_S
    found = one.earlier("stage_train_push", "a-r1")
    assert found is not None
    assert (found.job_id, found.name, found.adopted) == ("17", "slipway-a-r1.0", True)
    assert "job 17 is in the queue already for a-r1: it is waited for" in capfd.readouterr().err
    one.watch(found, None)
    one._looked -= FRESH_S
    assert one.earlier("stage_train_push", "a-r1") is None, "it has failed, and this is another try"


# What becomes of jobs that never would end, and of those that another Snakemake has made for the same.


class Cluster:
    """A scheduler's queue as the test sets it, which is told of jobs that are cancelled."""

    SERVER = "slurmctld"

    def __init__(self) -> None:
        self.jobs: tuple[QueuedJob, ...] = ()
        self.cancelled: list[str] = []
        self.silent = False
        self.garbled = False
        self.known: tuple[QueuedJob, ...] = ()

    def view(self) -> QueueView:
        return QueueView(jobs=self.jobs, began=time.monotonic())

    def ask_soon(self) -> None:
        pass

    def stop(self) -> None:
        pass

    def known_jobs(self, job_ids: tuple[str, ...], _patience_s: float) -> tuple[QueuedJob, ...]:
        if self.garbled:
            raise ValueError("no job at all")
        return self.known or tuple(squeue_job(job_id=job_id, state="CANCELLED") for job_id in job_ids if job_id in self.cancelled)

    def cancel(self, job_ids: tuple[str, ...], _patience_s: float) -> None:
        if self.silent:
            raise SchedulerSilent("Slurm's controller does not answer")
        self.cancelled += job_ids
        self.jobs = tuple(job for job in self.jobs if job.job_id not in job_ids)


class Watching:
    """One job, 7, is watched."""

    def __init__(self, directory: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.cluster = Cluster()
        self.ended: list[tuple[Any, str | None]] = []
        self.capfd = capfd
        jobs, queue = cast(Jobs, self.cluster), cast(PolledQueue, self.cluster)
        self.watched = Submissions(jobs, queue, MARK, str(directory), lambda what, why: self.ended.append((what, why)), late_s=0.0)
        self.watched.close()  # its thread: the test looks itself
        self.job = Submitted(job_id="7", name="slipway-a-r1.0", work=WORK, directory=str(directory), asked_at=time.monotonic())
        self.watched.watch(self.job, "the run")

    @property
    def said(self) -> list[str]:
        return self.capfd.readouterr().err.splitlines()

    def shows(self, reason: str) -> None:
        self.cluster.jobs = (squeue_job(job_id="7", state="PENDING", reason=reason, comment=COMMENT, name=self.job.name),)

    def leaves(self, name: str, code: int) -> None:
        path = Path(exit_file(self.job.directory, name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{code}\n")


@pytest.fixture
def one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Watching:
    return Watching(tmp_path, capfd)


def test_after_a_job_that_its_node_could_not_start_the_next_one_asks_for_other_nodes(one: Watching) -> None:
    """As PBS ends it, which goes on to give the node to jobs."""
    one.cluster.known = (replace(squeue_job(job_id="7", state="FAILED", nodes="n1"), ended_by="not_started", lost="n1"),)
    one.watched.look()
    assert one.ended == [("the run", "job 7 could not be started on n1 and left no exit code")]
    assert one.watched.lost == {(RUN, "a-r1"): ("n1",)}
    assert one.watched.cancelled == {}


def test_a_job_that_could_not_be_started_is_taken_out_and_may_be_tried_again(one: Watching) -> None:
    one.shows("launch failed requeued held")
    one.cluster.silent = True
    one.watched.look()
    assert one.said == ["slipway: job 7 could not be taken out of the queue: Slurm's controller does not answer"]
    one.cluster.silent = False
    for _ in range(3):
        one.watched.look()
    assert one.cluster.cancelled == ["7"]
    reason = "job 7 was taken out of the queue: Slurm could not start it on its nodes (launch failed requeued held)"
    assert one.ended == [("the run", reason)]
    assert one.watched.cancelled == {}, "it was not somebody's wish"


def test_a_job_that_a_person_holds_is_waited_for(one: Watching) -> None:
    one.shows("JobHeldUser")
    for _ in range(3):
        one.watched.look()
    assert (one.said, one.ended, one.cluster.cancelled) == ([], [], [])


def test_a_job_that_was_refused_the_run_by_nobody_in_the_queue_has_failed(one: Watching) -> None:
    one.leaves(one.job.name, 21)
    one.cluster.jobs = (squeue_job(job_id="7", state="RUNNING", comment=COMMENT),)
    one.watched.look()
    assert one.ended == [], "it may be started once more"
    one.cluster.jobs = ()
    one.watched.look()
    assert one.ended == [("the run", "job 7 has failed with exit code 21")]


def test_an_answer_that_nobody_can_read_ends_no_watch(one: Watching) -> None:
    """Nor does it end a job: its exit code does."""
    one.cluster.garbled = True
    one.watched.watch(replace(one.job, job_id="8", name="slipway-b-r1.0"), "another")
    one.leaves("slipway-b-r1.0", 0)
    one.leaves(one.job.name, 21)
    for _ in range(2):
        one.watched.look()
    assert one.ended == [("another", None), ("the run", "job 7 has failed with exit code 21")]


def test_storage_that_is_away_says_nothing_of_its_jobs_and_all_of_others(one: Watching, tmp_path: Path) -> None:
    (tmp_path / "away").write_text("no directory")
    away = replace(one.job, job_id="8", directory=str(tmp_path / "away"))
    one.watched.watch(away, "another")
    one.leaves(one.job.name, 0)
    for _ in range(2):
        one.watched.look()
    assert one.ended == [("the run", None)]
    (said,) = one.said
    assert said.startswith(f"slipway: {tmp_path / 'away'}/")
    assert "cannot be read (Not a directory)" in said


# When a submitted job is over: by its exit file, by the queue, by what the scheduler says of a job that is gone.


JOB = Submitted(
    job_id="7", name="slipway-a-r1.0badcafe", work=Work(mark="slipway=a-1", rule="r", wildcards="a-r1"), directory="/r", asked_at=10.0
)
QUEUED = QueuedJob(job_id="7", stage="runs", state="running")
SILENT = QueueView(jobs=(QUEUED,), began=9.0, silent_s=1e6)
GONE = QueueView(began=30.0)


def submitted_view(began: float, *jobs: QueuedJob) -> QueueView:
    return QueueView(jobs=jobs, began=began)


def test_a_scheduler_that_is_silent_or_was_asked_before_says_nothing() -> None:
    for view in (SILENT, QueueView(), submitted_view(9.0)):
        assert seen(JOB, None, view, 1e6) == JOB


def test_an_exit_code_counts_when_the_queue_has_forgotten_the_job() -> None:
    job = seen(JOB, 3, submitted_view(30.0, QUEUED), 31.0)
    assert (job.code, job.gone, job.asked_at) == (3, None, 31.0), "it may be put back into the queue"
    assert seen(job, 3, GONE, 33.0).gone is None, "what was asked before the file was seen says nothing of a requeue"
    assert seen(job, None, submitted_view(34.0, replace(QUEUED, stage="waits")), 35.0).gone is None
    job = seen(job, 3, submitted_view(34.0), 35.0)
    assert job.gone == 35.0
    assert is_over(job, None, 35.0)
    assert not is_over(job, QUEUED, 35.0)


def test_a_job_without_an_exit_file_is_waited_for() -> None:
    job = seen(JOB, None, GONE, 31.0)
    assert job.gone == 31.0
    again = seen(job, None, GONE, 40.0)
    assert again.gone == 31.0
    assert not is_over(again, None, 40.0, late_s=60.0)
    assert is_over(again, None, 92.0, late_s=60.0)
    assert seen(again, None, submitted_view(41.0, QUEUED), 42.0).gone is None, "a server that was started anew has it again"
    assert is_over(again, replace(QUEUED, stage="over", ended_by="cancelled"), 40.0, late_s=60.0)
    assert not is_over(again, replace(QUEUED, stage="over"), 40.0, late_s=60.0), "it has ended by itself: its file will be seen"
    suspended_before = squeue_job(job_id="7", state="COMPLETED", preempted=20)
    assert not is_over(again, suspended_before, 40.0, late_s=60.0), "it went on after that, and has ended by itself too"


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
    assert describe_end(replace(JOB, code=code), known) == words


def test_a_job_that_was_taken_out_is_over_when_the_queue_has_forgotten_it() -> None:
    job = seen(replace(JOB, taken_out="was taken out of the queue: n1"), None, GONE, 31.0)
    assert job.gone == 31.0
    assert not is_over(job, QUEUED, 31.0), "the scheduler has not done it yet"
    assert is_over(job, None, 31.0)
    assert describe_end(job, None) == "job 7 was taken out of the queue: n1"


# What Snakemake is told of the ends of jobs by its executor.


class Told(Executor):
    """Of no Snakemake."""

    def __init__(self) -> None:
        self._scheduler = "slurm"
        self.failed: list[str] = []

    def report_job_error(self, _info: Any, msg: str | None = None, **_more: Any) -> None:
        self.failed.append(str(msg))


def test_a_job_has_failed_although_nobody_can_look_at_its_log(tmp_path: Path) -> None:
    """Network storage may fail between two looks. Without the word Snakemake would wait for this job for ever, and for all others."""
    told = Told()
    no_name = str(tmp_path / ("a" * 300))  # a path that cannot be looked at, for root too
    told._ended(SimpleNamespace(job=SimpleNamespace(log=[no_name]), external_jobid="7"), "job 7 has failed with exit code 9")
    assert told.failed == ["job 7 has failed with exit code 9. "]
