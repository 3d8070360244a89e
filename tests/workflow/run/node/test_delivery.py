"""Where a waiting result may go, and what becomes of it on storage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from base.errors import LeaseError, PushError, RecordError
from base.limited import LimitedCall
from base.publish import remove_tree
from base.seal import publish_sealed, read_sealed
from cluster.holder import holder_of
from data_prep.push import push_files
from data_prep.push.copy import write_list
from tests.workflow.report.builder import make_record
from tests.workflow.run.storage.test_results import write
from tests.workflow.run.world import World
from workflow.report.verify import verify_runs
from workflow.run.node.workdir import check_target, publish_delivered
from workflow.run.record.events import StepsAsked
from workflow.run.record.model import validate_record
from workflow.run.record.outcome import Ending, RankEnd
from workflow.run.record.run_record import ended_note
from workflow.run.storage.attempt import complete_delivered
from workflow.run.storage.lease import acquire, new_lease, read_lease
from workflow.run.storage.prepare import describe_holder, holder_alive, prepare


@pytest.mark.parametrize("attempt", ["1", "12", "1.node-1", "3.node-12"])
def test_an_attempt_of_a_run_of_a_study_that_is_there(world: World, attempt: str) -> None:
    check_target(world.storage, world.run_dir(world.cell()) / "attempts" / attempt)


@pytest.mark.parametrize(
    "place",
    [
        "/home/other/.config/autostart/1",
        "{storage}/results/test-study/runs/{run}/attempts/../../../../../../x",
        "{storage}/results/test-study/runs/{run}/attempts/1.lost-00",
        "{storage}/results/test-study/runs/{run}/attempts/.hidden",
        "{storage}/results/test-study/runs/{run}/attempts/0",
        "{storage}/results/test-study/runs/{run}/attempts",
        "{storage}/results/test-study/tables/{run}/attempts/1",
        "{storage}/results/../runs/{run}/attempts/1",
        "{storage}/results/other-study/runs/{run}/attempts/1",
        "{storage}/results/test-study/runs/other-r1/attempts/1",
        "{storage}/results/test-study/runs/../attempts/1",
    ],
)
def test_elsewhere_nothing_is_delivered(world: World, place: str) -> None:
    target = Path(place.format(storage=world.storage, run=world.cell()))
    with pytest.raises((PushError, RecordError)):
        check_target(world.storage, target)


@pytest.mark.parametrize("linked", ["attempts", ".", ".."])
def test_a_link_leads_nowhere(world: World, linked: str, tmp_path: Path) -> None:
    run_dir = world.run_dir(world.cell())
    (tmp_path / "home" / "attempts").mkdir(parents=True)
    place = Path(os.path.normpath(run_dir / linked))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(tmp_path / "home")
    with pytest.raises(PushError, match="is a link"):
        check_target(world.storage, run_dir / "attempts" / "1")


def facts_of(run_id: str, cell: dict[str, Any]) -> dict[str, Any]:
    """As facts.run_facts gives them."""
    record = make_record(cell)
    return {
        **{key: record[key] for key in ("nodes", "preflight", "dataset", "provenance", "site", "engine", "exclusive", "threads_per_rank")},
        **{"run_id": run_id, "study": "test-study", "cell": cell, "repeat": 1, "attempt": 1, "result_number": 1},
        **{"earlier": None, "warnings": []},
        "allocation": {
            **{key: record[key] for key in ("scheduler", "scheduler_version", "job_id", "restart_count", "device", "oversubscribed")},
        },
    }


def deliver_files(directory: Path, files: dict[str, str]) -> None:
    """As a node delivers them, with their list."""
    own = directory.with_name(f"own-{directory.name}")
    for name, text in files.items():
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).write_text(text)
    write_list(directory, directory.name, push_files(own, directory))
    remove_tree(own)


def delivered(
    world: World, *, status: str = "error", whole: bool = True, told: dict[str, Any] | None = None, more: str = "", **changes: Any
) -> Path:
    """An attempt whose push had failed and whose files are on storage, of both nodes if `whole`; its run's directory. `told`: other facts;
    `more`: another file of the first node; `changes`: of the note."""
    run_id = world.cell(2)
    run_dir = world.run_dir(run_id)
    content = {**write(run_dir, 1, "storage", None), "status_reason": "it could not be pushed", "files": []}
    publish_sealed(run_dir / "attempts" / "1" / "record.json", content)
    record = make_record(world.cells[0])
    times = {**record["time"], "run_s": record["run_s"], "steps_s": record["steps_s"]}
    end = RankEnd(ranks=(1,), host="local-1", exit_code=3, time=1.0)
    found = {**facts_of(run_id, world.cells[0]), **(told or {})}
    note = ended_note(found, Ending(status=status, reason="rank 1 ended", rank_end=end), times, [0, 1], 7, StepsAsked(8, 6))
    files = {"ended.json": json.dumps({**note, **changes})} | ({more: "{}\n"} if more else {})
    deliver_files(run_dir / "attempts" / "1", files)
    if whole:
        deliver_files(run_dir / "attempts" / "1.node-1", {"logs/node-1.log": "said\n"})
    return run_dir


@pytest.mark.processes
def test_what_was_delivered_whole_becomes_the_result_that_it_was(world: World) -> None:
    run_dir = delivered(world)
    assert publish_delivered(run_dir, os.getpid()) == "the run's result: attempt 1, status error"
    record = read_sealed(run_dir / "record.json")
    assert (record["status"], record["kind"], record["result_number"], record["status_reason"]) == ("error", "result", 1, "rank 1 ended")
    assert record["failed_rank"]["host"] == "local-1"
    assert [file["path"] for file in record["files"]] == [
        "delivered-1.json",
        "delivered-1.node-1.json",
        "ended.json",
        "logs/node-1.log",
    ]
    validate_record(record)
    assert verify_runs(world.results).findings == []
    assert [path.name for path in (run_dir / "attempts").iterdir()] == ["1"]
    assert read_lease(run_dir) is None
    before = (run_dir / "record.json").read_bytes()
    complete_delivered(run_dir)
    assert (run_dir / "record.json").read_bytes() == before
    said = prepare(str(world.results), run_dir.name, 0, os.getpid(), {})
    assert said["done"] == {"attempt": 1, "status": "error"}


def test_a_newer_result_stays_the_run_s(world: World) -> None:
    run_dir = delivered(world)
    write(run_dir, 2, "ok", 1)
    assert publish_delivered(run_dir, os.getpid()) == "the run's result: attempt 2, status ok"
    assert read_sealed(run_dir / "attempts" / "1" / "record.json")["result_number"] == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": [0, 1, 2]},
        {"nodes": [1]},
        {"nodes": "all"},
        {"schema": "x"},
        {"ending": None},
        {"facts": {}},
        {"times": []},
        {"nodes": [[]]},
        {"nodes": []},
        {"nodes": [0, 1e300]},
        {"nodes": [0, 10**18]},
        {"facts": {"cell": {"nodes": 10**12}, "nodes": 5}},
        {"times": {"start": "", "end": "", "run_s": 1.0, "steps_s": {}}},
        {"parameters": "many"},
    ],
    ids=str,
)
def test_a_note_that_is_not_whole_makes_no_result(world: World, changes: dict[str, Any]) -> None:
    run_dir = delivered(world, **changes)
    assert "it makes no result" in publish_delivered(run_dir, os.getpid())
    assert prepare(str(world.results), run_dir.name, 0, os.getpid(), {})["done"] is None
    assert read_sealed(run_dir / "attempts" / "1" / "record.json")["status"] == "storage"
    assert not (run_dir / "record.json").exists()


@pytest.mark.parametrize(
    "facts",
    [
        {"nodes": 5},
        {"nodes": [{}, {}]},
        {"nodes": []},
        {"warnings": 3},
        {"allocation": []},
        {"dataset": "digits"},
        {"earlier": {"attempt": 1}},
    ],
    ids=str,
)
def test_facts_that_make_no_record_make_no_result(world: World, facts: dict[str, Any]) -> None:
    run_dir = delivered(world, told=facts)
    assert "it makes no result" in publish_delivered(run_dir, os.getpid())
    assert not (run_dir / "record.json").exists()


def test_of_the_run_a_note_says_nothing(world: World) -> None:
    strange = {"cell": {"nodes": 10**12, "gpus_per_node": 10**6}, "study": "another", "run_id": "x-r1", "repeat": 7}
    run_dir = delivered(world, told=strange)
    publish_delivered(run_dir, os.getpid())
    record = read_sealed(run_dir / "record.json")
    assert (record["cell"], record["study"], record["run_id"], record["repeat"]) == (world.cells[0], "test-study", run_dir.name, 1)


@pytest.mark.processes
def test_an_attempt_that_waits_for_a_node_lists_its_files_and_becomes_the_result(world: World) -> None:
    run_dir = delivered(world, whole=False)
    assert "files of other nodes are missing (node 1): deliver there too" in publish_delivered(run_dir, os.getpid())
    record = read_sealed(run_dir / "attempts" / "1" / "record.json")
    assert (record["status"], record["kind"]) == ("storage", "prevented")
    assert verify_runs(world.results).findings == []
    deliver_files(run_dir / "attempts" / "1.node-1", {"logs/node-1.log": "said\n"})
    assert publish_delivered(run_dir, os.getpid()) == "the run's result: attempt 1, status error"
    assert verify_runs(world.results).findings == []


@pytest.mark.processes
def test_a_start_may_copy_what_was_delivered_for_as_long_as_bytes_move(world: World) -> None:
    run_dir = delivered(world)
    call = LimitedCall("prepare", complete_delivered, run_dir, timeout_s=60, renewed=True)
    begun = call.deadline
    assert call.wait() == {}
    assert call.deadline > begun, "it told of the bytes that it copied"


@pytest.mark.parametrize("where", ["1/events-0.jsonl", "1.node-1/logs/node-1.log"])
def test_what_was_changed_after_it_was_delivered_makes_no_result(world: World, where: str) -> None:
    run_dir = delivered(world, whole=False, more="events-0.jsonl")
    publish_delivered(run_dir, os.getpid())
    deliver_files(run_dir / "attempts" / "1.node-1", {"logs/node-1.log": "said\n"})
    with (run_dir / "attempts" / where).open("r+b") as file:
        file.write(b"7")
    assert "is not what was sent" in publish_delivered(run_dir, os.getpid())
    assert not (run_dir / "record.json").exists()


@pytest.mark.processes
def test_a_prevented_attempt_stays_prevented_and_lists_its_files(world: World) -> None:
    run_dir = delivered(world, status="preempted")
    assert publish_delivered(run_dir, os.getpid()) == "attempt 1 was prevented (preempted), its files are on storage"
    assert not (run_dir / "record.json").exists()
    record = read_sealed(run_dir / "attempts" / "1" / "record.json")
    validate_record(record)
    assert "logs/node-1.log" in {file["path"] for file in record["files"]}
    assert verify_runs(world.results).findings == []
    assert complete_delivered(run_dir) == {}


def test_while_somebody_runs_it_nothing_is_published(world: World) -> None:
    run_dir = delivered(world)
    prepare(str(world.results), run_dir.name, 7, os.getpid(), {})
    (run_dir / "record.json").unlink()
    with pytest.raises(LeaseError, match="is running already"):
        publish_delivered(run_dir, os.getpid())
    assert not (run_dir / "record.json").exists()


@pytest.mark.processes
def test_the_lease_that_stays_keeps_the_number_of_what_waits_on_its_nodes(world: World) -> None:
    run_id = world.cell(1)
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    left = new_lease(holder_of(ended.pid, "local", "1", 0), 1)
    acquire(world.run_dir(run_id), lambda _: left, holder_alive, describe_holder)
    ended.communicate(b"\n")
    assert not (world.run_dir(run_id) / "attempts").exists()
    assert prepare(str(world.results), run_id, 0, os.getpid(), {})["attempt"] == 2
