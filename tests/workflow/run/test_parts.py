"""Clock, loop, log, beats, rendezvous, turn: the small parts around a run."""

import errno
import json
import os
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from base.errors import NodeLost
from workflow.run.link.event_loop import Loop
from workflow.run.node.ranks import RECENT_BYTES, EventTail, RankLog, Reservation
from workflow.run.record.events import read_events
from workflow.run.record.step_clock import STEPS, Clock, run_s
from workflow.run.supervisor.node_locks import NodeLocks
from workflow.run.supervisor.run_scope import RunScope
from workflow.run.supervisor.running_attempt import GitState, git_state


class Time:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_steps_close() -> None:
    time = Time()
    clock = Clock(0.5, time, datetime(2026, 1, 1, tzinfo=UTC))
    for step, seconds in (("assign", 0.5), ("stage", 7.0), ("train", 2.0), ("result", 10.0), ("push", 0.25), ("release", 0.5)):
        time.now += seconds  # of the step before
        clock.enter(step)
    time.now += 0.125
    expected = {"login": None, "assign": 7.0, "stage": 3.0, "train": 10.0, "result": 0.25, "push": 0.5, "release": 0.125}
    assert clock.steps_s() == expected
    assert run_s(clock.steps_s()) == pytest.approx(sum(expected[step] or 0 for step in STEPS[2:]))
    assert clock.end() - clock.start == timedelta(seconds=0.5 + 20.25 + 0.125)


def test_a_step_that_was_not_reached_is_null_and_one_of_the_scheduler_s_stands_beside() -> None:
    clock = Clock(0.0, Time())
    clock.note("login", 12.0)
    clock.note("assign", None)
    assert clock.steps_s() == {**dict.fromkeys(STEPS), "login": 12.0, "stage": 0.0}
    assert run_s(clock.steps_s()) == 0.0
    with pytest.raises(ValueError, match="stagee"):
        clock.enter("stagee")


def test_the_loop_calls_in_order_of_time_and_not_what_was_cancelled() -> None:
    loop, calls = Loop(), []
    loop.after(0.02, lambda: calls.append("later"))
    loop.after(0.0, lambda: calls.append("now"))
    loop.after(0.01, lambda: calls.append("never")).cancel()
    assert loop.until(lambda: len(calls) == 2, 10)
    assert calls == ["now", "later"]
    assert not loop.until(lambda: False, 0.01)


@pytest.mark.processes
def test_the_loop_hears_signals_and_pipes_and_raises_what_a_callback_raises() -> None:
    code = """
import os, signal
from workflow.run.link.event_loop import Loop
loop, heard = Loop(), []
loop.on_signals(heard.append)
os.kill(os.getpid(), signal.SIGTERM)
os.kill(os.getpid(), signal.SIGHUP)
assert loop.until(lambda: len(heard) == 2, 10), heard
reader, writer = os.pipe()
loop.watch(reader, lambda: 1 / 0)
os.write(writer, b"x")
try:
    loop.until(lambda: False, 10)
except ZeroDivisionError:
    print(heard == [15, 1] and loop.watches(reader))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr


def test_a_timer_that_is_set_anew_at_once_keeps_nobody_waiting() -> None:
    loop, calls = Loop(), []

    def again() -> None:
        calls.append(1)
        loop.after(0.0, again)

    loop.after(0.0, again)
    assert loop.until(lambda: bool(calls), 10)


def test_a_source_that_can_be_written_to_is_told_until_it_is_watched_without_that() -> None:
    loop, calls = Loop(), []
    reader, writer = os.pipe()
    loop.watch(writer, lambda: None, lambda: calls.append(1))
    assert loop.until(lambda: len(calls) == 2, 10)
    loop.watch(writer, lambda: None)
    calls.clear()
    assert not loop.until(lambda: bool(calls), 0.01)
    loop.unwatch(writer)
    loop.unwatch(writer)
    assert not loop.watches(writer)
    os.close(reader)
    os.close(writer)


def test_a_source_that_another_callback_took_away_is_not_called() -> None:
    loop = Loop()
    pipes = [os.pipe() for _ in range(2)]
    calls = []

    def first(index: int) -> None:
        calls.append(index)
        for reader, _ in pipes:
            loop.unwatch(reader)

    for index, (reader, writer) in enumerate(pipes):
        loop.watch(reader, partial(first, index))
        os.write(writer, b"x")
    loop.until(lambda: bool(calls), 10)
    assert len(calls) == 1
    for descriptor in (descriptor for pipe in pipes for descriptor in pipe):
        os.close(descriptor)


def test_a_short_log_is_as_it_came(tmp_path: Path) -> None:
    log = RankLog(tmp_path / "log", 1000)
    log.write(b"one\n")
    log.write(b"two\n\n\x1b[31mpassword=x\n")
    assert log.last_lines() == "one\ntwo\n\N{REPLACEMENT CHARACTER}[31mpassword=***"
    log.close()
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n\n\x1b[31mpassword=x\n"


def test_a_full_disk_ends_a_log_and_nothing_else() -> None:
    log = RankLog(Path("/dev/full"), 1000)
    for _ in range(3):
        log.write(b"no space left, says the rank\n" * 100)
    log.close()
    assert log.problem == "No space left on device"
    assert log.last_lines().endswith("no space left, says the rank")


@pytest.mark.parametrize("piece", [7, 100, 5000, 1 << 20])
def test_a_flood_keeps_head_and_tail(tmp_path: Path, piece: int) -> None:
    data = b"".join(b"%06d\n" % number for number in range(20000))
    log = RankLog(tmp_path / "log", 1000)
    for start in range(0, len(data), piece):
        log.write(data[start : start + piece])
    log.close()
    content = (tmp_path / "log").read_bytes()
    head, _, rest = content.partition(b"\n... ")
    left_out, _, tail = rest.partition(b" bytes left out here ...\n")
    assert head == data[:1000]
    assert data.endswith(tail)
    assert len(tail) == RECENT_BYTES
    assert len(head) + int(left_out) + len(tail) == len(data)
    assert os.listdir(tmp_path) == ["log"]


def test_a_little_more_than_fits_is_kept_whole(tmp_path: Path) -> None:
    log = RankLog(tmp_path / "log", 1000)
    log.write(b"x" * 1500)
    log.close()
    assert (tmp_path / "log").read_bytes() == b"x" * 1500


def write_events(path: Path, *events: dict[str, object]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(event) + "\n" for event in events)


def test_beats_follow_a_growing_file(tmp_path: Path) -> None:
    path = tmp_path / "events-0.jsonl"
    beats = EventTail(path, 10.0)
    beats.poll(11.0)
    assert beats.silent_s(12.0) == 2.0
    assert beats.limit_s(60, 600) == 600
    write_events(path, {"event": "phase", "phase": "train"}, *({"event": "step", "step": step, "seconds": 5.0} for step in range(3)))
    beats.poll(20.0)
    assert (beats.phase, beats.step, beats.silent_s(21.0)) == ("train", 2, 1.0)
    assert beats.limit_s(60, 600) == 100
    with path.open("a") as file:
        file.write('{"event": "step", "st')
    beats.poll(30.0)
    assert beats.last == 20.0, "a torn line is no beat yet"
    with path.open("a") as file:
        file.write('ep": 3, "seconds": 5.0}\nnot json\n[]\n')
    beats.poll(40.0)
    assert (beats.step, beats.last) == (3, 40.0)
    write_events(path, {"event": "error", "kind": "nan"}, {"event": "error", "kind": "oom"}, {"event": "run_stop"})
    beats.poll(50.0)
    assert beats.error is not None
    assert beats.error.kind == "nan"
    assert beats.stopped
    assert beats.limit_s(60, 600) == 600


def test_beats_of_very_many_steps_miss_nothing_that_matters(tmp_path: Path) -> None:
    path = tmp_path / "events-0.jsonl"
    steps: list[dict[str, object]] = [{"event": "step", "step": step, "seconds": 0.001} for step in range(5000)]
    write_events(path, {"event": "phase", "phase": "train"}, *steps[:2000], {"event": "error", "kind": "oom"}, *steps[2000:])
    beats = EventTail(path, 0.0)
    beats.poll(1.0)
    assert (beats.phase, beats.step) == ("train", 4999)
    assert beats.error is not None
    assert beats.limit_s(60, 600) == 60


def test_the_port_is_ours_before_anybody_hears_of_it_and_a_server_can_have_it() -> None:
    first, second = Reservation("127.0.0.1"), Reservation("127.0.0.1")
    assert first.ports[0] != second.ports[0]
    with socket.socket() as stranger:
        with pytest.raises(OSError, match="in use") as caught:
            stranger.bind(("127.0.0.1", first.ports[0]))
        assert caught.value.errno == errno.EADDRINUSE
    with socket.create_server(("127.0.0.1", first.ports[0])) as server:
        third = Reservation("127.0.0.1")
        assert third.ports[0] not in (first.ports[0], second.ports[0])
        with socket.create_connection(("127.0.0.1", first.ports[0])):
            server.accept()[0].close()
        third.release()
    first.release()
    second.release()


def test_a_node_holds_all_its_ports_and_lets_go_of_all() -> None:
    held = Reservation("127.0.0.1", 5)
    assert len(set(held.ports)) == 5
    with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
        stranger.bind(("127.0.0.1", held.ports[4]))
    held.release()
    with socket.socket() as other:
        other.bind(("127.0.0.1", held.ports[4]))
    assert Reservation("a name is asked of nobody", 0).ports == ()


def test_a_name_is_no_address_for_a_rendezvous() -> None:
    with pytest.raises(NodeLost, match="needs an IP address of the node, found 'localhost'"):
        Reservation("localhost")
    with pytest.raises(NodeLost, match=r"no free port on 192\.0\.2\.7"):
        Reservation("192.0.2.7")


def test_a_lock_file_that_was_cleaned_away_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "measuring.lock"
    turn = NodeLocks(RunScope(Loop()), [path], 1)
    path.unlink()
    assert turn.try_take()
    assert path.exists()
    turn.give()


@pytest.mark.processes
def test_the_commit_of_a_checkout_is_told_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "file"], ["commit", "-qm", "a"], ["tag", "v1"]):
        subprocess.run([*git, *words], check=True)
    sha = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (tmp_path / "untracked").write_text("b")
    assert git_state(str(tmp_path)) == GitState(git_sha=sha, git_dirty=False)
    (tmp_path / "file").write_text("b")
    assert git_state(str(tmp_path)) == GitState(git_sha=sha, git_dirty=True)


def test_without_a_checkout_there_is_no_commit(tmp_path: Path) -> None:
    assert git_state(str(tmp_path)) == GitState(git_sha=None, git_dirty=None)


@pytest.mark.parametrize("planted", ["a pipe", "a symbolic link", "a directory"])
def test_events_that_are_no_file_are_silence_and_said_once(tmp_path: Path, planted: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "events-0.jsonl"
    (tmp_path / "elsewhere").write_text('{"event": "phase", "phase": "train"}\n')
    make = {"a pipe": os.mkfifo, "a symbolic link": lambda path: path.symlink_to("elsewhere"), "a directory": Path.mkdir}
    make[planted](path)
    beats = EventTail(path, 0.0)
    for now in (1.0, 2.0):
        beats.poll(now)
    assert beats.silent_s(3.0) == 3.0
    assert beats.problem == f"events-0.jsonl cannot be read: it is {planted}"
    assert len(caplog.records) == 1
    assert read_events(tmp_path, 1) == {}
