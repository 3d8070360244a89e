"""Where a waiting result may go, and what becomes of it on storage."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from base.calls import LimitedCall
from base.errors import LeaseError, PushError, RecordError
from base.publish import remove_tree
from base.seal import publish_sealed, read_sealed
from cluster.holder import holder_of
from cluster.schedulers import describe_holder, holder_alive
from data_prep.push import Naming, deliver_pending, push_files
from data_prep.push.copy import write_list
from extras.verify.runs import verify_runs
from tests.data_prep.staging.disks import immutable
from tests.workflow.report.builder import make_cell, make_record
from tests.workflow.run.cells import document, ended_note
from tests.workflow.run.storage.test_results import write
from tests.workflow.run.valid import validate_record
from tests.workflow.run.world import World
from workflow.run.link.commands import Pending
from workflow.run.node.workdir import WorkDirectory, check_target, hold, of_run, publish_delivered, remove_delivered, sweep
from workflow.run.record.outcome import Ending, RankEnd
from workflow.run.storage.attempt import complete_delivered
from workflow.run.storage.lease import acquire, new_lease, read_lease
from workflow.run.storage.prepare import prepare
from workflow.run.storage.results import Result


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
    note = ended_note(found, Ending(status=status, reason="rank 1 ended", rank_end=end), times, [0, 1])
    files = {"ended.json": json.dumps({**note, **changes})} | ({more: "{}\n"} if more else {})
    deliver_files(run_dir / "attempts" / "1", files)
    if whole:
        deliver_files(run_dir / "attempts" / "1.node-1", {"logs/node-1.log": "said\n"})
    return run_dir


@pytest.mark.processes
@pytest.mark.parametrize("by", ["the delivery", "the next start"])
def test_what_was_delivered_whole_becomes_the_result_that_it_was(world: World, by: str) -> None:
    run_dir = delivered(world)
    if by == "the delivery":
        assert publish_delivered(run_dir, os.getpid()) == "the run's result: attempt 1, status error"
    else:
        assert prepare(str(world.results), run_dir.name, 0, os.getpid(), {}).done == Result(number=1, attempt=1, status="error")
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
    assert said.done == Result(number=1, attempt=1, status="error")


def test_what_had_ended_well_and_has_no_measurements_is_an_error(world: World) -> None:
    run_dir = delivered(world, status="ok")
    assert publish_delivered(run_dir, os.getpid()) == "the run's result: attempt 1, status error"
    assert "events-0.jsonl" in read_sealed(run_dir / "record.json")["status_reason"]


def test_a_newer_result_stays_the_run_s(world: World) -> None:
    run_dir = delivered(world)
    write(run_dir, 2, "ok", 1)
    assert publish_delivered(run_dir, os.getpid()) == "the run's result: attempt 2, status ok"
    assert read_sealed(run_dir / "attempts" / "1" / "record.json")["result_number"] == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": [0, 1, 2]},
        {"facts": {}},
        {"nodes": []},
        {"nodes": [0, 10**18]},
        {"times": {"start": "", "end": "", "run_s": 1.0, "steps_s": {}}},
    ],
    ids=str,
)
def test_a_note_that_is_not_whole_makes_no_result(world: World, changes: dict[str, Any]) -> None:
    run_dir = delivered(world, **changes)
    assert "it makes no result" in publish_delivered(run_dir, os.getpid())
    assert prepare(str(world.results), run_dir.name, 0, os.getpid(), {}).done is None
    assert read_sealed(run_dir / "attempts" / "1" / "record.json")["status"] == "storage"
    assert not (run_dir / "record.json").exists()


def test_of_the_run_a_note_says_nothing(world: World) -> None:
    strange = {"cell": make_cell(nodes=64), "study": "another", "run_id": "x-r1", "repeat": 7}
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
    assert prepare(str(world.results), run_id, 0, os.getpid(), {}).attempt == 2


# Work directories: those at work stay, those of the dead go, those that wait for storage stay.


HOLDER = """
import signal, sys
from pathlib import Path
from workflow.run.node.workdir import WorkDirectory
WorkDirectory(Path(sys.argv[1]), sys.argv[2]).create("/results/runs/one-r1", None)
print("held", flush=True)
signal.pause()
"""


@pytest.mark.processes
def test_what_a_killed_node_program_left_goes_with_the_next_start_of_any_run(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path), "one-r1-a1-0123"], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        left = tmp_path / "runs" / "one-r1-a1-0123"
        WorkDirectory(tmp_path, "two-r1-a1-4567").create("/results/runs/two-r1", None)
        assert left.is_dir()
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    WorkDirectory(tmp_path, "three-r1-a1-89ab").create("/results/runs/three-r1", None)
    assert not left.exists()
    assert not list((tmp_path / "runs").glob(".one*"))


def test_two_studies_that_hold_the_same_cell_leave_each_other_alone(tmp_path: Path) -> None:
    first, second = WorkDirectory(tmp_path, f"one-r1-a1-{'0' * 24}"), WorkDirectory(tmp_path, f"one-r1-a1-{'1' * 24}")
    first.create("/results/first/runs/one-r1", document())
    second.create("/results/second/runs/one-r1", document())
    assert first.exists()
    assert second.exists()
    assert of_run(tmp_path, Path("/results/first/runs/one-r1")) == [first.path]
    assert of_run(tmp_path, Path("/results/second/runs/one-r1"), 1) == [second.path]
    assert of_run(tmp_path, Path("/results/second/runs/one-r1"), 2) == []


@pytest.mark.processes
def test_what_a_killed_delivery_left_is_swept(tmp_path: Path) -> None:
    left = tmp_path / "one"
    left.mkdir()
    for name in ("pending.json", "events-0.jsonl"):
        (left / name).touch()
    child = os.fork()
    if child == 0:
        remove_delivered(left, lambda _directory: os.kill(os.getpid(), signal.SIGKILL))
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert [path.name for path in left.iterdir()] == ["events-0.jsonl"]
    assert sweep(tmp_path) == {"one": None}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_what_cannot_be_removed_stops_no_later_run_and_is_removed_once_it_can_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    runs = tmp_path / "runs"
    WorkDirectory(tmp_path, "one").create("/results/runs/one", None)
    for name in ("two", "three"):
        (runs / name).mkdir()
        hold(runs / name).close()
    file = runs / "two" / "file"
    file.touch()
    with immutable(file):
        WorkDirectory(tmp_path, "four").create("/results/runs/four", None)
        assert caplog.text.count(f"{file} cannot be removed (Operation not permitted): ") == 1
        assert sorted(path.name for path in runs.iterdir() if path.is_dir()) == ["four", "one", "two"]
        (problem,) = sweep(runs).values()
        assert problem is not None
        assert problem.endswith(f"as root: chattr -R -f -ia {runs / 'two'}; rm -r {runs / 'two'}")
    assert sweep(runs) == {"two": None}


@pytest.mark.processes
def test_a_delivered_result_that_cannot_be_removed_is_delivered_and_swept_later(tmp_path: Path) -> None:
    waiting, later = (WorkDirectory(tmp_path, f"{name}-r1-a1-4567") for name in ("one", "two"))
    for directory in (waiting, later):
        directory.create("/results/runs/one-r1", document())
        target = tmp_path / "storage" / directory.path.name
        directory.keep(Pending(target=str(target), reason="storage is away", record=None, ended=None), Naming())
    with immutable(waiting.path / "cell.json"):
        deliveries = deliver_pending(tmp_path, lambda _target: None, remove=remove_delivered)
        assert [delivery.delivered for delivery in deliveries] == [True, True]
        assert deliver_pending(tmp_path, lambda _target: None) == []
        assert waiting.path.is_dir()
    assert sweep(tmp_path / "runs") == {waiting.path.name: None}
    assert list((tmp_path / "runs").iterdir()) == []


def test_what_was_delivered_goes_with_its_lock(tmp_path: Path) -> None:
    (tmp_path / "one" / "out").mkdir(parents=True)
    (tmp_path / "one" / "pending.json").touch()
    remove_delivered(tmp_path / "one")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("planted", ["a pipe", "a link", "a directory"])
def test_what_has_the_name_of_a_lock_and_is_none_holds_nobody_up(tmp_path: Path, planted: str) -> None:
    lock = tmp_path / ".one.lock"
    (tmp_path / "one").mkdir()
    make = {"a pipe": os.mkfifo, "a link": lambda path: path.symlink_to(tmp_path / "precious"), "a directory": Path.mkdir}
    (tmp_path / "precious").write_text("1")
    make[planted](lock)
    assert sweep(tmp_path) == {}
    assert (tmp_path / "one").is_dir()
    assert (tmp_path / "precious").read_text() == "1"


def test_our_own_and_what_waits_for_storage_stay(tmp_path: Path) -> None:
    ours, waiting = WorkDirectory(tmp_path, "one-r1-a1-0123"), WorkDirectory(tmp_path, "two-r1-a1-4567")
    for directory in (ours, waiting):
        directory.create(f"/results/runs/{directory.path.name[:6]}", None)
    waiting.keep(Pending(target=str(tmp_path / "target"), reason="storage is away", record=None, ended=None), Naming())
    assert sweep(tmp_path / "runs") == {}
    assert ours.exists()
    assert waiting.exists()
    ours.remove()
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["two-r1-a1-4567"]


@pytest.mark.processes
@pytest.mark.parametrize("became", ["nothing", "a link", "a file"])
def test_what_waits_is_kept_whatever_became_of_out(tmp_path: Path, became: str) -> None:
    waiting = WorkDirectory(tmp_path, "two-r1-a1-4567")
    waiting.create("/results/runs/two-r1", document())
    waiting.out.rename(tmp_path / "moved")
    make: dict[str, Callable[[], object]] = {
        "nothing": list,
        "a link": lambda: waiting.out.symlink_to(tmp_path / "moved"),
        "a file": waiting.out.touch,
    }
    make[became]()
    assert waiting.exists()
    waiting.collect(0, "a line\n", b"")
    waiting.keep(Pending(target=str(tmp_path / "target"), reason="storage is away", record=None, ended=None), Naming())
    (delivery,) = deliver_pending(tmp_path, lambda _target: None)
    assert delivery.delivered, delivery.message
    assert (tmp_path / "target" / "logs" / "node-0.log").read_text() == "a line\n"


def test_a_lock_without_its_directory_goes(tmp_path: Path) -> None:
    hold(tmp_path / "one").close()
    assert sweep(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []
    held = hold(tmp_path / "two")
    assert sweep(tmp_path) == {}
    held.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_kill_in_the_middle_of_a_sweep_loses_nothing(tmp_path: Path) -> None:
    hold(tmp_path / "one").close()
    (tmp_path / "one").mkdir()

    def die(_path: Path) -> None:
        raise KeyboardInterrupt

    try:
        sweep(tmp_path, die)
    except KeyboardInterrupt:
        assert sweep(tmp_path) == {"one": None}
    assert list(tmp_path.iterdir()) == []
