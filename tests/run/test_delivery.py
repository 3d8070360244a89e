"""Where a waiting result may go, and what becomes of it on storage."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from base.errors import LeaseError, PushError, RecordError
from base.seal import read_sealed
from tests.report.builder import failed
from tests.run.test_results import write
from tests.run.world import World
from workflow.run.delivery import check_target, publish_delivered
from workflow.run.ended import complete_delivered, ended_note
from workflow.run.lease import read_lease
from workflow.run.outcome import Ending, RankEnd
from workflow.run.prepare import prepare


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


def delivered(world: World, **changes: Any) -> Path:
    """An attempt whose push had failed and whose files of two nodes are on storage; its run's directory."""
    run_id = world.cell(2)
    run_dir = world.run_dir(run_id)
    write(run_dir, 1, "storage", None)
    made = failed(world.cells[0], status="error")
    keys = ("run_id", "study", "cell", "repeat", "attempt", "result_number", "site", "engine", "exclusive", "nodes", "threads_per_rank")
    facts = {
        **{key: made[key] for key in (*keys, "preflight", "dataset", "warnings", "provenance")},
        "earlier": None,
        "allocation": {key: made[key] for key in ("scheduler", "scheduler_version", "job_id", "restart_count", "device", "oversubscribed")},
    }
    times = {**made["time"], "run_s": made["run_s"], "steps_s": made["steps_s"]}
    end = RankEnd(ranks=(1,), host="local-1", exit_code=3, time=1.0)
    note = ended_note(facts, Ending(status="error", reason="rank 1 ended", rank_end=end), times, [0, 1], 7)
    (run_dir / "attempts" / "1" / "ended.json").write_text(json.dumps({**note, **changes}))
    (run_dir / "attempts" / "1.node-1" / "logs").mkdir(parents=True)
    (run_dir / "attempts" / "1.node-1" / "logs" / "node-1.log").write_text("said\n")
    return run_dir


def test_what_was_delivered_whole_becomes_the_result_that_it_was(world: World) -> None:
    run_dir = delivered(world)
    assert publish_delivered(run_dir, os.getpid()) == "attempt 1, status error"
    record = read_sealed(run_dir / "record.json")
    assert (record["status"], record["kind"], record["result_number"], record["status_reason"]) == ("error", "result", 1, "rank 1 ended")
    assert record["failed_rank"]["host"] == "local-1"
    assert [file["path"] for file in record["files"]] == ["ended.json", "logs/node-1.log"]
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
    assert publish_delivered(run_dir, os.getpid()) == "attempt 2, status ok"
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
    ],
    ids=str,
)
def test_a_note_that_is_not_whole_makes_no_result(world: World, changes: dict[str, Any]) -> None:
    run_dir = delivered(world, **changes)
    assert publish_delivered(run_dir, os.getpid()) is None
    assert read_sealed(run_dir / "attempts" / "1" / "record.json")["status"] == "storage"
    assert not (run_dir / "record.json").exists()


def test_while_somebody_runs_it_nothing_is_published(world: World) -> None:
    run_dir = delivered(world)
    prepare(str(world.results), run_dir.name, 7, os.getpid(), {})
    (run_dir / "record.json").unlink()
    with pytest.raises(LeaseError, match="is running already"):
        publish_delivered(run_dir, os.getpid())
    assert not (run_dir / "record.json").exists()
