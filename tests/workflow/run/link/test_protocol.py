import contextlib
import json
import os
import resource
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from base.handshake import ANSWER_BYTES, GREETING_BYTES, HELLO, WELCOME_BYTES, Handshake, new_token
from base.jsonfile import json_line
from cluster.types import Allocation, Launch, Node
from tests.few_files import STRANGERS, few_files
from tests.workflow.run.world import ROOT
from workflow.run.link import commands, reports
from workflow.run.link.event_loop import Loop
from workflow.run.link.protocol import SUPERVISOR, USE, Channel, Decoder, ProtocolError, connect, encode
from workflow.run.supervisor.nodes import NodeHandle, Nodes
from workflow.run.supervisor.step_limits import DEFAULT_LIMITS, AttemptLimits

TOKEN = b"t" * 32


class House:
    """A supervisor's side that lets node programs in, and what happened at it."""

    def __init__(self, count: int = 1, limits: AttemptLimits = DEFAULT_LIMITS) -> None:
        self.loop = Loop()
        names = tuple(Node(name=f"n{index}", hostname="h", address="127.0.0.1") for index in range(count))
        allocation = Allocation(scheduler="local", job_id="1", nodes=names, device="cpu", exclusive=True)
        self.heard: list[tuple[int, Any]] = []
        self.lost: list[tuple[int, str]] = []
        self.nodes = Nodes(self.loop, allocation, "127.0.0.1", self._heard, self._lost, limits)
        self.token = self.nodes._token
        self.open: list[socket.socket] = []

    def _heard(self, node: NodeHandle, message: reports.Report) -> None:
        self.heard.append((node.index, message))

    def _lost(self, node: NodeHandle, why: str) -> None:
        self.lost.append((node.index, why))

    def knock(self) -> socket.socket:
        connection = socket.create_connection(self.nodes.address, timeout=10)
        self.open.append(connection)
        return connection

    def greeting(self, connection: socket.socket) -> bytes:
        assert self.loop.until(lambda: bool(select.select([connection], [], [], 0)[0]), 10)
        return connection.recv(GREETING_BYTES, socket.MSG_WAITALL)

    def answer(self, connection: socket.socket, token: bytes, index: int = 0) -> Handshake:
        handshake = Handshake(token, USE, index)
        connection.sendall(handshake.answer(self.greeting(connection), SUPERVISOR))
        return handshake

    def refused(self, connection: socket.socket) -> bool:
        """Whether the door was closed: nothing more comes, then the end."""
        assert self.loop.until(lambda: bool(select.select([connection], [], [], 0)[0]), 10), "neither answer nor end"
        try:
            return connection.recv(1000) == b""
        except ConnectionResetError:
            return True

    def come_in(self, index: int = 0) -> socket.socket:
        connection = self.knock()
        self.answer(connection, self.token, index)
        assert self.loop.until(lambda: self.nodes.all[index].channel is not None, 10)
        assert len(connection.recv(WELCOME_BYTES, socket.MSG_WAITALL)) == WELCOME_BYTES
        return connection

    def close(self) -> None:
        for connection in self.open:
            connection.close()
        self.nodes.expect_ends()
        self.loop.until(lambda: not self.nodes.present(), 5)
        self.nodes.close()


@pytest.fixture
def door() -> Iterator[House]:
    door = House(2)
    yield door
    door.close()


@pytest.fixture
def hasty() -> Iterator[House]:
    """One that waits for nobody's answer."""
    hasty = House(2, AttemptLimits(handshake_s=0.1))
    yield hasty
    hasty.close()


def test_a_node_with_the_token_is_let_in_and_can_be_talked_to(door: House) -> None:
    connection = door.knock()
    handshake = door.answer(connection, door.token)
    assert door.loop.until(lambda: bool(door.nodes.present()), 10)
    handshake.check_welcome(connection.recv(WELCOME_BYTES, socket.MSG_WAITALL), SUPERVISOR)
    connection.sendall(encode(reports.Failed(during="stage", error="StagingError", message="x" * 200000)))
    assert door.loop.until(lambda: bool(door.heard), 10)
    assert door.nodes.all[0].has_reported(reports.Failed)
    door.nodes.send(door.nodes.all[0], commands.Stage())
    assert json.loads(connection.recv(1000)) == {"do": "stage"}
    connection.close()
    assert door.loop.until(lambda: bool(door.lost), 10)
    assert door.lost[0][0] == 0


def test_a_wrong_token_is_refused(door: House) -> None:
    connection = door.knock()
    door.answer(connection, b"u" * 32)
    assert door.refused(connection)


def test_an_index_that_is_not_there_or_taken_is_refused(door: House) -> None:
    for index in (2, SUPERVISOR):
        connection = door.knock()
        door.answer(connection, door.token, index)
        assert door.refused(connection)
    door.answer(door.knock(), door.token)
    assert door.loop.until(lambda: bool(door.nodes.present()), 10)
    second = door.knock()
    door.answer(second, door.token)
    assert door.refused(second)
    assert door.nodes.present()


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0" * ANSWER_BYTES,
        b"\xff" * ANSWER_BYTES,
        b"x" * 200000,
    ],
)
def test_garbage_is_refused(hasty: House, words: bytes) -> None:
    connection = hasty.knock()
    hasty.greeting(connection)
    connection.setblocking(False)
    sent = 0
    while sent < len(words):
        try:
            sent += connection.send(words[sent:])
        except BlockingIOError:
            hasty.loop.until(lambda: False, 0.001)
        except ConnectionError:
            break
    connection.setblocking(True)
    assert hasty.refused(connection)
    assert not hasty.nodes.present()


def test_a_slow_one_is_sent_away(hasty: House) -> None:
    connection = hasty.knock()
    hasty.greeting(connection)
    connection.sendall(b"\0" * (ANSWER_BYTES - 1))
    assert hasty.refused(connection)


def test_the_oldest_stranger_goes_for_the_newest_and_the_node_comes_in() -> None:
    with few_files():
        door = House(2, AttemptLimits(handshake_s=1000.0))
    waiting = [door.knock() for _ in range(STRANGERS)]
    for connection in waiting:
        door.greeting(connection)
    newest = door.knock()
    door.greeting(newest)
    assert door.refused(waiting[0])
    for _ in range(STRANGERS + 1):
        door.greeting(door.knock())
    door.come_in()
    door.close()


def test_who_has_answered_is_heard_before_he_goes() -> None:
    with few_files():
        door = House(2)
    node = door.knock()
    greeting = door.greeting(node)
    flood = [door.knock() for _ in range(STRANGERS + 10)]  # all are accepted in the turn in which the answer is read
    node.sendall(Handshake(door.token, USE, 0).answer(greeting, SUPERVISOR))
    assert door.loop.until(lambda: bool(door.nodes.present()), 10)
    for connection in flood:
        connection.close()
    door.close()


def test_nobody_can_knock_once_all_are_in(door: House) -> None:
    late = door.knock()
    door.greeting(late)
    for index in range(2):
        door.come_in(index)
    assert door.refused(late)
    with pytest.raises(ConnectionRefusedError):
        door.knock()
    assert len(door.nodes.present()) == 2


def test_without_a_descriptor_for_a_newcomer_the_others_are_served(door: House) -> None:
    node = door.come_in()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    waiting = socket.create_connection(door.nodes.address)
    resource.setrlimit(resource.RLIMIT_NOFILE, (node.fileno(), hard))  # none is free below it
    try:
        door.loop.until(lambda: False, 0.05)
        door.nodes.send(door.nodes.all[0], commands.Stage())
        assert node.recv(1000)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert door.greeting(waiting)
    waiting.close()


def serve(listener: socket.socket, words: list[bytes]) -> None:
    """At the supervisor's address: one hears these words."""
    connection, _ = listener.accept()
    with connection, contextlib.suppress(ConnectionError):
        connection.sendall(words[0])
        connection.recv(1000)
        connection.sendall(b"".join(words[1:]))


def test_a_node_that_is_turned_away_comes_again_and_takes_nothing_of_what_follows() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    came: list[int] = []

    def supervisor() -> None:
        for _ in range(3):
            listener.accept()[0].close()
        connection, _ = listener.accept()
        handshake = Handshake(TOKEN, USE, SUPERVISOR)
        connection.sendall(handshake.greeting())
        index, _, welcome = handshake.check_answer(connection.recv(ANSWER_BYTES, socket.MSG_WAITALL))
        came.append(index)
        connection.sendall(welcome + encode(commands.Alive()))
        connection.close()

    thread = threading.Thread(target=supervisor)
    thread.start()
    connection = connect(listener.getsockname(), TOKEN, 4, wait=lambda _seconds: None)
    thread.join()
    listener.close()
    assert came == [4]
    assert Decoder[commands.Command](commands.Command).feed(connection.recv(1000)) == [commands.Alive()]
    connection.close()


@pytest.mark.parametrize(
    "words",
    [
        [b"HTTP/1.1 400 Bad Request\r\n\r\n"],
        [HELLO + b"\xff" * 64, b"\xff" * WELCOME_BYTES],
        [HELLO + b"0" * 64, Handshake(b"u" * 32, USE, SUPERVISOR).greeting()],
        [b"x" * 5000],
        [b'{"challenge":"another version"}\n'],
    ],
)
def test_what_answers_in_the_supervisors_place_is_told(words: list[bytes]) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve, args=(listener, words))
    thread.start()
    with pytest.raises(ProtocolError):
        connect(listener.getsockname(), TOKEN, 0)
    thread.join()
    listener.close()


def test_a_supervisor_that_is_gone_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(ConnectionRefusedError):
        connect(address, TOKEN, 0, wait=lambda _seconds: pytest.fail("it was tried again"))


def test_what_a_peer_does_not_read_is_kept_without_waiting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as near:
        far, _ = server.accept()
        ends: list[str] = []
        loop = Loop()
        channel = Channel[commands.Command](loop, near, commands.Command, lambda _messages: None, ends.append)
        for _ in range(30):
            channel.send(reports.Failed(during="x", error="x", message="x" * 300000))
        assert channel._unsent
        far.settimeout(10)
        while channel._unsent:
            far.recv(1 << 20)
            loop.until(lambda: not channel._unsent, 0.01)
        far.close()
        assert loop.until(lambda: bool(ends), 10)
        assert len(ends) == 1
        channel.send(reports.Failed(during="x", error="x", message="it is closed"))


LAUNCH = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: open(sys.argv[1] + "/told", "w").close())
open(sys.argv[1] + "/ready", "w").close()
open(sys.argv[1] + "/end").read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("dismissed", [True, False])
def test_a_launch_whose_node_was_told_to_end_is_left_to_end(tmp_path: Path, dismissed: bool) -> None:
    door = House()
    os.mkfifo(tmp_path / "end")
    door.nodes.launch([Launch(argv=(sys.executable, "-c", LAUNCH, str(tmp_path)), nodes=(0,))], os.environ)
    assert door.loop.until((tmp_path / "ready").exists, 30)
    connection = door.come_in()
    node = door.nodes.all[0]
    door.nodes.expect_ends()
    if dismissed:
        door.nodes.send_end(node, pending=None)
    connection.close()
    assert door.loop.until(lambda: node.lost, 10)
    with (tmp_path / "end").open("w"):
        pass
    assert door.nodes.wait_for_end(10)
    assert (tmp_path / "told").exists() is not dismissed
    door.close()


def test_a_new_connection_never_gets_an_old_challenge() -> None:
    door = House()
    assert door.greeting(door.knock()) != door.greeting(door.knock())
    door.close()


@pytest.mark.processes
@pytest.mark.parametrize(
    ("launcher", "times", "why"),
    [
        ("test $(wc -l <started) -lt 3 || { echo no room >&2; exit 1; }", 3, "its program ended with 1: no room"),
        ("exit 3", 1, "its program ended with 3, and said nothing"),
    ],
)
def test_a_launcher_that_has_started_nothing_and_says_nothing_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, launcher: str, times: int, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    door = House(1, AttemptLimits(launch_pause_s=0.0))
    argv = ("sh", "-c", f"read token; echo >>started; {launcher}")
    door.nodes.launch([Launch(argv=argv, nodes=(0,), may_be_mute=True)], os.environ)
    assert door.loop.until(lambda: bool(door.lost), 30)
    assert (door.lost, len((tmp_path / "started").read_text())) == ([(0, why)], times)
    assert caplog.text.count("the launcher has started nothing, and says nothing") == times - 1
    assert door.nodes.wait_for_end(10)
    door.close()


@pytest.mark.processes
@pytest.mark.parametrize("second", [False, True])
def test_a_mute_launcher_that_goes_when_its_node_has_come_in_says_nothing_of_it(tmp_path: Path, second: bool) -> None:
    """Also one that was started again although the program of the first one lived."""
    door = House()
    argv = ("sh", "-c", f"read token; echo >>{tmp_path}/started; read more; true")
    door.nodes.launch([Launch(argv=argv, nodes=(0,), may_be_mute=True)] * (1 + second), os.environ)
    connection = door.come_in()
    for launched in door.nodes._launched:
        assert launched._process.stdin is not None
        launched._process.stdin.close()
    assert door.nodes.wait_for_end(10)
    assert (door.lost, len((tmp_path / "started").read_text())) == ([], 1 + second)
    connection.close()
    assert door.loop.until(lambda: bool(door.lost), 30)
    door.close()


@pytest.mark.processes
def test_the_second_of_a_launcher_that_was_mute_may_say_what_it_likes_once_the_node_has_come_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program was turned away, since that of the first one lives."""
    monkeypatch.chdir(tmp_path)
    door = House(1, AttemptLimits(launch_pause_s=0.0))
    argv = ("sh", "-c", "read token; echo >>started; test $(wc -l <started) -gt 1 || exit 0; read more; echo turned away >&2; exit 24")
    door.nodes.launch([Launch(argv=argv, nodes=(0,), may_be_mute=True)], os.environ)
    assert door.loop.until(lambda: (tmp_path / "started").exists() and (tmp_path / "started").stat().st_size == 2, 30)
    connection = door.come_in()
    second = door.nodes._launched[1]
    assert second._process.stdin is not None
    second._process.stdin.close()
    assert door.loop.until(lambda: second.poll() is not None, 30)
    assert not door.loop.until(lambda: bool(door.lost), 0.3)
    connection.close()
    assert door.loop.until(lambda: bool(door.lost), 30)
    assert door.nodes.wait_for_end(10)
    door.close()


def in_the_supervisors_place(words: bytes) -> tuple[int, str]:
    """Exit code and log of a real node program that hears `words` once both have proved who they are."""
    token = new_token()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        argv = [sys.executable, "-m", "workflow.run.node", "--supervisor", f"127.0.0.1:{listener.getsockname()[1]}", "--node", "0"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen([*argv, "--device", "cpu"], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, **pipes) as node:
            assert node.stdin is not None
            node.stdin.write(token.hex() + "\n")
            node.stdin.flush()
            connection, _ = listener.accept()
            handshake = Handshake(token, USE, SUPERVISOR)
            connection.sendall(handshake.greeting())
            with connection.makefile("rb") as file:
                connection.sendall(handshake.check_answer(file.read(ANSWER_BYTES))[2])
                assert json.loads(file.readline())["say"] == "ready"
                connection.sendall(words)
                connection.shutdown(socket.SHUT_WR)
                _, log = node.communicate(timeout=60)
            connection.close()
    return node.returncode, log


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (b"nonsense\n", "a message that is none of ours (nonsense): JSON is malformed"),
        (json_line({"do": "plan", "allocation": {}}), "Object missing required field `scheduler` - at `$.allocation`"),
    ],
)
def test_orders_that_are_none_end_a_node_program_with_a_sentence(words: bytes, why: str) -> None:
    code, log = in_the_supervisors_place(words)
    assert code == 24, log
    assert why in log
    assert "the supervisor is gone" in log
    assert "Traceback" not in log
