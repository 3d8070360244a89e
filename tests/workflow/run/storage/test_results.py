"""What is asked of a run, which results it has, and that a start that comes too late or twice trains nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from base.errors import LeaseError, StorageError
from base.publish import remove_tree
from base.seal import publish_sealed, read_sealed
from tests.workflow.report.builder import failed, make_cell, make_record
from tests.workflow.run.world import World
from workflow.dag.graph import results_in
from workflow.run.storage.prepare import prepare
from workflow.run.storage.results import Result, asked_of, parse_asked, publish_newest, published_result, results_of


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
    assert parse_asked(text) == (run_id, after)
    assert asked_of(run_id, after) == text


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
    assert published_result(run_dir) is None
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
    assert said["done"] is None
    assert said["attempt"] == 2


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
    assert (published_result(run_dir) is None) == (damage != "the same result in other bytes")
    assert results_of(run_dir) == [Result(1, 1, "ok")]
    assert publish_newest(run_dir, results_of(run_dir))
    assert path.read_bytes() == before


def start(world: World, asked: str) -> dict[str, Any]:
    """What a supervisor that starts now is told."""
    run_id, after = parse_asked(asked)
    return prepare(str(world.results), run_id, after, os.getpid(), {})


@pytest.mark.parametrize(
    ("results", "asked", "done", "number"),
    [
        ([], "", None, 1),
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
    run_id = world.cell()
    run_dir = world.run_dir(run_id)
    records = [write(run_dir, attempt, status, attempt) for attempt, status in enumerate(results, 1)]
    if published:
        publish_newest(run_dir, results_of(run_dir))
    said = start(world, f"{run_id}{asked}")
    assert said["done"] == (None if done is None else {"attempt": done, "status": results[-1]})
    assert said["result_number"] == number
    if records:
        assert read_sealed(run_dir / "record.json") == records[-1], "the record of before stays until its successor is there"
    assert (run_dir / "lease.json").exists() == (done is None)


def test_of_two_that_ask_for_the_same_one_gets_it(world: World) -> None:
    run_id = world.cell()
    write(world.run_dir(run_id), 1, "error", 1)
    assert start(world, f"{run_id}.after-1")["done"] is None
    with pytest.raises(LeaseError, match="is running already"):
        start(world, f"{run_id}.after-1")
