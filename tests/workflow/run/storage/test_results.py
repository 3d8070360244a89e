"""What is asked of a run, which results it has, and that a start that comes too late or twice trains nothing."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from base.errors import LeaseError, RecordError, StorageError, SubmitError, SubmitUnsure
from base.publish import remove_tree
from base.seal import publish_sealed, read_sealed
from cluster.schedulers.jobs import RUN, BatchJob, JobSize
from cluster.schedulers.slurm import plan_allocation
from cluster.types import AllocationRequest
from tests.cluster.test_local import holder
from tests.workflow.report.builder import failed, make_cell, make_record
from tests.workflow.run.world import World
from workflow.dag.storage_view import result_at, results_in
from workflow.dag.submitting import Submissions
from workflow.run.record.model import RunRecord
from workflow.run.record.outcome import Ending, RankEnd, judge_missing
from workflow.run.storage.lease import new_lease
from workflow.run.storage.prepare import prepare
from workflow.run.storage.results import (
    FORGOTTEN_S,
    MAX_NODES,
    PreparedRun,
    Result,
    avoided,
    parse_requested,
    publish_newest,
    requested_result,
    results_of,
)


@pytest.mark.parametrize(
    ("text", "run_id", "after"),
    [
        ("lenet-b8-r1", "lenet-b8-r1", 0),
        ("lenet-b8-r12.after-3", "lenet-b8-r12", 3),
        ("x.after-1-r2.after-10", "x.after-1-r2", 10),
        ("x.after-1-r2", "x.after-1-r2", 0),
        ("x-r1.after-0", "x-r1.after-0", 0),
        ("strange", "strange", 0),
    ],
)
def test_what_is_asked_is_a_text(text: str, run_id: str, after: int) -> None:
    assert parse_requested(text) == (run_id, after)
    assert requested_result(run_id, after) == text


def write(run_dir: Path, attempt: int, status: str = "ok", number: int | None = 1) -> dict[str, Any]:
    """An attempt on storage; without a number a prevented one."""
    path = run_dir / "attempts" / str(attempt) / "record.json"
    path.parent.mkdir(parents=True)
    cell = {**make_cell(), "cell_id": run_dir.name.removesuffix("-r1")}
    made = make_record(cell, attempt=attempt) if status == "ok" else failed(cell, attempt=attempt, status=status)
    publish_sealed(path, {**made, "study": run_dir.parents[1].name, "result_number": number})
    value: dict[str, Any] = read_sealed(path)
    return value


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return tmp_path / f"{make_cell()['cell_id']}-r1"


@pytest.mark.parametrize("place", ["record.json", "attempts/2/record.json"])
def test_a_result_that_storage_fails_to_read_is_not_as_if_there_were_none(run_dir: Path, place: str) -> None:
    """Else a finished run is trained again, or an older result is put in the place of a newer one."""
    write(run_dir, 1)
    write(run_dir, 2, "ok", 2)
    assert publish_newest(run_dir, results_of(run_dir))
    (run_dir / place).unlink()
    (run_dir / place).symlink_to("/proc/self/mem")  # whose first byte cannot be read: EIO
    for asked in (lambda: results_of(run_dir), lambda: publish_newest(run_dir, [Result(2, 2, "ok")])):
        with pytest.raises(StorageError, match=f"{place} cannot be read: Input/output error; it is not known whether there is a result"):
            asked()


def test_the_record_is_that_of_the_newest_readable_result(run_dir: Path) -> None:
    assert results_of(run_dir) == []
    assert not publish_newest(run_dir, [])
    write(run_dir, 1, "error")
    assert publish_newest(run_dir, results_of(run_dir))
    write(run_dir, 2, "killed", None)
    newest = write(run_dir, 3, "ok", 2)
    write(run_dir, 4, "ok", 3)
    for name in ("4", "5.lost-0badcafe", "6.node-1", ".7.part-00"):
        directory = run_dir / "attempts" / name
        directory.mkdir(exist_ok=True)
        (directory / "record.json").write_text("{")
    assert results_of(run_dir) == [Result(2, 3, "ok"), Result(1, 1, "error")]
    assert publish_newest(run_dir, results_of(run_dir))
    assert read_sealed(run_dir / "record.json") == newest
    assert not publish_newest(run_dir, results_of(run_dir)), "it is there"
    (run_dir / "record.json").write_text("{")
    assert publish_newest(run_dir, results_of(run_dir))
    remove_tree(run_dir / "attempts")
    assert results_of(run_dir) == [Result(2, 3, "ok")], "attempts may be removed to have room"
    assert not publish_newest(run_dir, results_of(run_dir))


def test_a_result_of_another_study_is_none(world: World) -> None:
    """Its cell may be the same, and so its run: the tables believe no such record, so a start must not take it for done."""
    run_id = world.cell()
    run_dir = world.run_dir(run_id)
    good = write(run_dir, 1)
    publish_newest(run_dir, results_of(run_dir))
    for path in (run_dir / "record.json", run_dir / "attempts" / "1" / "record.json"):
        publish_sealed(path, {**good, "study": "another"})
    assert results_in(str(world.results), [run_id]) == {run_id: {"status": "unreadable", "result_number": 0}}
    said = start(world, run_id)
    assert said.done is None
    assert said.attempt == 2


@pytest.mark.parametrize("damage", ["a number", "of another run", "the same result in other bytes", "a pipe", "gone"])
def test_the_attempts_own_copy_replaces_a_published_one_that_is_not_it(run_dir: Path, damage: str) -> None:
    good = write(run_dir, 1)
    assert publish_newest(run_dir, results_of(run_dir))
    path = run_dir / "record.json"
    before = path.read_bytes()
    if damage == "a number":
        del good["seal"]
        good["performance"]["step_s"]["p50"] = -5
        path.write_text(json.dumps(good))
    elif damage == "of another run":
        publish_sealed(path, {**good, "run_id": "another-r1"})
    elif damage == "the same result in other bytes":
        publish_sealed(path, {**good, "warnings": ["other"]})
    else:
        path.unlink()
        if damage == "a pipe":
            os.mkfifo(path)
    assert (result_at(path)["status"] == "unreadable") == (damage != "the same result in other bytes")
    assert results_of(run_dir) == [Result(1, 1, "ok")]
    assert publish_newest(run_dir, results_of(run_dir))
    assert path.read_bytes() == before


def start(world: World, asked: str) -> PreparedRun:
    """What a supervisor that starts now is told."""
    run_id, after = parse_requested(asked)
    return prepare(str(world.results), run_id, after, os.getpid(), {})


@pytest.mark.parametrize(
    ("results", "asked", "done", "number"),
    [
        ([], "", None, 1),
        (["killed"], "", None, 1),
        (["ok"], "", 1, 2),
        (["error"], "", 1, 2),
        (["error"], ".after-1", None, 2),
        (["error", "ok"], ".after-1", 2, 3),
        (["error", "nan"], ".after-1", 2, 3),
        (["error", "nan"], ".after-2", None, 3),
        (["ok"], ".after-7", None, 2),
    ],
)
@pytest.mark.parametrize("published", [True, False])
def test_a_start_trains_only_what_is_not_there(
    world: World, results: list[str], asked: str, done: int | None, number: int, published: bool
) -> None:
    """Also after one that was killed when its attempt had been pushed, and before its result was published."""
    run_id = world.cell()
    run_dir = world.run_dir(run_id)
    records = [write(run_dir, attempt, status, None if status == "killed" else attempt) for attempt, status in enumerate(results, 1)]
    if published:
        publish_newest(run_dir, results_of(run_dir))
    elif results:
        (run_dir / "lease.json").write_text(json.dumps(new_lease(holder(pid=2**22 + 1), len(results)).to_json()))
    said = start(world, f"{run_id}{asked}")
    assert said.done == (None if done is None else Result(done, done, results[-1]))
    assert (said.attempt, said.result_number) == (len(results) + 1, number)
    if records and records[-1]["result_number"]:
        assert read_sealed(run_dir / "record.json") == records[-1], "the record of before stays until its successor is there"
    assert (run_dir / "lease.json").exists() == (done is None)


def test_a_run_that_the_study_does_not_have_is_an_error(world: World) -> None:
    world.cell()
    with pytest.raises(RecordError, match="nobody-r1"):
        start(world, "nobody-r1")


def test_of_two_that_ask_for_the_same_one_gets_it(world: World) -> None:
    run_id = world.cell()
    write(world.run_dir(run_id), 1, "error", 1)
    assert start(world, f"{run_id}.after-1").done is None
    with pytest.raises(LeaseError, match="is running already"):
        start(world, f"{run_id}.after-1")


# Which nodes a run's next attempt keeps off, by what the records of the earlier ones say.


NOW = 1_800_000_000.0
END = "2027-01-15T08:00:00+00:00"
"""At that moment."""


def record(*nodes: str, status: str = "killed", end: str = END) -> dict[str, Any]:
    time = {"start": "2026-01-01T00:00:00+00:00", "end": end}
    made = make_record(make_cell()) if status == "ok" else failed(make_cell(), attempt=1, status=status)
    return {**made, "time": time, "failed_nodes": list(nodes)}


def avoided_by(*records: dict[str, Any], now: float) -> tuple[str, ...]:
    return avoided([msgspec.convert(one, RunRecord) for one in records], now)


def test_nodes_of_the_attempts_since_the_last_result() -> None:
    assert avoided_by(record("n2"), record("n1", "n2"), record("n9", status="ok"), record("n8"), now=NOW) == ("n2", "n1")
    assert avoided([], NOW) == ()


def test_what_is_old_torn_or_no_name_does_not_count() -> None:
    assert avoided_by(record("n1"), now=NOW + FORGOTTEN_S + 1) == ()
    assert avoided_by(record("n1", end="2026-13-01T00:00:00Z"), record("-x", "a b", "n,m", "", "n2"), now=NOW) == ("n2",)
    assert len(avoided_by(record(*(f"n{i}" for i in range(99))), now=NOW)) == MAX_NODES


RANK_END = RankEnd(ranks=(0,), host="n3", exit_code=-7, time=0.0, last_lines="")


@pytest.mark.parametrize(
    ("ending", "nodes"),
    [
        (Ending(status="node_lost", reason="gone", nodes=("n1",)), ("n1",)),
        (Ending(status="node_lost", reason="nobody knows which"), ()),
        (Ending(status="storage", reason="its disk", rank_end=RANK_END), ("n3",)),
        (Ending(status="killed", reason="by somebody", rank_end=RANK_END), ()),
        (Ending(status="error", reason="a result", nodes=("n1",)), ()),
        (judge_missing({"n1": "x is not there"}, 2), ("n1",)),
        (judge_missing({"n1": "x is not there"}, 1), ()),
    ],
)
def test_an_ending_names_the_nodes_at_fault(ending: Ending, nodes: tuple[str, ...]) -> None:
    assert ending.failed_nodes == nodes


def test_in_one_allocation_other_nodes_come_first() -> None:
    addresses = {f"n{i}": f"10.0.0.{i}" for i in range(4)}
    request = AllocationRequest(nodes=2, gpus_per_node=1, largest_nodes=2, device="cpu", avoid=("n0", "n2"))
    found = plan_allocation(request, {}, {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[0-3]"}, addresses, None)
    assert [node.name for node in found.nodes] == ["n1", "n3", "n0", "n2"]


class Asked:
    """In the place of a scheduler's JOBS: it refuses jobs that leave nodes out, if `full`."""

    def __init__(self, *, full: bool, refusal: type[SubmitError] = SubmitError) -> None:
        self.full, self.refusal, self.sizes = full, refusal, list[JobSize]()

    def submit(self, job: BatchJob, _patience_s: float) -> str:
        self.sizes.append(job.size)
        if self.full and job.size.exclude:
            raise self.refusal("Requested node configuration is not available")
        return "7"


@pytest.mark.parametrize("full", [False, True])
def test_a_run_s_next_job_asks_for_other_nodes_or_for_any_where_there_are_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], full: bool
) -> None:
    end = datetime.now(UTC).isoformat()
    failed_before = record("n2", end=end)
    run_id = failed_before["run_id"]
    attempt = tmp_path / "runs" / run_id / "attempts" / "1"
    attempt.mkdir(parents=True)
    publish_sealed(attempt / "record.json", failed_before)
    asked = Asked(full=full)
    submissions = Submissions.__new__(Submissions)
    submissions.jobs, submissions._mark, submissions._directory = cast(Any, asked), "slipway=x", str(tmp_path)
    submissions.lost = {(RUN, "c-r1"): ("n3",)}
    submissions.submit(RUN, run_id, JobSize(nodes=1, minutes=1), "true")
    submissions.submit(RUN, "c-r1", JobSize(nodes=1, minutes=1), "true")
    submissions.submit(RUN, "b-r1", JobSize(nodes=1, minutes=1), "true")
    again = [()] if full else []
    assert [size.exclude for size in asked.sizes] == [("n2",), *again, ("n3",), *again, ()]
    assert (f"no job without n2, where {run_id} failed before, so with any nodes" in capsys.readouterr().err) == full


def test_a_job_that_may_be_in_the_queue_is_not_submitted_again(tmp_path: Path) -> None:
    asked = Asked(full=True, refusal=SubmitUnsure)
    submissions = Submissions.__new__(Submissions)
    submissions.jobs, submissions._mark, submissions._directory = cast(Any, asked), "slipway=x", str(tmp_path)
    submissions.lost = {(RUN, "c-r1"): ("n3",)}
    with pytest.raises(SubmitUnsure):
        submissions.submit(RUN, "c-r1", JobSize(nodes=1, minutes=1), "true")
    assert [size.exclude for size in asked.sizes] == [("n3",)]
