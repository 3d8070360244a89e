"""Two nodes that stage together, both in this process, and a line between them on which one bit is flipped."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import selectors
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from base.errors import SlipwayError
from data_prep.staging import StagedFiles, StageOptions, stage
from data_prep.staging.exchange import PeerGroup
from data_prep.staging.stage import GroupStaging

Flip = tuple[int, int, int]
"""Direction (0: what node 0 says), byte, bit."""

_HANG_S = 2.0
_LIMIT_S = 60.0


class _Node:
    """One of the two, in a thread."""

    def __init__(self, index: int, source: Path, cache: Path, options: StageOptions, said: queue.Queue[tuple[int, dict[str, Any]]]) -> None:
        self._orders = os.pipe()
        self.peer_group = PeerGroup(
            index=index, nodes=2, address="127.0.0.1", token=bytes(32), orders=self._orders[0], hang_s=_HANG_S, late_s=0.5,
            say=lambda value: said.put((index, value)),
        )  # fmt: skip
        self.ended = threading.Event()
        self.result: StagedFiles | SlipwayError | None = None
        self._thread = threading.Thread(target=self._work, args=(source, cache, options))
        self._thread.start()

    def _work(self, source: Path, cache: Path, options: StageOptions) -> None:
        try:
            with GroupStaging(self.peer_group) as group_staging:
                self.result = stage(source, cache, options=replace(options, group_staging=group_staging))
                self.ended.set()
                group_staging.serve()
        except SlipwayError as error:
            self.result = self.result or error
        finally:
            self.ended.set()

    def tell(self, **order: Any) -> None:
        os.write(self._orders[1], json.dumps(order).encode() + b"\n")

    def close(self) -> None:
        self.tell(staged_all=True)
        self._thread.join(_LIMIT_S)
        for descriptor in self._orders:
            os.close(descriptor)


def stage_on_two(source: Path, caches: tuple[Path, Path], flip_at: Flip, options: StageOptions) -> list[StagedFiles | SlipwayError]:
    """What each node came to."""
    said: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
    nodes = [_Node(index, source, cache, options, said) for index, cache in enumerate(caches)]
    listening = _listening(said, [node.ended for node in nodes])
    with contextlib.ExitStack() as stack:
        for node in nodes:
            stack.callback(node.close)
        if len(listening) == 2:
            peers = [[one["address"], one["port"], one["have"]] for one in (listening[0], listening[1])]
            line = Line(int(peers[1][1]), flip_at)
            stack.callback(line.close)
            readers = [node for node, peer in enumerate(peers) if peer[2] != "all"]
            for node, other in zip(nodes, ([peers[0], [peers[1][0], line.port, peers[1][2]]], peers), strict=True):
                node.tell(peers={"peers": other, "readers": readers, "most_readers": None, "late": False})
        for node in nodes:
            node.ended.wait(_LIMIT_S)
    return [node.result for node in nodes if node.result is not None]


def _listening(said: queue.Queue[tuple[int, dict[str, Any]]], ended: list[threading.Event]) -> dict[int, dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    while len(found) < 2 and not any(event.is_set() for event in ended):
        with contextlib.suppress(queue.Empty):
            index, value = said.get(timeout=0.05)
            if "listening" in value:
                found[index] = value["listening"]
    return found


class Line:
    """Whoever connects to `port` speaks with the node behind it."""

    def __init__(self, to_port: int, flip_at: Flip) -> None:
        self._to, (self._direction, self._at, self._bit) = to_port, flip_at
        self._passed = [0, 0]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """Hang up."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        ways: dict[socket.socket, tuple[socket.socket, int]] = {}
        with contextlib.closing(self._listener), selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._stop.is_set():
                for key, _ in selector.select(0.02):
                    if key.fileobj is self._listener:
                        here, there = self._listener.accept()[0], socket.create_connection(("127.0.0.1", self._to))
                        for one, other, direction in ((here, there, 0), (there, here, 1)):
                            ways[one] = (other, direction)
                            selector.register(one, selectors.EVENT_READ)
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj in ways and not self._pass(key.fileobj, *ways[key.fileobj]):
                        for end in (key.fileobj, ways[key.fileobj][0]):
                            selector.unregister(end)
                            del ways[end]
                            end.close()
            for end in ways:
                end.close()

    def _pass(self, source: socket.socket, target: socket.socket, direction: int) -> bool:
        try:
            data = bytearray(source.recv(1 << 16))
            position = self._at - self._passed[direction]
            if direction == self._direction and 0 <= position < len(data):
                data[position] ^= 1 << self._bit
            self._passed[direction] += len(data)
            target.sendall(data)
        except OSError:
            return False
        return bool(data)
