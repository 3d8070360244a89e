"""When a run stops, what that is called, and which attempt the next one resumes from. No processes, no files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from base.errors import DigestMismatch, StagingError
from extras.remote.command import with_time
from tests.workflow.report.builder import make_cell, make_record
from tests.workflow.run.cells import cell, document, made_site
from workflow.run.record.events import parse_events
from workflow.run.record.model import Checkpoint, EvaluationAt, File, Performance, Provenance, ResumedFrom, RunRecord, Steps, Training
from workflow.run.record.outcome import Ending, RankEnd, verdict
from workflow.run.record.progress_line import ProgressLine
from workflow.run.record.rate import summarise
from workflow.run.record.resume import OTHER_PROGRAM, checkpoint_of, pushed_checkpoint, resumable
from workflow.run.record.run_record import Measurements, join_measurements
from workflow.run.record.step_clock import LOGIN, login_s, planned, with_login
from workflow.run.record.walltime_budget import Budget, Saved, at_deadline, budget_of, by_scheduler, margin_of, too_late
from workflow.run.storage.attempt import fetch_file
from workflow.study.cell import RunLimits

HOUR = 3600.0
CELL = cell()
HASH = "0" * 64


def budget(walltime_s: float = 10 * HOUR, used_s: float = 0.0, margin_s: float = 120.0) -> Budget:
    return Budget(walltime_s=walltime_s, used_s=used_s, margin_s=margin_s)


@pytest.mark.parametrize(
    ("site_margin", "walltime", "job", "expected"),
    [
        (120.0, 1800.0, None, 120.0),
        (120.0, 100.0, None, 20.0),
        (120.0, 36000.0, 120.0, 24.0),  # a short job of a long run
        (120.0, 100.0, 36000.0, 20.0),
    ],
)
def test_the_margin(site_margin: float, walltime: float, job: float | None, expected: float) -> None:
    assert margin_of(site_margin, walltime, job) == expected
    site = made_site(deadline_margin_s=site_margin, walltime_s=job)
    assert budget_of(site, RunLimits(walltime_s=walltime)) == Budget(walltime_s=walltime, margin_s=expected)


@pytest.mark.parametrize(
    ("used", "job", "status"),
    [
        (0.0, None, "timeout"),  # no job ends: the budget does
        (0.0, HOUR, "preempted"),
        (8.9 * HOUR, HOUR, "preempted"),
        (9 * HOUR - 239, HOUR, "timeout"),  # what is left is less than two margins: no attempt could use it
        (9 * HOUR, HOUR, "timeout"),
        (9.5 * HOUR, HOUR, "timeout"),
        (0.0, 10 * HOUR + 60, "timeout"),  # the job outlives the budget
        (0.0, 10 * HOUR - 5, "timeout"),  # a job exactly as long as the run, begun a moment before it
    ],
)
def test_whether_budget_or_job_is_over(used: float, job: float | None, status: str) -> None:
    ending = at_deadline(budget(used_s=used), job, Saved(step=7))
    assert ending.status == status
    assert ending.planned
    assert ending.requeue == (status == "preempted")


@pytest.mark.parametrize(
    ("saved", "words", "requeue"),
    [
        (Saved(step=120), "resumable at step 120: the next attempt resumes there", True),
        (Saved(step=120, resumed_step=100), "resumable at step 120", True),
        (Saved(step=100, resumed_step=100), "resumable at step 100", False),  # it came no further: do not turn in a circle
        (Saved(step=0), "resumable at step 0", False),
        (Saved(why="no step was done"), "no checkpoint (no step was done): the next attempt begins from the beginning", False),
        (Saved(why="no step was done", resumed_step=9), "the next attempt begins at step 9 once more", False),
    ],
)
def test_what_a_run_says_that_its_job_cuts_off(saved: Saved, words: str, requeue: bool) -> None:
    ending = at_deadline(budget(), HOUR, saved)
    assert words in str(ending.reason)
    assert str(ending.reason).startswith("the job ends in 120 s, and the run has 9h00m left; ")
    assert ending.requeue == requeue


def test_what_a_run_says_whose_budget_is_used_up() -> None:
    first = at_deadline(budget(), None, Saved())
    assert first.reason == "the walltime of 10h00m is over but for 120 s, kept for the push; `limits.walltime` sets it"
    later = at_deadline(budget(used_s=2 * HOUR), None, Saved(step=9))
    assert later.reason == (
        "the walltime of 10h00m (2h00m of it in earlier attempts) is over but for 120 s, kept for the push; resumable at step 9 "
        "(`slipway run STUDY --retry failed`, with a longer one); `limits.walltime` sets it"
    )
    assert "; no checkpoint: it was not written" in str(at_deadline(budget(), None, Saved(why="it was not written")).reason)


def test_an_attempt_that_comes_too_late_is_not_begun() -> None:
    ending = too_late(budget(), 100.4)
    assert (ending.status, ending.exit_code) == ("preempted", 25)
    assert "the job ends in 100 s, and an attempt needs 240 s at the least" in str(ending.reason)


@pytest.mark.parametrize(
    ("word", "status", "words"),
    [
        ("cancelled", "cancelled", "n1 got SIGTERM: the job was cancelled"),
        ("preempted", "preempted", "took the nodes back for another job"),
        ("requeued", "preempted", "was put back into the queue"),
        ("node_lost", "node_lost", "has lost a node"),
        ("timeout", "preempted", "reached its time limit before our clock did"),
        (None, "cancelled", "n1 got SIGTERM"),
    ],
)
def test_what_the_scheduler_says_of_a_signal(word: str | None, status: str, words: str) -> None:
    ending = by_scheduler(word, "n1 got SIGTERM", at_deadline(budget(), HOUR, Saved()))
    assert ending.status == status
    assert words in str(ending.reason)
    assert not ending.planned


def test_the_exit_code_of_a_checkpoint_is_no_failure_where_its_event_was_written() -> None:
    end = RankEnd(ranks=(0,), host="n", exit_code=43, time=0.0, run_stop=False, checkpoint=5)
    assert verdict(end) is None
    said = verdict(end._replace(checkpoint=None))
    assert said.status == "error"


# -- which attempt to resume from


TEMPLATE = msgspec.convert(make_record(make_cell()), RunRecord)
PUSHED = File(path="checkpoint.safetensors", bytes=10, blake3=HASH)


def record(attempt: int, step: int | None = 5, train_s: float = 100.0, **changes: Any) -> RunRecord:
    found = replace(TEMPLATE, attempt=attempt, cell=CELL, kind="prevented", status="preempted", steps_s=Steps(train=train_s))
    found = replace(
        found, checkpoint=None if step is None else Checkpoint(step=step, bytes=10), files=(PUSHED,) if step is not None else ()
    )
    return replace(found, **changes)


def chosen(*records: RunRecord, walltime_s: float = 1000.0) -> list[int]:
    return [earlier.attempt for earlier in resumable(records, CELL, budget(walltime_s, margin_s=100.0))]


RESULT = {"kind": "result", "status": "error"}
TIMEOUT = {"kind": "result", "status": "timeout"}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([], []),
        ([record(1)], [1]),
        ([record(2), record(1)], [2, 1]),  # the older one in case the newer is damaged
        ([record(2, None, status="killed"), record(1)], [1]),
        ([record(1, status="cancelled")], [1]),
        ([record(1, cell=document(cell_id="d"))], []),
        ([record(1, cell=document(seed=CELL.seed + 1))], []),
        ([record(1, files=())], []),  # it was not pushed
        ([record(3), record(2, **RESULT), record(1)], [3]),  # a retry of a result begins anew
        ([record(2, **RESULT), record(1)], []),
        ([record(1, **TIMEOUT)], [1]),
        ([record(2, **TIMEOUT), record(1)], [2, 1]),
        ([record(2, None, **TIMEOUT), record(1)], []),
        ([record(1, train_s=900.0, **TIMEOUT)], []),  # no walltime is left for it: as a whole again
        ([record(1, train_s=500.0, resumed_from=ResumedFrom(attempt=1, step=1, used_s=400.0))], []),
        ([record(2, files=None), record(1)], [1]),
    ],
)
def test_which_attempts_can_be_gone_on_from(records: list[RunRecord], expected: list[int]) -> None:
    assert chosen(*records) == expected


def test_the_time_of_all_earlier_attempts_counts() -> None:
    before = record(4, resumed_from=ResumedFrom(attempt=3, step=2, used_s=50.5))
    (earlier,) = resumable([before], CELL, budget(1000.0, margin_s=100.0))
    assert (earlier.attempt, earlier.step, earlier.used_s) == (4, 5, 150.5)


def test_it_is_known_whose_program_trained_before() -> None:
    old, new = (Provenance(program_digest=digest) for digest in "ab")
    warned = record(4, provenance=new, warnings=(f"attempt 1 {OTHER_PROGRAM}",))
    records = [warned, record(3, provenance=old, warnings=("x",)), record(2, warnings=None), record(1)]
    offers = resumable(records, CELL, budget(1000.0, margin_s=100.0))
    assert [(offer.program_digest, offer.several_programs) for offer in offers] == [("b", True), ("a", False), (None, False), (None, False)]


def test_the_checkpoint_in_a_record_is_one_that_was_told_of_and_pushed() -> None:
    lines = [
        b'{"event": "checkpoint", "file": "checkpoint.safetensors", "bytes": 10, "step": 3, "resumable": true}\n',
        b'{"event": "checkpoint", "file": "parameters.safetensors", "bytes": 7}\n',
        b'{"event": "warning", "message": "w"}\n',
    ]
    events = parse_events(lines)
    assert events.warnings == ["w"]
    found = checkpoint_of({0: events})
    assert found == Checkpoint(step=3, bytes=10)
    assert checkpoint_of({1: events}) is None
    assert pushed_checkpoint(found, [PUSHED]) == found
    assert pushed_checkpoint(found, []) is None
    assert pushed_checkpoint(None, [PUSHED]) is None


def training(first: float | None, *losses: tuple[int, float]) -> Training:
    final = losses[-1][1] if losses else None
    return Training(first_loss=first, first_losses=tuple(entry for entry in losses if entry[0] < 5), final_loss=final, losses=losses)


def test_a_resumed_record_has_the_whole_curve_and_its_own_window() -> None:
    one, other = (Performance(num_measured_steps=count, step_s=summarise([1.0])) for count in (1, 2))
    before = training(3.0, (0, 3.0), (1, 2.0), (2, 1.9))
    now = Measurements(performance=other, training=training(1.5, (2, 1.5), (3, 1.0)))
    found = join_measurements(now, one, before, 2)
    assert found.performance == other
    assert found.training == training(3.0, (0, 3.0), (1, 2.0), (2, 1.5), (3, 1.0))
    assert join_measurements(replace(now, performance=None), one, before, 2).performance == one, "no step was left to be measured"
    assert join_measurements(Measurements(), one, before, 2).training is None
    nothing_done = join_measurements(Measurements(training=training(None)), one, before, 2).training
    assert nothing_done == replace(training(3.0, (0, 3.0), (1, 2.0)), final_loss=1.9)


def at(step: int, accuracy: float, training_s: float | None = None) -> EvaluationAt:
    return EvaluationAt(split="test", step=step, accuracy=accuracy, training_s=training_s)


def test_a_resumed_record_has_each_evaluation_once() -> None:
    before = replace(training(3.0, (0, 3.0), (1, 2.0)), evaluations=(at(1, 0.5, 1.0), at(2, 0.6, 2.0), at(3, 0.7, 3.0)), trained_s=3.5)
    own = replace(training(1.5, (2, 1.5)), evaluations=(at(3, 0.8, 1.0),), trained_s=2.0)
    found = join_measurements(Measurements(training=own), None, before, 2).training
    assert found is not None
    assert [(one.step, one.accuracy, one.training_s) for one in found.evaluations or ()] == [(1, 0.5, 1.0), (2, 0.6, 2.0), (3, 0.8, 4.5)]
    assert found.trained_s == 5.5
    many = replace(before, evaluations=tuple(at(step, 0.5) for step in range(10, 1010)))
    found = join_measurements(Measurements(training=own), None, many, 1010).training
    assert found is not None
    assert len(found.evaluations or ()) == 1000
    again = replace(own, evaluations=(at(2, 0.65, 0.0),))
    found = join_measurements(Measurements(training=again), None, before, 2).training
    assert found is not None
    assert [(one.step, one.accuracy) for one in found.evaluations or ()] == [(1, 0.5), (2, 0.65)]


def test_a_checkpoint_is_brought_whole_or_not_at_all(tmp_path: Path) -> None:
    from blake3 import blake3

    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"numbers")
    good = blake3(b"numbers").hexdigest()
    fetch_file(str(source), str(target), 7, good)
    assert target.read_bytes() == b"numbers"
    for num_bytes, digest in ((8, good), (7, HASH)):
        with pytest.raises(DigestMismatch, match="is damaged or was changed: found 7 B with hash"):
            fetch_file(str(source), str(target), num_bytes, digest)
        assert not target.exists()
    with pytest.raises(DigestMismatch, match="is not there any more"):
        fetch_file(str(tmp_path / "nothing"), str(target), 7, good)
    with pytest.raises(StagingError, match="cannot be copied to"):
        fetch_file(str(source), str(tmp_path), 7, good)


def test_a_file_from_storage_comes_at_the_rate_of_the_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from blake3 import blake3

    sleeps: list[float] = []
    monkeypatch.setattr("data_prep.staging.copy.time", SimpleNamespace(monotonic=lambda: sum(sleeps), sleep=sleeps.append))
    content = bytes(5 << 20)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(content)
    good = blake3(content).hexdigest()
    fetch_file(str(source), str(target), len(content), good)
    assert not sleeps
    fetch_file(str(source), str(target), len(content), good, bytes_per_s=1 << 20)
    assert sum(sleeps) == pytest.approx(5)


def test_an_ending_by_our_own_clock_has_time_to_push() -> None:
    assert not Ending(status="preempted").planned


# The step `login`, which travels in the environment from command to command.


def test_the_times_of_the_commands_add_up() -> None:
    laptop = with_login({}, 12.5)
    submitted = with_login(laptop, 2.25)
    assert login_s(submitted) == 14.75
    assert planned({**submitted, "SLIPWAY_SUBMISSION": "x"}, 3.0) == {}
    assert login_s(planned(submitted, 3.0)) == 17.75


def test_a_plan_made_in_a_job_that_nobody_timed_before_counts_itself() -> None:
    assert planned({"SLIPWAY_SUBMISSION": "x"}, 3.0) == {LOGIN: "3.000"}


@pytest.mark.parametrize("said", [None, "", "x", "-1", "nan", "inf"])
def test_what_is_no_time_is_not_known(said: str | None) -> None:
    assert login_s({} if said is None else {LOGIN: said}) is None


def test_the_laptop_tells_its_own_time() -> None:
    first, time, *argv = with_time(["/far/slipway", "submit", "s.yaml"])
    assert (first, argv) == ("env", ["/far/slipway", "submit", "s.yaml"])
    assert login_s({LOGIN: time.partition("=")[2]}) is not None


# How far training is, in words.


def test_step_rate_and_time_left() -> None:
    progress = ProgressLine(64, 200, 0.0)
    assert progress.due(0, 1.0) == "train: step 1 of 200"
    assert progress.due(50, 2.0) is None
    assert progress.due(100, 6.0) == "train: step 101 of 200, 1,280 samples/s, 5.0 s left"
    assert progress.due(199, 10.0) == "train: step 200 of 200, 1,584 samples/s"
    assert progress.due(200, 20.0) == "train: step 201, 6 samples/s", "a program that counts from 1 has no step 201 of 200"


def test_without_a_number_of_steps_there_is_no_time_left() -> None:
    progress = ProgressLine(1, None, 0.0)
    progress.due(0, 0.0)
    assert progress.due(2000, 2.0) == "train: step 2,001, 1,000 samples/s"


def test_lines_come_often_at_the_beginning_and_seldom_later() -> None:
    progress = ProgressLine(1, 10_000, 0.0)
    times = [second for second in range(600) if progress.due(second, float(second)) is not None]
    assert [later - earlier for earlier, later in zip(times, times[1:], strict=False)] == [2] * 30 + [10] * 53


def test_a_step_that_lasts_is_told_once() -> None:
    progress = ProgressLine(1, 110, 0.0)
    assert progress.due(93, 1.0) == "train: step 94 of 110"
    assert progress.due(93, 4.0) is None
    assert progress.due(94, 5.0) == "train: step 95 of 110, 0 samples/s, 1m00s left"


def test_tokens_of_a_step_are_what_the_ranks_tell() -> None:
    progress = ProgressLine(None, 200, 0.0)
    assert progress.due(0, 1.0) == "train: step 1 of 200"
    assert progress.due(100, 6.0, 4096) == "train: step 101 of 200, 81,920 tokens/s, 5.0 s left"
    assert progress.due(149, 10.0) == "train: step 150 of 200, 3.0 s left"
