"""What `slipway run` shows: looks in, lines out; and looks at a results directory as runs leave it."""

import io
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from base.errors import SchedulerSilent, UnsupportedRequest
from cluster.holder import holder_of
from cluster.schedulers.jobs import QueuedJob, mark_of
from cluster.schedulers.slurm import jobs as slurm_jobs
from cluster.types import Holder
from tests.cluster.schedulers.slurm.squeue import squeue_job
from tests.minicluster.waiting import wait_until
from tests.workflow.commands.conftest import House
from tests.workflow.commands.test_status_logs import hold, write_log
from workflow.commands.watching.live_table import (
    TABLES,
    Active,
    Ended,
    StudyState,
    View,
    activity,
    drawn,
    ended_line,
    headline,
    open_view,
    plain_line,
)
from workflow.commands.watching.watch import Watch, step_of
from workflow.dag.queue_view import PolledQueue, QueueView, describe_cancelled
from workflow.report.collect import collect
from workflow.run.record.progress_line import waiting_words
from workflow.study.publishing import publish_resolved
from workflow.study.study import Study


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


RUNNING = Active(words="lenet, batch 32, 2 nodes, repeat 1", step="train: step 120 of 200, 1,480 samples/s, 5.1 s left", seconds=12.3)
LOOK = StudyState(
    total=12, done=3, failed=1, prevented=0, active=(RUNNING,), queue="one run at a time measures on this machine", left_s=130.0
)


def test_a_look_in_plain_lines() -> None:
    assert [headline(LOOK), *(plain_line(*row) for row in activity(LOOK))] == [
        "12 runs: 3 done, 1 failed, 0 prevented, 1 running, 7 waiting; about 2m10s left",
        "  lenet, batch 32, 2 nodes, repeat 1: train: step 120 of 200, 1,480 samples/s, 5.1 s left (12 s so far)",
        "  7 runs wait: one run at a time measures on this machine",
    ]


def test_what_is_made_first_and_what_is_made_last() -> None:
    first = StudyState(total=2, done=0, failed=0, prevented=0, before=("dataset digits: 3 of 8 shards built",))
    assert activity(first) == [("dataset digits", "3 of 8 shards built")]
    assert activity(StudyState(total=2, done=0, failed=0, prevented=0)) == [("snakemake", "starts the next run")]
    last = StudyState(total=2, done=2, failed=0, prevented=0, left_s=0.0)
    assert headline(last) == "2 runs: 2 done, 0 failed, 0 prevented, 0 running, 0 waiting"
    assert activity(last) == [("snakemake", TABLES)]
    for done in (0, 2):
        assert activity(replace(last, done=done, ending=True)) == [("snakemake", "ends what it has started")], "no next run, no tables"


def test_an_end_is_one_line_with_reason_log_and_what_to_do() -> None:
    words = "lenet, batch 32, 1 node"
    assert ended_line(Ended(words=words, state="done", seconds=65.0)) == f"done: {words}, in 1m05s"
    failed = Ended(words=words, state="failed", seconds=1.0, reason="oom: 3 GB were asked for", log="/l")
    assert ended_line(failed) == f"failed: {words}: oom: 3 GB were asked for; log: /l"
    prevented = Ended(words=words, state="prevented", seconds=1.0, reason="storage: it is full", log="/l")
    assert ended_line(prevented) == f"prevented: {words}: storage: it is full; the same command runs it again; log: /l"


@pytest.mark.parametrize("width", [80, 120, 20])
def test_the_table_is_never_wider_than_the_terminal(width: int) -> None:
    stream = io.StringIO()
    Console(file=stream, width=width).print(drawn(replace(LOOK, active=(RUNNING,) * 2), 0.0))
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert stream.getvalue().split().count("train:") == 2
    if width == 120:
        assert lines[1].startswith("lenet, batch 32, 2 nodes, repeat 1  train: step 120 of 200, 1,480 samples/s, 5.1 s left (12 s so far)")


def test_what_stays_is_left_to_the_terminal_to_wrap_and_the_last_look_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    path = "/a/long/path" * 20
    with open_view(stream) as view:
        view.print(f"what snakemake says: {path}")
        view.show(LOOK, 0.0)
        view.clear()
        view.print("snakemake has ended")
    said = stream.getvalue()
    assert path in said
    assert "running" not in said.partition("snakemake has ended")[2]


def test_plain_lines_come_at_least_every_ten_seconds() -> None:
    clock, stream = Clock(), io.StringIO()
    lines = View(stream, clock)
    times = []
    for second in range(60):
        clock.now = 100.0 + second
        before = stream.tell()
        lines.show(LOOK, 0.0)
        if stream.tell() != before:
            times.append(second)
    assert times
    assert all(later - earlier <= 10 for earlier, later in zip([0, *times], [*times, 59], strict=True))
    assert "storage has not answered" not in stream.getvalue()
    clock.now += 100
    lines.show(LOOK, 61.0)
    assert "storage has not answered for 61 s" in stream.getvalue()


def test_every_line_carries_the_step_of_a_run_at_work() -> None:
    clock, stream = Clock(), io.StringIO()
    lines = View(stream, clock)
    for second in range(240):
        clock.now = 100.0 + second
        active = (
            Active(words="b", step="waiting for this machine", seconds=9.0),
            Active(words="a", step=f"train: step {second} of 240", seconds=second),
        )
        lines.show(replace(LOOK, active=active, before=("dataset c: 1 of 4 shards built",)), 0.0)
    counts = [line for line in stream.getvalue().splitlines() if "12 runs" in line]
    assert len(counts) > 20
    assert all("; a: train: step " in line for line in counts)


def test_the_other_steps_are_written_once_a_minute() -> None:
    clock, stream = Clock(), io.StringIO()
    lines = View(stream, clock)
    for second in range(120):
        clock.now = 100.0 + second
        lines.show(replace(LOOK, queued=(("gpt r1", "job 12 waits"), ("gpt r2", "job 13 waits"))), 0.0)
    said = stream.getvalue().splitlines()
    assert [line[9:] for line in said if "gpt r1" in line] == ["  gpt r1: job 12 waits"] * 2
    assert sum("gpt r2" in line for line in said) == 2
    assert sum("12 runs: 3 done" in line for line in said) == 14


def test_a_step_is_what_the_supervisor_said_last() -> None:
    def step(*messages: str) -> str:
        return step_of([("INFO", message) for message in messages], "r")

    assert step() == "starts"
    assert step("waiting for this machine: study a of b, r2, process 5") == "waiting for this machine: study a of b, r2, process 5"
    assert step("waiting for this machine: x", "r: attempt 1 on local-1") == "stage"
    assert step("r: attempt 1 on local-1", "train: step 3 of 9", "2 cores for 4 ranks") == "train: step 3 of 9"
    assert step_of([("ERROR", "nan: it is"), ("INFO", "2 cores for 4 ranks")], "r") == "nan: it is"
    held = "r is running already, attempt 1 of this run, since 10:00:00; waiting until it ends, then its result is used"
    assert step("r: attempt 1 on local-1", held) == held


def test_a_run_from_its_start_to_its_end(house: House) -> None:
    study, clock = house.load(), Clock()
    (study.build_dir("digits")).mkdir(parents=True)
    names = [run.run_id for run in study.runs]
    watch = Watch(study=study, requested=names, clock=clock)
    first = watch.look()
    assert (first.total, first.waiting, first.active) == (8, 8, ())
    assert first.before == ("dataset digits: its source is listed",)
    (study.build_dir("digits") / "dataset.json").write_text("{}")

    write_log(study, names[0], "10:00:00 run INFO waiting for this machine: study other of anna, x-r1, process 522\n")
    hold(house, names[0])
    clock.now += 3
    (waits,) = watch.look().active
    assert (waits.step, waits.waits) == ("waiting for this machine: study other of anna, x-r1, process 522", True)
    log = write_log(study, names[0], f"10:00:00 run INFO {names[0]}: attempt 1 on local-0\n10:00:01 run INFO train: step 5 of 60\n")
    clock.now += 4
    look = watch.look()
    assert [(run.step, run.seconds) for run in look.active] == [("train: step 5 of 60", 4.0)]
    assert (look.waiting, look.left_s) == (7, None)
    assert headline(look).endswith("; time left: known when a run has ended")

    house.record(names[0], "ok")
    (study.results_dir / "runs" / names[0] / "lease.json").unlink()
    clock.now += 6
    look = watch.look()
    assert [(end.state, end.seconds) for end in look.ended] == [("done", 10.0)]
    assert (look.done, look.waiting, look.active, look.left_s) == (1, 7, (), 70.0)
    log.write_text(log.read_text() + "10:00:09 run INFO ok in 10 s\n")
    assert watch.look().ended == ()


def test_failed_prevented_refused_and_tried_again(house: House) -> None:
    study, clock = house.load(), Clock()
    names = [run.run_id for run in study.runs]
    house.record(names[0], "error", status_reason="it crashed")
    write_log(study, names[3], "10:00:00 run ERROR of the last time\n")
    watch = Watch(study=study, requested=[f"{names[0]}.after-1", *names[1:]], clock=clock)
    assert watch.look().failed == 0

    write_log(study, names[1], "10:00:00 run ERROR nan: rank 0\n")
    house.record(names[1], "nan", status_reason="rank 0 met a loss\nand more")
    write_log(study, names[2], "10:00:00 run ERROR somebody else runs it: process 7\n")
    look = watch.look()
    assert {(end.state, end.reason) for end in look.ended} == {
        ("failed", "nan: rank 0 met a loss"),
        ("prevented", "somebody else runs it: process 7"),
    }
    assert (look.failed, look.prevented) == (1, 1)

    path = write_log(study, names[2], "")
    os.utime(path, (1, 1))
    look = watch.look()
    assert [run.step for run in look.active] == ["starts"]
    assert look.prevented == 0

    write_log(study, f"{names[0]}.after-1", "10:00:00 run INFO push: the result goes to storage\n")
    house.record(names[0], "ok", attempt=2, result_number=2)
    assert [end.state for end in watch.look().ended] == ["done"]


KEPT = (
    "the run ended ok, and its result could not be pushed: storage is full: the result /c/x needs 9 MB, /s has 0 B free (No space left on "
    f"device); free room or quota; {waiting_words(['local-0'])}"
)


@pytest.mark.processes
def test_storage_that_is_full_is_the_step_of_a_run_and_its_end_has_one_word(house: House) -> None:
    study, clock = house.load(), Clock()
    name = study.runs[0].run_id
    watch = Watch(study=study, requested=[name], clock=clock)
    begun = f"10:00:00 run INFO {name}: attempt 1 on local-0\n10:00:01 run INFO push: the result goes to storage\n"
    hold(house, name)
    failed = "push failed: storage is full: free room or quota; again in 1 s, for 1m00s more"
    write_log(study, name, f"{begun}10:00:02 run WARNING {failed}\n")
    assert watch.look().active[0].step == failed

    (study.results_dir / "runs" / name / "lease.json").unlink()
    write_log(study, name, f"{begun}10:01:02 run ERROR {KEPT}\n10:01:03 run INFO the end\n")
    (end,) = watch.look().ended
    whole = KEPT.replace("reap --push", f"reap --push --site {house.site}")
    assert (end.state, end.reason) == ("prevented", f"storage: {whole}")
    assert ended_line(end).endswith(
        f"deliver it there with `slipway reap --push --site {house.site}`; the same command runs it again; log: {end.log}"
    )
    found = house.json("status")["runs"][0]
    assert (found["state"], found["status"], found["reason"]) == ("prevented", "storage", KEPT)
    publish_resolved(study)
    assert "8 runs: 1 prevented, 7 missing" in house("status").out
    assert "1 prevented" in house("tables").out
    (row,) = [row for row in collect([study.results_dir]).frame.iter_rows(named=True) if row["run_id"] == name]
    assert (row["status"], row["status_reason"]) == ("storage", KEPT)


@pytest.mark.processes
def test_a_log_that_a_full_storage_has_cut_is_understood_too(house: House) -> None:
    study, clock = house.load(), Clock()
    name = study.runs[0].run_id
    watch = Watch(study=study, requested=[name], clock=clock)
    hold(house, name)
    log = f"10:00:00 run INFO {name}: attempt 1 on local-0\n10:00:01 run INFO push: the result goes to storage\n"
    write_log(study, name, f"{log}10:00:02 node ERROR push: storage is full: free room or quota\n10:00:03 run WARN")
    assert watch.look().active[0].step == "push: storage is full: free room or quota"
    (study.results_dir / "runs" / name / "lease.json").unlink()
    clock.now += 60
    (found,) = [run for run in house.json("status")["runs"] if run["run_id"] == name]
    words = "push: storage is full: free room or quota; its result may wait on its nodes; deliver it there with `slipway reap --push`"
    assert (found["state"], found["status"], found["reason"]) == ("prevented", "storage", words)
    publish_resolved(study)
    (row,) = [row for row in collect([study.results_dir]).frame.iter_rows(named=True) if row["run_id"] == name]
    assert (row["status"], row["status_reason"]) == ("storage", words)


def test_a_run_that_vanished_has_ended_after_a_while(house: House) -> None:
    study, clock = house.load(), Clock()
    name = study.runs[0].run_id
    watch = Watch(study=study, requested=[name], clock=clock)
    write_log(study, name, "10:00:00 run INFO train: step 5 of 60\n")
    assert watch.look().ended == ()
    clock.now += 30
    (ended,) = watch.look().ended
    assert ended.reason == "it ended without a record, after: train: step 5 of 60"


class FixedQueue(PolledQueue):
    """What Slurm says, as the test sets it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.jobs: tuple[QueuedJob, ...] = ()
        self.silent_s: float | None = None
        self.living: bool | None = None

    def view(self) -> QueueView:
        return QueueView(jobs=self.jobs, began=self.clock.now, silent_s=self.silent_s)

    def alive(self, holder: Holder) -> bool | None:
        return True if holder.scheduler == "local" else self.living


def job_of(study: Study, run_id: str, job_id: str = "31", **fields: Any) -> QueuedJob:
    comment = f"rule_stage_train_push_wildcards_{run_id} {mark_of(study.name, str(study.results_dir))} slipway-0a"
    return squeue_job(**{"job_id": job_id, "state": "PENDING", "reason": "Resources", "comment": comment, **fields})


def watched(house: House) -> tuple[Study, Clock, FixedQueue, Watch]:
    study, clock = house.load(), Clock()
    (study.build_dir("digits")).mkdir(parents=True)
    (study.build_dir("digits") / "dataset.json").write_text("{}")
    queue = FixedQueue(clock)
    return study, clock, queue, Watch(study=study, requested=[run.run_id for run in study.runs], clock=clock, queue=queue)


def test_a_run_in_slurms_queue_says_its_job_and_slurms_reason(house: House) -> None:
    house.on_slurm()
    study, _, queue, watch = watched(house)
    names = [run.run_id for run in study.runs]
    queue.jobs = (job_of(study, names[0]), job_of(study, names[1], "32", reason="QOSMaxJobsPerUserLimit"), job_of(study, "other-r1", "33"))
    look = watch.look()
    assert (look.waiting, len(look.queued)) == (8, 2)
    rows = activity(look)
    assert rows[0][1] == "job 31 waits: Resources"
    assert rows[1][1] == "job 32 waits: QOSMaxJobsPerUserLimit"
    assert rows[2] == ("6 runs wait", "not in Slurm's queue yet")


def test_the_one_job_of_a_study_says_why_it_waits_and_then_what_its_runs_do(house: House) -> None:
    house.on_slurm()
    study, clock, queue, _ = watched(house)
    names = [run.run_id for run in study.runs]
    watch = Watch(study=study, requested=names, clock=clock, queue=queue, submission="slipway-small-0badcafe")
    job = squeue_job(job_id="24", state="PENDING", reason="PartitionTimeLimit", name="slipway-small-0badcafe")
    queue.jobs = (job, replace(job, job_id="25", name="other"))
    (waits,) = activity(watch.look())
    assert waits[0] == "job 24 waits"
    assert "PartitionTimeLimit" in waits[1]
    queue.jobs = (replace(job, stage="runs", state="running", nodes="n1"),)
    write_log(study, names[0], "10:00:00 run INFO train: step 5 of 60\n")
    hold(house, names[0])
    clock.now += 3
    lines = [plain_line(*row) for row in activity(watch.look())]
    assert lines[0].endswith(": train: step 5 of 60")
    assert lines[1] == "  job 24 is running on n1"
    assert lines[2].endswith("7 runs wait: for nodes of this job")


def test_a_job_that_is_put_back_into_the_queue_waits_and_is_not_prevented(house: House) -> None:
    study, clock, queue, watch = watched(house)
    name = study.runs[0].run_id
    write_log(study, name, "10:00:00 run INFO train: step 5 of 60\n")
    queue.jobs = (job_of(study, name, state="RUNNING"),)
    assert [run.step for run in watch.look().active] == ["train: step 5 of 60"]
    clock.now += 30
    assert watch.look().ended == (), "its job is there"
    queue.jobs = (job_of(study, name, reason="BeginTime", restarts=1),)
    look = watch.look()
    assert (look.prevented, look.active, look.ended, look.waiting) == (0, (), (), 8)
    assert "put back into the queue" in look.queued[0][1]
    assert "BeginTime" in look.queued[0][1]
    queue.jobs = ()
    clock.now += 30
    assert [end.state for end in watch.look().ended] == ["prevented"]


def test_a_silent_controller_is_told_apart_from_storage(house: House) -> None:
    house.on_slurm()
    study, _, queue, watch = watched(house)
    name = study.runs[0].run_id
    write_log(study, name, "10:00:00 run INFO train: step 5 of 60\n")
    hold(house, name, scheduler="slurm", job_id="31", host="n1", boot_id="x")
    queue.silent_s = 68.0
    look = watch.look()
    assert [run.step for run in look.active] == ["train: step 5 of 60"]
    assert activity(look)[-1] == ("Slurm's controller", "does not answer, for 1m08s; jobs go on")


def test_jobs_that_were_cancelled_are_counted_and_those_left_are_named(house: House) -> None:
    study, _, queue, watch = watched(house)
    queue.jobs = tuple(job_of(study, run.run_id, str(31 + index)) for index, run in enumerate(study.runs[:2]))
    jobs = watch.jobs()
    assert describe_cancelled(slurm_jobs, jobs, ()) == "2 Slurm jobs were cancelled (31, 32)"
    assert describe_cancelled(slurm_jobs, jobs, (replace(jobs[0], stage="ends"), replace(jobs[1], stage="runs"))) == (
        "1 Slurm job was cancelled (31); 1 Slurm job is still there: `scancel 32` ends what is left"
    )
    assert "does not answer; look with `squeue --me`, and end what is left: `scancel 31 32`" in describe_cancelled(slurm_jobs, jobs, None)
    assert describe_cancelled(slurm_jobs, (), None) == ""


def test_no_time_is_estimated_from_a_run_that_failed(house: House) -> None:
    study, clock, _, watch = watched(house)
    names = [run.run_id for run in study.runs]
    for name, end, took_s, left_s in ((names[0], "error", 2, None), (names[1], "ok", 18, 108.0)):
        write_log(study, name, f"10:00:00 run INFO {name}: attempt 1 on n1\n")
        watch.look()
        clock.now += took_s
        house.record(name, end)
        assert watch.look().left_s == left_s


def test_the_queue_is_asked_in_a_thread_and_a_holder_once() -> None:
    asked: list[tuple[str, ...]] = []
    answers: list[Sequence[QueuedJob] | None] = [(squeue_job(job_id="1", state="RUNNING"),), None]
    moments = [threading.Event(), threading.Event()]

    def ask() -> Sequence[QueuedJob]:
        answer = answers[0] if not moments[0].is_set() else answers[1]
        moments[0 if not moments[0].is_set() else 1].set()
        if answer is None:
            raise SchedulerSilent("no answer")
        return answer

    def ask_holders(holders: Sequence[Holder], _limit_s: float) -> tuple[bool | None, ...]:
        asked.append(tuple(holder.job_id for holder in holders))
        return (False,) * len(holders)

    queue = PolledQueue("slurm", ask, ask_holders, pause_s=0.01)
    here = holder_of(os.getpid(), "slurm", "1", 0)
    assert moments[0].wait(30)
    wait_until(lambda: queue.alive(here) is True, 30, "the job is seen")
    gone = replace(here, job_id="2")
    assert queue.alive(gone) is None
    assert moments[1].wait(30)
    wait_until(lambda: queue.view().silent_s is not None, 30, "the silence is seen")
    assert queue.alive(here) is True, "what was known is known"
    answers[1] = ()
    wait_until(lambda: queue.alive(gone) is False, 30, "the end is seen")
    assert asked[0] == ("2",)
    queue.stop()


def test_the_thread_that_asks_goes_on_after_any_answer_and_does_not_ask_again_for_what_nobody_knows() -> None:
    asked: list[str] = []
    answers: list[Exception] = [ValueError("no number"), UnsupportedRequest("not here")]

    def ask() -> Sequence[QueuedJob]:
        if answers:
            raise answers.pop()
        return ()

    def ask_holders(holders: Sequence[Holder], _limit_s: float) -> tuple[bool | None, ...]:
        asked.extend(holder.job_id for holder in holders)
        return (None,) * len(holders)

    clock = Clock()
    queue = PolledQueue("slurm", ask, ask_holders, clock=clock, pause_s=0.01)
    here = replace(holder_of(os.getpid(), "slurm", "2", 0), host="elsewhere")
    assert queue.alive(here) is None
    wait_until(lambda: asked == ["2"], 30, "it is asked")
    wait_until(lambda: queue.view().silent_s is None and queue.view().began is not None, 30, "an answer")
    assert queue.alive(here) is None
    assert asked == ["2"], "nobody knows it, and it is asked for again after a while only"
    clock.now += 61
    assert queue.alive(here) is None
    wait_until(lambda: asked == ["2", "2"], 30, "it is asked again")
    queue.stop()
