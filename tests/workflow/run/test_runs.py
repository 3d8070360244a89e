"""Runs from the supervisor to the record, with a program that only writes events: every end, seen from outside."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from base.errors import NodeLost
from base.publish import remove_tree
from data_prep.push import deliver_pending
from tests.cluster import smi
from tests.data_prep.staging.disks import tmpfs
from tests.workflow.run.reading import held_up
from tests.workflow.run.valid import validate_record
from tests.workflow.run.world import HELD_STEPS, World
from workflow.run.node.workdir import deliver

pytestmark = pytest.mark.slow


def checked(world: World, run_id: str, attempt: int | None = None) -> dict[str, Any]:
    """The record, valid; its files are all there."""
    record = world.record(run_id, attempt)
    validate_record(record)
    directory = world.run_dir(run_id) / "attempts" / str(record["attempt"])
    listed = {file["path"] for file in record["files"]}
    found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert found == listed | {"record.json"}
    assert json.loads((directory / "record.json").read_text()) == record
    return record


def ended(world: World, run_id: str) -> dict[str, Any]:
    """Run it; a result with exit code 0, its record, and nothing left."""
    log = world.ends(run_id)
    assert world.left() == [], log
    return checked(world, run_id)


def prevented(world: World, run_id: str, code: int, status: str) -> dict[str, Any]:
    """Run it; an attempt that was prevented, its record, and nothing left."""
    world.ends(run_id, code)
    assert world.left() == []
    assert not (world.run_dir(run_id) / "record.json").exists()
    record = checked(world, run_id, 1)
    assert (record["status"], record["kind"], record["result_number"]) == (status, "prevented", None)
    return record


@pytest.mark.parametrize(("nodes", "each"), [(1, 1), (3, 2)])
def test_a_run_that_ends_well(world: World, nodes: int, each: int) -> None:
    run_id = world.cell(nodes, each, measured=10, step_s=0.002)
    log = world.ends(run_id)
    assert world.left() == []
    assert re.search(r": ok in [\d.]+ s: [\d.,]+ samples/s over 10 steps, loss [\d.]+ -> [\d.]+, 75.0 % of test correct\n", log), log
    assert "killed" not in log.lower()
    record = checked(world, run_id)
    assert record["status"] == "ok"
    assert record["kind"] == "result"
    assert (record["attempt"], record["result_number"], record["world_size"]) == (1, 1, nodes * each)
    assert record["performance"]["num_measured_steps"] == 10
    assert record["performance"]["num_warmup_steps"] == 2
    assert record["training"]["eval"] == {"split": "test", "loss": 0.5, "accuracy": 0.75, "samples": 4}
    assert record["training"]["parameters"] == 426_571, "of lenet on these images"
    assert [node["name"] for node in record["nodes"]] == [f"local-{index}" for index in range(nodes)]
    assert all(node["stage"]["copied_bytes"] > 0 and not node["stage"]["hit"] for node in record["nodes"])
    assert sum(node["stage"]["storage_bytes"] for node in record["nodes"]) == record["dataset"]["bytes"]  # once, however many nodes
    assert sum(node["stage"]["peer_bytes"] for node in record["nodes"]) == (nodes - 1) * record["dataset"]["bytes"]
    assert record["oversubscribed"] == (nodes > len(os.sched_getaffinity(0)) or each > len(os.sched_getaffinity(0)) // nodes)
    assert record["provenance"]["framework"] == "fake"
    assert record["provenance"]["slipway_version"]
    assert record["warnings"] == record["busy"], "others may work here while it measures"
    assert record["preflight"] is None, "one address for all is no network"
    names = {file["path"] for file in record["files"]}
    assert {"cell.json", "parameters.safetensors", "events-0.jsonl", "logs/rank-0.log", f"logs/node-{nodes - 1}.log"} <= names


def test_a_small_cell_of_a_larger_study_gets_a_small_node(world: World) -> None:
    run_id = world.cell(1)
    cores = len(os.sched_getaffinity(0))
    world.cell(cores)
    record = ended(world, run_id)
    assert len(record["nodes"][0]["cores"]) == 1
    assert record["provenance"]["cpu_cores"] == record["nodes"][0]["cores"]
    assert record["threads_per_rank"] == 1


def test_a_program_that_fails_is_a_row(world: World) -> None:
    record = ended(world, world.cell(2, do={"1": [3, "raise"]}))
    assert record["status"] == "error"
    assert record["status_reason"] == "rank 1 on local-1 ended with exit code 1: ValueError: the seed of all evil"
    assert (record["failed_rank"]["rank"], record["failed_rank"]["host"]) == (1, "local-1")
    assert record["failed_rank"]["last_lines"].endswith("ValueError: the seed of all evil")
    assert record["performance"]["num_measured_steps"] == 1


def test_a_killed_rank_is_named_among_the_echoes_and_the_attempt_prevented(world: World) -> None:
    record = prevented(world, world.cell(3, step_s=0.01, do={"1": [3, "SIGKILL"]}), 23, "killed")
    assert record["status_reason"].startswith("rank 1 on local-1 was killed from outside by SIGKILL")
    assert record["failed_rank"]["rank"] == 1


def test_a_cleaner_that_removes_the_cache_is_told_in_words(world: World) -> None:
    run_id = world.cell(step_s=0.02, measured=10000)
    process = world.in_training(run_id)
    remove_tree(world.cache / "local-0" / "runs")
    log = world.end_of(process, 15)
    assert "Traceback" not in log
    record = world.record(run_id, 1)
    assert (record["status"], record["kind"]) == ("storage", "prevented")
    assert "somebody removed it while the run was at work, such as a cleaner of old files: keep it off the cache" in record["status_reason"]


def test_a_result_that_is_there_is_published_and_not_trained_again(world: World) -> None:
    run_id = world.cell(do={"0": [3, "exit 3"]})
    first = ended(world, run_id)
    (world.run_dir(run_id) / "record.json").unlink()
    log = world.ends(run_id)
    assert f"{run_id} has the result that was asked for: attempt 1, status error; nothing is trained" in log
    assert world.record(run_id) == first
    world.cells[0]["optimizer"]["fake"] = {}
    world.write()
    second = ended(world, f"{run_id}.after-1")
    assert (second["status"], second["attempt"], second["result_number"]) == ("ok", 2, 2)
    code, log = world.run(f"{run_id}.after-1")  # of somebody who saw the first result only
    assert (code, world.record(run_id)) == (0, second), log
    assert sorted(path.name for path in (world.run_dir(run_id) / "attempts").iterdir()) == ["1", "2"]
    assert world.left() == []


def test_a_rank_that_never_speaks_hangs_by_the_init_limit(world: World) -> None:
    world.shorter["rank_silence_s"] = 2.0
    world.limits["init_s"] = 4.0
    record = ended(world, world.cell(do={"0": [0, "sleep"]}))
    assert record["status"] == "hang"
    assert "in phase warmup, limit 4 s" in record["status_reason"]


def test_a_program_that_ignores_term_is_killed_and_its_children_too(world: World) -> None:
    world.shorter["rank_silence_s"] = 5.0
    run_id = world.cell(2, do={"0": [3, "child"], "1": [1, "deaf"]}, step_s=0.01, measured=4000, sync=False)
    process = world.start(run_id)
    world.wait_for(lambda: world.pids("sleep") and world.steps(run_id, 1) > 3)
    process.terminate()
    world.end_of(process, 26)
    assert world.left() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_cancels_and_what_is_there_is_pushed(world: World, number: int) -> None:
    run_id = world.cell(2, step_s=0.02, measured=10000)
    process = world.in_training(run_id, 5)
    process.send_signal(number)
    world.end_of(process, 26)
    record = checked(world, run_id, 1)
    assert record["status"] == "cancelled"
    assert signal.Signals(number).name in record["status_reason"]
    assert record["performance"]["num_measured_steps"] > 0
    assert world.left() == []


def test_a_supervisor_whose_parent_ends_cancels(world: World) -> None:
    run_id = world.cell(step_s=0.02, measured=10000)
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-m', 'workflow.run.supervisor', '--results', sys.argv[1], '--run',"
        " sys.argv[2]], stderr=subprocess.DEVNULL); input()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(world.results), run_id],
        stdin=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
        env={**os.environ, "SLIPWAY_TEST_WORLD": str(world.path)},
    )
    world.wait_for(lambda: world.steps(run_id) > 5)
    parent.kill()
    parent.communicate()
    world.wait_for(lambda: not world.processes())
    assert checked(world, run_id, 1)["status_reason"] == "the process that started the supervisor has ended"
    assert world.left() == []


def test_a_second_supervisor_of_a_living_run_waits_for_its_result(world: World) -> None:
    run_id = world.held()
    first = world.in_training(run_id)
    second = world.start(run_id)
    log = log_until(second, "waiting until it ends")
    world.go_on()
    log += world.end_of(second)
    assert first.wait(timeout=30) == 0
    refused = rf"{run_id} is running already, attempt 1 of this run, .*: process {first.pid} on .*kill {first.pid}\); waiting until it ends"
    assert re.search(refused, log)
    assert "has the result that was asked for: attempt 1, status ok; nothing is trained" in log
    assert world.left() == []


def test_a_supervisor_that_waits_for_another_ends_when_it_is_told_to_or_takes_its_place(world: World, tmp_path: Path) -> None:
    run_id = world.cell(step_s=0.02, measured=10000)
    log = tmp_path / f"{run_id}.log"
    first = world.start_as_the_rule(run_id, log)
    world.wait_for(lambda: world.steps(run_id) > 1)
    assert f"{run_id}: attempt 1" in log.read_text()
    told_to_end, next_one = world.start_as_the_rule(run_id, log), world.start_as_the_rule(run_id, log)
    world.wait_for(lambda: log.read_text().count("waiting until it ends") == 2)
    told_to_end.terminate()
    assert told_to_end.wait(timeout=30) == 26
    assert first.poll() is None
    first.terminate()
    assert first.wait(timeout=30) == 26
    world.wait_for(lambda: f"{run_id}: attempt 2" in log.read_text())
    next_one.terminate()
    assert next_one.wait(timeout=30) == 26
    assert world.left() == []


def test_two_runs_take_turns_on_this_machine(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPWAY_LOGIN_S", "4.5")
    one, two = world.held(), world.cell(measured=5)
    first = world.in_training(one)
    second = world.start(two)
    log = log_until(second, "waiting for this machine")
    assert re.search(r"waiting for this machine: study \S+ of \S+, process \d+ \(fake-0-r1\)", log)
    world.go_on()
    world.end_of(second)
    assert first.wait(30) == 0
    record, mine = checked(world, two), world.record(one)
    assert record["time"]["start"] < mine["time"]["end"], "they were there at the same time"
    assert record["steps_s"]["assign"] > 0
    assert record["steps_s"]["login"] == 4.5
    assert record["run_s"] < record["steps_s"]["assign"] + 30
    begin = float(json.loads((world.run_dir(two) / "attempts/1/events-0.jsonl").read_text().splitlines()[0])["time"])
    end = float(json.loads((world.run_dir(one) / "attempts/1/events-0.jsonl").read_text().splitlines()[-1])["time"])
    assert begin > end, "the second began before the first was over"


def test_cancelled_or_at_its_job_s_end_while_it_waits_for_its_turn_it_leaves_nothing(world: World) -> None:
    one, two = world.cell(step_s=0.02, measured=10000), world.cell()
    first = world.in_training(one)
    second = world.start(two)
    log_until(second, "waiting for this machine")
    second.terminate()
    world.end_of(second, 26)
    assert list(world.run_dir(two).iterdir()) == []
    world.job_s = 2.0
    world.write()
    log = world.ends(two, 25)
    assert "not begun" in log
    assert list(world.run_dir(two).iterdir()) == []
    first.terminate()
    first.communicate(timeout=30)
    assert world.left() == []


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (lambda world: world.cells[0].update(precision="bf16"), 11, "bf16"),
        (lambda world: world.cells[0].update(device="cuda"), 14, "nvidia-smi shows no GPU"),
        (lambda world: world.site.update(scheduler="slurm"), 14, "not inside a job"),
        (lambda world: world.cells[0].update(dataset="other"), 20, "dataset.json"),
        (lambda world: world.site.update(setup=["exit 3"]), 24, "ended with 3"),
    ],
)
def test_what_cannot_be_run_is_refused_and_nothing_stays(
    world: World, monkeypatch: pytest.MonkeyPatch, change: Any, code: int, words: str
) -> None:
    smi.install(world.path, ["no-devices"])
    monkeypatch.setenv("PATH", f"{world.path}:{os.environ['PATH']}")
    run_id = world.cell()
    receipt = next(world.storage.glob("datasets/.build/*/dataset.json"))
    change(world)
    world.write()
    for path in {*world.storage.glob("datasets/.build/*/dataset.json")} - {receipt}:
        path.unlink()
    log = world.ends(run_id, code)
    assert words in log
    assert world.left() == []


@pytest.fixture
def used_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One GPU, on which another's process is; its UUID."""
    place = tmp_path / "bin"
    place.mkdir()
    smi.install(place, ["p100x8-query", "p100x8-list", "compute-apps"])
    monkeypatch.setenv("PATH", f"{place}:{os.environ['PATH']}")
    uuid = smi.answer("compute-apps").split(",")[0]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid)
    return uuid


@pytest.mark.parametrize("word", ["record", "refuse"])
def test_another_s_process_on_a_gpu_of_this_machine(world: World, used_gpu: str, word: str) -> None:
    world.site["foreign_gpu"] = word
    run_id = world.cell()
    world.cells[0]["device"] = "cuda"
    world.write()
    code, log = world.run(run_id)
    said = f"local-0: {used_gpu} is used by process 41207 (/usr/bin/python3) of"
    if word == "record":
        assert code == 0, log
        assert said in world.record(run_id)["warnings"][0]
    else:
        assert code == 14, log
        assert "foreign_gpu: refuse" in world.record(run_id, 1)["status_reason"]
        assert used_gpu in world.record(run_id, 1)["status_reason"]
    assert world.left() == []


@pytest.mark.parametrize("change", ["", "changed"])
def test_a_run_starts_from_the_file_of_parameters_that_its_study_was_read_with(world: World, change: str) -> None:
    run_id = world.cell(2)
    given = world.path / "start.safetensors"
    given.write_bytes(b"numbers")
    file = {"path": str(given), "bytes": 7, "blake3": blake3(b"numbers").hexdigest()}
    world.cells[-1] |= {"parameters": given.name, "parameters_file": file}
    world.write()
    if not change:
        assert ended(world, run_id)["cell"]["parameters_file"] == file
        return
    given.write_bytes(b"another")
    record = prevented(world, run_id, 15, "storage")
    assert record["steps_s"]["train"] is None
    assert f"parameters: the file {given} is " in record["status_reason"]


# -- storage at push


def in_the_way(world: World, run_id: str) -> Path:
    """Storage refuses the files of the run while this file is there."""
    path = world.run_dir(run_id) / "attempts"
    path.write_text("a file is in the way")
    return path


def waiting(world: World, node: str = "*") -> int:
    """How many results wait on the nodes."""
    return len(list(world.cache.glob(f"local-{node}/runs/*/pending.json")))


def ends_without_storage(world: World, run_id: str) -> None:
    """Run it while storage refuses its files, which wait on its nodes then; storage takes what comes from now on."""
    world.shorter["push_s"] = 0.5
    process = world.in_training(run_id)
    path = in_the_way(world, run_id)
    world.go_on()
    log = world.end_of(process, 22)
    assert "could not be pushed" in log
    assert world.processes() == []
    path.unlink()
    del world.shorter["push_s"]  # a busy machine may need longer for a push that succeeds


def log_until(process: Any, words: str) -> str:
    """What it has said when it has said this."""
    log = ""
    for line in process.stderr:
        log += line
        if words in line:
            return log
    raise AssertionError(f"it has not said {words!r}: {log}")


def test_a_result_that_storage_does_not_take_stays_on_the_node_and_can_be_delivered(world: World) -> None:
    run_id = world.held(2)
    ends_without_storage(world, run_id)
    assert waiting(world) == 2
    assert list(world.cache.glob("local-*/leases/*/*.json")) == []
    killed = os.fork()
    if not killed:  # between the delivery and its record
        deliver_pending(world.cache / "local-0", lambda _: None, record=lambda _: os.kill(os.getpid(), signal.SIGKILL))
        os._exit(1)
    assert os.WTERMSIG(os.waitpid(killed, 0)[1]) == signal.SIGKILL
    (delivery,) = deliver(world.cache / "local-0", world.storage)
    assert delivery.delivered
    assert "files of other nodes are missing (node 1): deliver there too" in delivery.message
    record = world.record(run_id, 1)
    validate_record(record)
    assert (record["status"], record["kind"]) == ("storage", "prevented")
    assert "the run ended ok, and its result could not be pushed" in record["status_reason"]
    assert not (world.run_dir(run_id) / "record.json").exists()
    (delivery,) = deliver(world.cache / "local-1", world.storage)
    assert delivery.message == "delivered; the run's result: attempt 1, status ok"
    record = checked(world, run_id)
    assert (record["status"], record["result_number"], record["performance"]["num_measured_steps"]) == ("ok", 1, HELD_STEPS)
    assert {"events-0.jsonl", "events-1.jsonl", "logs/node-1.log", "ended.json"} <= {file["path"] for file in record["files"]}
    assert "it was delivered later" in record["warnings"][0]
    # and nothing is trained again
    log = world.ends(run_id)
    assert "attempt 1, status ok; nothing is trained" in log
    assert [path.name for path in (world.run_dir(run_id) / "attempts").iterdir()] == ["1"]
    assert world.left() == []


def test_storage_that_comes_back_gets_its_result(world: World) -> None:
    run_id = world.held()
    process = world.in_training(run_id)
    path = in_the_way(world, run_id)
    world.go_on()
    log_until(process, "push failed")
    path.unlink()
    world.end_of(process)
    assert checked(world, run_id)["status"] == "ok"
    assert world.left() == []


def fill(place: Path) -> None:
    with (place / "filler").open("wb") as file, contextlib.suppress(OSError):
        file.write(bytes(1 << 20))


def make_read_only(place: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)


@pytest.mark.parametrize(
    ("break_it", "code", "words"), [(fill, 18, "storage is full"), (make_read_only, 22, "Read-only file system")], ids=["full", "read-only"]
)
def test_storage_that_takes_nothing_is_told_as_such(world: World, break_it: Any, code: int, words: str) -> None:
    world.shorter |= {} if break_it is fill else {"push_s": 0.5}  # full storage is not waited for
    run_id = world.held()
    (world.results / "runs").mkdir(parents=True)
    with tmpfs(world.results / "runs" / run_id, 64 << 10) as place:
        process = world.in_training(run_id)
        break_it(place)
        world.go_on()
        log = world.end_of(process, code)
        assert words in log
        assert waiting(world, "0") == 1
    assert world.processes() == []


def test_who_is_told_to_end_while_storage_refuses_leaves_the_result_on_the_node(world: World) -> None:
    run_id = world.held()
    process = world.in_training(run_id)
    in_the_way(world, run_id)
    world.go_on()
    log = log_until(process, "push failed")
    process.terminate()
    rest = process.stderr.read()
    assert process.wait(30) == 22, log + rest
    assert rest.count("push failed") == 0
    assert "its result waits on local-0" in rest
    assert waiting(world, "0") == 1
    assert world.processes() == []


def test_a_result_that_neither_storage_nor_a_full_cache_takes_is_lost_in_words(world: World) -> None:
    world.shorter["push_s"] = 0.5
    run_id = world.cell(last="fill")
    world.run_dir(run_id).mkdir(parents=True)
    path = in_the_way(world, run_id)
    with tmpfs(world.cache, 16 << 20):
        log = world.ends(run_id, 22)
        assert "its result waits on local-0 if there is room on the disk there; " in log
        assert "the result of this attempt is lost, and the same command makes the run again: " in log
        (node,) = world.cache.glob("local-0")
        path.unlink()
        (node / "filler").unlink()
        del world.shorter["push_s"]  # as in ends_without_storage
        assert world.run(run_id)[0] == 0
    assert checked(world, run_id)["status"] == "ok"


def take_inodes(place: Path, left: int) -> None:
    """All but so many of its file system."""
    many = Path(tempfile.mkdtemp(prefix="many-", dir=place))
    for number in range(os.statvfs(place).f_favail - left):
        (many / str(number)).touch()


def test_a_cache_without_inodes_is_told_as_such_and_nothing_is_left(world: World) -> None:
    run_id, later, running = world.cell(measured=2), world.cell(measured=3), world.held()
    with tmpfs(world.cache, 64 << 20, 200):
        world.ends(run_id)
        process = world.in_training(running)
        take_inodes(world.cache, 0)
        world.go_on()
        world.end_of(process, 22)
        record = checked(world, running, 1)
        assert (record["status"], record["kind"]) == ("storage", "prevented")
        assert "could not read its dataset or write its files: OSError: [Errno 28] No space left" in record["status_reason"]
        take_inodes(world.cache, 3)
        log = world.ends(later, 15)
        assert "no inodes are left on the file system of" in log
        assert "Traceback" not in log
        assert "cleaner" not in log
        for many in world.cache.glob("many-*"):
            remove_tree(many)
        assert world.left() == []
        for asked in (later, running):
            world.ends(asked)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_node_that_is_lost_while_it_pushes_ends_the_run_without_it(world: World, nodes: int) -> None:
    run_id = world.held(nodes, do={"0": [1, "folder"]})
    process = world.start(run_id)
    (left,) = world.wait_for(lambda: list(world.cache.glob("local-0/runs/*/out/folder/file")))
    with held_up(left) as wait_for_the_push:
        world.go_on()
        wait_for_the_push()
        (part,) = world.run_dir(run_id).glob("attempts/.1.part-*/folder/file")
        os.kill(world.node_program(0), signal.SIGKILL)
        log = world.end_of(process, NodeLost.exit_code)
    record = world.record(run_id, 1)
    assert record["status"] == "node_lost", log
    assert "the run ended ok, and local-0 was lost before its files were on network storage" in record["status_reason"]
    assert not part.parents[1].exists()
    assert not (world.run_dir(run_id) / "record.json").exists()
    logs = world.run_dir(run_id) / "attempts" / "1" / "logs"
    assert [path.name for path in sorted(logs.glob("node-*"))] == [f"node-{index}.log" for index in range(1, nodes)]
    assert world.processes() == []


def test_who_lost_the_lease_publishes_nothing(world: World) -> None:
    run_id = world.held()
    process = world.in_training(run_id)
    path = world.run_dir(run_id) / "lease.json"
    lease = json.loads(path.read_text())
    path.write_text(json.dumps({**lease, "token": "feedfeedfeedfeed"}))
    world.go_on()
    world.end_of(process, 21)
    assert not (world.run_dir(run_id) / "record.json").exists()
    aside = world.run_dir(run_id) / "attempts" / f"1.lost-{lease['token'][:8]}"
    assert (aside / "events-0.jsonl").exists()
    assert json.loads(path.read_text())["token"] == "feedfeedfeedfeed"
    path.unlink()
    assert world.left() == []


def test_ranks_that_write_the_same_names_keep_no_result_from_storage(world: World) -> None:
    run_id = world.cell(2, do={"0": [2, "names"], "1": [2, "names"]})
    record = ended(world, run_id)
    assert record["status"] == "ok"
    assert record["performance"]["num_measured_steps"] == 6
    attempt = world.run_dir(run_id) / "attempts" / "1"
    assert (attempt / "profile.txt").read_text() == "rank 0"
    assert (attempt / "of-node-1" / "profile.txt").read_text() == "rank 1"
