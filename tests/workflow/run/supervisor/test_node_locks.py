"""Locks of nodes, and what earlier attempts left."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from base.errors import AllocationError
from workflow.run.link.event_loop import Loop
from workflow.run.node.preparation import end_older_attempts, is_older
from workflow.run.supervisor import step_limits
from workflow.run.supervisor.node_locks import MACHINE, NodeLocks, _study_words, take_nodes, waiting_words
from workflow.run.supervisor.run_scope import RunScope


def new_scope() -> RunScope:
    return RunScope(Loop())


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return [tmp_path / "job" / f"n{number}.lock" for number in range(4)]


def take_apart(paths: Sequence[Path]) -> list[subprocess.Popen[str]]:
    """Another program that holds these locks until its input ends."""
    script = "import fcntl, sys; file = open(sys.argv[1], 'a'); fcntl.flock(file, 2); print('has it', flush=True); sys.stdin.read()"
    found = []
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        one = subprocess.Popen([sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert one.stdout is not None
        assert one.stdout.readline() == "has it\n"
        found.append(one)
    return found


def end(holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.communicate()


def free(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_runs_side_by_side_hold_different_nodes(paths: list[Path]) -> None:
    first, second, third = NodeLocks(new_scope(), paths, 2), NodeLocks(new_scope(), paths, 2), NodeLocks(new_scope(), paths, 1)
    assert first.try_take()
    assert second.try_take()
    assert (first.taken, second.taken) == ((0, 1), (2, 3))
    first.sign("run a")
    second.sign("run b")
    assert not third.try_take()
    assert third.signature() == "run a, run b"
    second.give()
    assert third.try_take()
    assert third.taken == (2,)
    first.give()
    third.give()
    assert all(free(path) for path in paths)


@pytest.mark.processes
def test_a_run_waits_until_enough_nodes_are_free_and_takes_no_more(paths: list[Path]) -> None:
    holders = take_apart(paths[1:])
    turn = NodeLocks(scope := new_scope(), paths, 3)
    assert not turn.try_take()
    scope.loop.after(0.01, lambda: end(holders[0]))
    scope.loop.after(0.05, lambda: end(holders[2]))
    turn.take()
    assert turn.taken == (0, 1, 3)
    end(holders[1])
    assert free(paths[2])
    turn.give()
    assert all(free(path) for path in paths)


@pytest.mark.processes
def test_who_waits_is_told_of_each_holder(paths: list[Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(step_limits, "SHOW_EVERY_S", 0.01)
    (holder,) = take_apart(paths[:1])
    paths[0].write_text("run a")
    turn = NodeLocks(scope := new_scope(), paths[:1], 1)
    then: list[Callable[[], object]] = [lambda: paths[0].write_text("run b"), lambda: end(holder)]
    scope.loop.every(0.01, lambda: then.pop(0)() if len(caplog.records) > 2 - len(then) else None)
    run: Any = SimpleNamespace(allocation=SimpleNamespace(own_job=True), study="photos", run_id="r1")
    with caplog.at_level("INFO"):
        take_nodes(run, turn)
        turn.give()
        scope.loop.until(lambda: False, 0.05)
    said = [record.getMessage() for record in caplog.records]
    assert said == [waiting_words(MACHINE, name, "photos") for name in ("run a", "run b")]


@pytest.mark.processes
def test_a_lock_lasts_as_long_as_a_program_that_has_inherited_it(paths: list[Path]) -> None:
    turn = NodeLocks(new_scope(), paths, 1)
    assert turn.try_take()
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=turn.descriptors)
    turn.give(inherited=True)
    assert not free(paths[0])
    child.communicate(b"")
    assert free(paths[0])


def test_a_lock_in_whose_place_is_something_else_is_said(tmp_path: Path) -> None:
    (tmp_path / "measuring.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AllocationError, match=r"the lock .*measuring.lock cannot be opened: Too many levels of symbolic links"):
        NodeLocks(new_scope(), [tmp_path / "measuring.lock"], 1)
    assert not (tmp_path / "elsewhere").exists()


HERE, ELSEWHERE = "123456789abcdef0", "fedcba9876543210"


@pytest.mark.parametrize(
    ("tag", "other", "older"),
    [
        ("a-r1-a2-" + HERE + "12345678", "a-r1-a1-" + HERE + "ffffffff", True),
        ("a-r1-a10-" + HERE + "12345678", "a-r1-a9-" + HERE + "ffffffff", True),
        ("a-r1-a2-" + HERE + "12345678", "a-r1-a2-" + HERE + "ffffffff", False),
        ("a-r1-a2-" + HERE + "12345678", "a-r1-a3-" + HERE + "ffffffff", False),
        ("a-r1-a2-" + HERE + "12345678", "b-r1-a1-" + HERE + "ffffffff", False),
        ("a-r1-a2-" + HERE + "12345678", "a-r1-a1-" + ELSEWHERE + "ffffffff", False),
        ("a-r1-a2-" + HERE + "12345678", "a-r1-a1-" + HERE[:15] + "effffffff", False),
        ("a-r1-a2-" + HERE + "12345678", "nonsense", False),
        ("", "a-r1-a1-" + HERE + "ffffffff", False),
    ],
)
def test_only_earlier_attempts_of_the_same_run_are_older(tag: str, other: str, older: bool) -> None:
    assert is_older(tag, other) is older


@pytest.mark.processes
def test_what_an_earlier_attempt_left_on_this_node_is_ended() -> None:
    where = f"{os.getpid():016x}"
    old = {"SLIPWAY_ATTEMPT": f"left-r1-a1-{where}00000000", "PATH": os.environ["PATH"]}
    left = subprocess.Popen(["sleep", "60"], env=old)
    current = subprocess.Popen(["sleep", "60"], env={**old, "SLIPWAY_ATTEMPT": f"left-r1-a2-{where}00000000"})
    try:
        end_older_attempts(f"left-r1-a2-{where}11111111")
        assert left.wait(10) == -9
        assert current.poll() is None
    finally:
        current.kill()
        current.wait()


def test_who_waits_for_this_machine_knows_whose_study_has_it_and_what_to_do() -> None:
    other = "study speed of anna, process 522 (lenet-r1)"
    assert waiting_words(MACHINE, other, "photos") == (
        f"waiting for this machine: {other} measures on it until its end; Ctrl-C where that study was started frees it"
    )
    own = f"{_study_words('photos')} process 522 (lenet-r1)"
    assert waiting_words(MACHINE, own, "photos") == f"waiting for this machine: {own}"
    assert waiting_words(MACHINE, "", "photos") == "waiting for this machine: other runs have it"
    assert waiting_words("2 of 4 nodes of job 7", other, "photos") == f"waiting for 2 of 4 nodes of job 7: {other}"
