"""Thousands of hostile connections, from either side, over real sockets: a stranger's words end nobody but himself."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from base.handshake import ANSWER_BYTES, WELCOME_BYTES, Handshake, new_token
from base.jsonfile import json_line
from tests.hostile import changed_bytes, lines
from tests.workflow.run.link.test_messages import ORDERS, SAYS, with_cores
from tests.workflow.run.link.test_protocol import TOKEN, House
from tests.workflow.run.world import ROOT
from workflow.run.link.messages import ProtocolError
from workflow.run.link.protocol import SUPERVISOR, USE, LinkClosed, connect

pytestmark = pytest.mark.slow
COUNTS = [300, pytest.param(10000, marks=pytest.mark.long)]


def close_now(connection: socket.socket) -> None:
    """Without a wait of the system for what is on its way: thousands of them would use up the ports."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


@pytest.mark.parametrize("count", COUNTS)
def test_no_words_before_the_proof_disturb_a_supervisor(count: int) -> None:
    chance = random.Random(1)
    door = House(2)
    for number in range(count):
        with contextlib.closing(socket.create_connection(door.nodes.address, timeout=10)) as connection:
            token = door.token if number % 3 else TOKEN
            answer = Handshake(token, USE, 0).answer(door.greeting(connection), SUPERVISOR)
            words = changed_bytes(answer, chance)
            with contextlib.suppress(OSError):
                connection.sendall(words)
            door.loop.until(lambda: False, 0.002)
            close_now(connection)
        door.loop.until(lambda: False, 0.002)
        if door.lost:  # a changed message that was as good as the right one: this node has come, and gone
            door.close()
            door = House(2)
    door.come_in(1)
    door.close()


@pytest.mark.parametrize("count", COUNTS)
def test_no_words_after_the_proof_disturb_a_supervisor(count: int) -> None:
    chance = random.Random(2)
    heard = 0
    for _ in range(max(1, count // 20)):
        door = House(20)
        for index in range(20):
            connection = door.come_in(index)
            with contextlib.suppress(OSError):
                connection.sendall(lines(SAYS, chance))
            close_now(connection)
            door.open.remove(connection)
        assert door.loop.until(lambda door=door: len(door.lost) == 20, 30)  # type: ignore[misc]
        heard += len(door.heard)
        door.close()
    assert heard > count / 20


class Hostile(threading.Thread):
    """In the supervisor's place: every connection hears other words."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.count = count

    def run(self) -> None:
        chance = random.Random(3)
        for _ in range(self.count):
            connection, _ = self.listener.accept()
            with contextlib.suppress(OSError):
                greeting = Handshake(TOKEN, USE, SUPERVISOR).greeting()
                connection.sendall(changed_bytes(greeting, chance) if chance.random() < 0.5 else greeting)
                connection.settimeout(0.02)
                connection.recv(1000)
                connection.sendall(changed_bytes(b"0" * WELCOME_BYTES, chance))
            close_now(connection)


@pytest.mark.parametrize("count", COUNTS)
def test_no_words_of_a_listener_disturb_a_node_program(count: int) -> None:
    server = Hostile(count)
    server.start()
    for _ in range(count):
        with pytest.raises((ProtocolError, LinkClosed, OSError)):
            connect(server.listener.getsockname(), TOKEN, 0, limit_s=0.0)
    server.join()
    server.listener.close()


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


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (b"nonsense\n", "a message that is none of ours (nonsense): JSON is malformed"),
        (json_line({"do": "dance"}), "Invalid value 'dance' - at `$.do`"),
        (json_line({"do": "plan", "allocation": {}}), "Object missing required field `scheduler` - at `$.allocation`"),
        (
            json_line({"do": "start", "ports": [[1]], "left_s": "1"}),
            "Expected `float`, got `str` - at `$.left_s`",
        ),
        (json_line({**ORDERS[1], "allocation": with_cores(10**19)}), "allocation: expected numbers of CPUs"),
        (json_line({"do": "end"}), "Object missing required field `pending`"),
        (b'{"do":"\\ud800"}\n', "a message that is none of ours"),
    ],
)
def test_orders_that_are_none_end_a_node_program_with_a_sentence(words: bytes, why: str) -> None:
    code, log = in_the_supervisors_place(words)
    assert code == 24, log
    assert why in log
    assert "the supervisor is gone" in log
    assert "Traceback" not in log


@pytest.mark.parametrize("count", [10, pytest.param(200, marks=pytest.mark.long)])
def test_no_order_is_a_traceback(count: int) -> None:
    chance = random.Random(4)
    for _ in range(count):
        words = b"".join(lines([order for order in ORDERS if order["do"] != "fetch"], chance) for _ in range(3))
        code, log = in_the_supervisors_place(words)
        assert code in (0, 24), log
        assert "Traceback" not in log, log
