"""Hostile connections to and from the listener of a staging."""

import contextlib
import os
import random
import resource
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from base.handshake import ANSWER_BYTES, GREETING_BYTES, Handshake
from data_prep.manifest import Shard, parse_manifest
from data_prep.staging.chunk_journal import ChunkTable
from data_prep.staging.exchange import Exchange, Others, PeerGroup
from tests.data_prep.reader.small import random_dataset
from tests.hostile import changed_bytes

pytestmark = pytest.mark.slow
COUNTS = [300, pytest.param(10000, marks=pytest.mark.long)]
TOKEN = b"t" * 32
NODES = 40


class Node:
    """Node 0 of many, in this process; it lacks the second chunk."""

    def __init__(self, source: Path) -> None:
        self.shards: tuple[Shard, ...] = parse_manifest((source / "manifest.json").read_bytes()).shards
        self.source = source
        self.orders, self.ours = os.pipe()
        peer_group = PeerGroup(index=0, nodes=NODES, address="127.0.0.1", token=TOKEN, orders=self.orders, say=lambda _words: None)
        table = ChunkTable(self.shards)
        marks = bytearray(b"\1") * table.num_chunks
        marks[1] = 0
        self.exchange = Exchange(peer_group, "digest", table, marks, self.open_shard)
        self.exchange.taker = self
        self.address = ("127.0.0.1", self.exchange._peers_listener.port)

    def open_shard(self, number: int) -> int:
        return os.open(self.source / self.shards[number].name / "data.mdb", os.O_RDONLY | os.O_CLOEXEC)

    def buffer(self, chunk: int) -> memoryview:
        return memoryview(bytearray(self.exchange.table.span(chunk)[2]))

    def took(self, peer: int, chunk: int, buffer: memoryview) -> None:
        self.exchange.swarm.answered(peer, chunk)

    def turns(self, number: int) -> None:
        for _ in range(number):
            self.exchange.turn(0.002)

    def close(self) -> None:
        self.exchange.close()
        os.close(self.orders)
        os.close(self.ours)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return random_dataset(tmp_path, [20_000, 1], chunk_bytes=4096)


@contextlib.contextmanager
def knock(address: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=10) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        yield connection


def come_in(node: Node, connection: socket.socket, index: int) -> None:
    handshake = Handshake(TOKEN, "chunks digest", index)
    node.turns(2)
    greeting = connection.recv(GREETING_BYTES, socket.MSG_WAITALL)
    connection.setblocking(False)
    with pytest.raises(BlockingIOError):  # before its proof nobody gets more
        connection.recv(1)
    connection.settimeout(10)
    connection.sendall(handshake.answer(greeting, 0))
    node.turns(3)
    assert index in node.exchange.connected()


@pytest.mark.parametrize("count", COUNTS)
def test_no_words_before_the_proof_disturb_a_stager(source: Path, count: int) -> None:
    chance = random.Random(7)
    node = Node(source)
    for number in range(count):
        with knock(node.address) as connection, contextlib.suppress(OSError):
            answer = struct.pack("!I", chance.choice((0, 1, 7, 2**32 - 1))) + b"0" * (ANSWER_BYTES - 4)
            connection.sendall(changed_bytes(answer, chance))
            if number % 4 == 0:
                node.turns(1)
    with knock(node.address) as connection:
        node.turns(5)
        come_in(node, connection, 1)
    assert not node.exchange.lost
    node.close()


def test_a_flood_is_bounded_whatever_the_numbers_of_its_descriptors(source: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    node = Node(source)
    node.exchange._peers_listener._pending.most = 4
    failures: list[object] = []
    node.exchange._loop.set_exception_handler(lambda _loop, context: failures.append(context))
    with contextlib.ExitStack() as held:
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            held.callback(os.close, os.dup(node.orders))
        flood = [held.enter_context(knock(node.address)) for _ in range(20)]
        node.turns(5)
        assert len(node.exchange._peers_listener._pending) == 4
        for connection in flood:
            with contextlib.suppress(OSError):
                connection.sendall(b"x")  # a part of an answer is none
        come_in(node, held.enter_context(knock(node.address)), 1)
    assert failures == []
    node.close()


@pytest.mark.parametrize("count", COUNTS)
def test_no_words_of_a_listener_disturb_who_connects(source: Path, count: int) -> None:
    chance = random.Random(9)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(5)
        address = listener.getsockname()
        for _ in range(max(1, count // (NODES - 1))):
            node = Node(source)
            peers = (None, *((address[0], address[1], "none") for _ in range(1, NODES)))
            node.exchange._meet(Others(peers=peers, readers=(0,), most_readers=None, late=True))
            node.turns(1)
            for index in range(1, NODES):
                connection, _ = listener.accept()
                with connection, contextlib.suppress(OSError):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    connection.sendall(changed_bytes(Handshake(TOKEN, "chunks digest", index).greeting(), chance))
                    node.turns(2)
                    connection.sendall(changed_bytes(b"0" * 64, chance))
                    node.turns(2)
            assert node.exchange.connected() == []
            node.close()
