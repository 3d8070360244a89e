"""Work directories: those at work stay, those of the dead go, those that wait for storage stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from base.jsonfile import json_text
from data_prep.push import Naming, deliver_pending
from tests.data_prep.staging.disks import immutable
from tests.workflow.run.cells import document
from tests.workflow.run.record.test_machine_load import node
from workflow.run.link.commands import Pending
from workflow.run.node.workdir import WorkDirectory, hold, of_run, remove_delivered, room_bytes, sweep

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


@pytest.mark.parametrize("nodes", [1, 64, 200])
def test_the_record_of_a_run_on_many_gpus_has_its_room(tmp_path: Path, nodes: int) -> None:
    """With what was seen of every GPU of its nodes, and the files of every rank."""
    directory = WorkDirectory(tmp_path, "one-r1-a1-0123")
    directory.create("/results/runs/one-r1", document(nodes=nodes))
    names = ("looks", "mhz_mean", "max_mhz", "celsius_max", "watts_mean", "busy_ratio_mean", "ecc_errors", "others_max")
    gpu = {"uuid": "GPU-" + "0" * 36, **dict.fromkeys(names, 1234.5678), "throttled": ["power cap"]}
    part = {**node()["load"]["during"], "gpus": [gpu] * 8}
    card = {"uuid": "0" * 40, "model": "m" * 40}
    machine = {"name": "n" * 63, "cores": list(range(128)), "gpus": [card] * 8, "gpus_seen": ["0" * 40] * 8}
    files = [{"path": f"events-{rank}.jsonl", "bytes": 10**8, "blake3": "a" * 64} for rank in range(16)]
    record = {"nodes": [{**machine, "load": {"cores": 128, "before": part, "during": part}}] * nodes, "files": files * nodes}
    assert len(json_text(record)) < (directory.room / "record.json").stat().st_size
    assert {path.name: path.stat().st_size for path in directory.room.iterdir()} == room_bytes(nodes)
