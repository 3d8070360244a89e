"""The watchdog alone, as a process of this machine: what the container's first process does when the node program goes, hangs or asks."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from containers.engines import container_start
from tests.containers.specs import WATCHDOG, alive

PATIENCE_S = 20.0
slow = pytest.mark.slow


class Outside:
    """The node program's end."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.mark = f"mark-{place.name}-{os.getpid()}"
        self.outputs: list[int] = []
        self.link: container_start.WatchdogConnection | None = None
        self.heard: list[dict[str, Any]] = []
        self.popen: subprocess.Popen[bytes] | None = None
        self.beat = place / "beat"
        self.beat.touch()

    def start(self, *commands: str, **plan: Any) -> None:
        """Shell commands as ranks."""
        self.connect(*commands, **plan)
        self.order_start()
        self.pids = self.hear("started")["pids"]

    def connect(self, *commands: str, **plan: Any) -> None:
        argvs = [["sh", "-c", f": {self.mark}; {command}"] for command in commands]
        ranks = [{"name": f"rank-{index}", "argv": argv, "env": {}, "cwd": str(self.place)} for index, argv in enumerate(argvs)]
        value = {"beat": str(self.beat), "beat_s": 20, "deadline": None, "grace_s": 0.3, "umask": 0o077, "list_gpus": False}
        value |= {"home": str(self.place / "home"), "processes": ranks, **plan}
        value["deadline"] = None if value["deadline"] is None else time.monotonic() + value["deadline"]
        container_start.prepare(self.place / "control", [("plan.json", json.dumps(value))], None)
        listener = container_start.listen(self.place / "control", None)
        argv = [sys.executable, "-I", "-S", "-B", str(WATCHDOG), str(self.place / "control")]
        self.popen = subprocess.Popen(argv, stderr=subprocess.PIPE, start_new_session=True)
        assert select.select([listener], [], [], PATIENCE_S)[0]
        connection, _ = listener.accept()
        listener.close()
        self.link = container_start.WatchdogConnection(connection)
        assert self.hear("up")["pid"] == self.popen.pid
        self.count = len(commands)

    def order_start(self) -> None:
        assert self.link is not None
        theirs = []
        for _ in range(self.count):
            ours, their = os.pipe()
            self.outputs.append(ours)
            theirs.append(their)
        self.link.order("start", theirs)
        for descriptor in theirs:
            os.close(descriptor)

    def hear(self, what: str, process: int | None = None) -> dict[str, Any]:
        assert self.link is not None
        while not (found := [words for words in self.heard if (words["type"], words.get("process")) == (what, process)]):
            assert not self.link.ended
            assert select.select([self.link], [], [], PATIENCE_S)[0], what
            self.heard += self.link.read()
        return found[0]

    def exit(self, index: int) -> int:
        return int(self.hear("ended", index)["code"])

    def is_silent(self) -> bool:
        """Whether nothing more is told for a moment."""
        assert self.link is not None
        return not select.select([self.link], [], [], 0.2)[0]

    def output(self, index: int) -> bytes:
        said = b""
        while data := os.read(self.outputs[index], 1 << 16):
            said += data
        return said

    def line(self, index: int) -> bytes:
        assert select.select([self.outputs[index]], [], [], PATIENCE_S)[0]
        return os.read(self.outputs[index], 100)

    def end(self) -> tuple[int, str]:
        """Its exit code and what it said; nothing of it may be left."""
        assert self.popen is not None
        _, said = self.popen.communicate(timeout=PATIENCE_S)
        assert alive(self.mark) == []
        return self.popen.returncode, said.decode()

    def close(self) -> None:
        if self.popen is not None and self.popen.stderr is not None and not self.popen.stderr.closed:
            self.popen.kill()
            self.popen.communicate()
        for pid in alive(self.mark):
            os.kill(pid, signal.SIGKILL)
        for descriptor in self.outputs:
            os.close(descriptor)
        if self.link is not None:
            self.link.close()


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    found = Outside(tmp_path)
    yield found
    found.close()


@slow
def test_exits_and_outputs_of_all_come_out(outside: Outside) -> None:
    outside.start("echo one; exit 3", "echo two >&2; umask", "kill -SEGV $$")
    assert [outside.exit(index) for index in range(3)] == [3, 0, -signal.SIGSEGV]
    assert [outside.output(index) for index in range(3)] == [b"one\n", b"two\n0077\n", b""]
    assert outside.end() == (0, "")


@slow
def test_much_output_is_not_lost_and_does_not_block_the_others(outside: Outside) -> None:
    outside.start(f"{sys.executable} -c \"print('x' * 799999)\"", "exit 4")
    assert outside.exit(1) == 4
    assert len(outside.output(0)) == 800000
    assert outside.exit(0) == 0
    assert outside.end() == (0, "")


@slow
def test_a_rank_s_grandchildren_end_with_the_last_rank(outside: Outside) -> None:
    outside.start(f"setsid sh -c ': {outside.mark}; sleep 100 & sleep 100' & (sleep 100 &) ; exit 0")
    assert outside.exit(0) == 0
    assert outside.end() == (0, "")


@slow
def test_a_signal_goes_to_the_one_it_is_for_and_its_group(outside: Outside) -> None:
    outside.start("sleep 100 & echo up; wait", "echo up; sleep 100")
    assert [outside.line(0), outside.line(1)] == [b"up\n", b"up\n"]
    assert outside.link is not None
    outside.link.order("signal", process=0, number=int(signal.SIGTERM))
    assert outside.exit(0) == -signal.SIGTERM
    assert outside.output(0) == b"", "the sleep in the background still holds the pipe"
    assert outside.is_silent()
    outside.link.order("signal", process=1, number=int(signal.SIGKILL))
    assert outside.exit(1) == -signal.SIGKILL
    assert outside.end()[0] == 0


DEAF = "trap 'echo TERM' TERM; echo up; while true; do sleep 0.05; done"


@slow
@pytest.mark.parametrize(
    ("plan", "act", "said"),
    [
        ({"beat_s": 1}, lambda outside: None, "has not shown that it lives for 1 s"),
        ({"deadline": 1.5}, lambda outside: None, "the deadline has passed"),
        ({}, lambda outside: outside.link.close(), "the node program is gone"),
        ({}, lambda outside: outside.popen.send_signal(signal.SIGTERM), "got signal 15"),
        ({}, lambda outside: outside.link.order("kill"), "ended by the node program"),
    ],
    ids=["beat", "deadline", "link", "TERM", "kill"],
)
def test_all_ends_by_term_then_kill(outside: Outside, plan: dict[str, Any], act: Any, said: str) -> None:
    outside.start(DEAF, "echo up; exec sleep 100", **plan)
    outside.line(0)
    outside.line(1)
    act(outside)
    if outside.link is not None and outside.link.fileno() >= 0:
        assert outside.exit(1) in (-signal.SIGTERM, -signal.SIGKILL)
        assert outside.exit(0) == -signal.SIGKILL, "it ignores TERM"
    code, words = outside.end()
    assert code == 1
    assert said in words


@slow
def test_a_kill_is_executed_where_the_node_program_went_before_it_was_read(outside: Outside) -> None:
    """It is no reason for a grace that nobody hears any more that the ranks have started."""
    outside.connect("trap '' TERM; sleep 100", grace_s=100.0)
    assert outside.popen is not None
    assert outside.link is not None
    outside.popen.send_signal(signal.SIGSTOP)
    outside.order_start()
    outside.link.order("kill")
    outside.link.close()
    outside.popen.send_signal(signal.SIGCONT)
    assert outside.end() == (1, "slipway watchdog: ended by the node program: ending everything here\n")


@slow
def test_the_wall_clock_ends_nothing(outside: Outside) -> None:
    """Whatever it shows: it has passed the number of this deadline, by the clock that counts from the boot of the machine, long ago."""
    outside.start("sleep 2.5", deadline=1000.0)
    assert outside.exit(0) == 0
    assert outside.end()[0] == 0


@slow
def test_a_beat_keeps_it_alive(outside: Outside) -> None:
    outside.start("sleep 100", beat_s=1.5)
    give_up = time.monotonic() + 3.0
    while time.monotonic() < give_up:
        outside.beat.touch()
        assert outside.is_silent(), "it was ended although the beat went on"
    assert outside.exit(0) == -signal.SIGTERM
    assert "has not shown that it lives" in outside.end()[1]


@slow
def test_more_processes_than_one_message_can_carry_the_descriptors_of(outside: Outside) -> None:
    outside.start(*["exit 3"] * 130)
    assert [outside.exit(index) for index in range(130)] == [3] * 130
    assert outside.end()[0] == 0


@slow
def test_one_that_cannot_be_started_ends_the_others(outside: Outside) -> None:
    ranks = [{"name": f"rank-{index}", "argv": argv, "env": {}, "cwd": "/"} for index, argv in enumerate([["sleep", "100"], ["/no"]])]
    with pytest.raises(AssertionError):
        outside.start("x", "y", processes=ranks)
    failed = outside.hear("failed")
    assert "rank-1: '/no' cannot be started" in failed["text"]
    assert failed["program"] is True
    assert outside.exit(0) in (-signal.SIGTERM, -signal.SIGKILL)
    assert outside.end()[0] == 1


@slow
def test_without_a_node_program_nothing_is_started(tmp_path: Path) -> None:
    container_start.listen(tmp_path, None).close()
    (tmp_path / "plan.json").write_text(json.dumps({"umask": 63, "home": str(tmp_path)}))
    done = subprocess.run([sys.executable, "-I", str(WATCHDOG), str(tmp_path)], capture_output=True, text=True, check=False, timeout=20)
    assert done.returncode == 1
    assert "ConnectionRefusedError" in done.stderr
