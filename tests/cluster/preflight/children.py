"""The probes of several nodes, driven as the supervisor drives them: on loopback addresses here, or on the nodes of a mini-cluster."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from base.handshake import new_token
from cluster.preflight.rates import exchange_bytes, exchange_s
from cluster.types import Allocation, Node
from workflow.run.link import commands
from workflow.run.link.event_loop import Loop
from workflow.run.supervisor.nodes import Nodes
from workflow.run.supervisor.preflight import A, Preflight
from workflow.run.supervisor.run_scope import RunScope

ROOT = Path(__file__).parents[3]
ARGV = [sys.executable, "-P", "-m", "cluster.preflight"]
Start = Callable[[int], "subprocess.Popen[Any]"]


def here(_index: int) -> subprocess.Popen[Any]:
    return subprocess.Popen(ARGV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)})


class Children:
    """One per address. They listen once they were told to."""

    def __init__(self, addresses: Sequence[str], start: Start = here, tokens: Mapping[int, bytes] | None = None) -> None:
        self.addresses = addresses
        token = new_token()
        self.tokens = [(tokens or {}).get(index, token).hex() for index in range(len(addresses))]
        self.processes = [start(index) for index in range(len(addresses))]
        self.peers: list[list[Any]] = []

    def send(self, child: int, **order: Any) -> None:
        stdin = self.processes[child].stdin
        assert stdin is not None
        stdin.write(json.dumps(order).encode() + b"\n")
        stdin.flush()

    def hear(self) -> list[dict[str, Any]]:
        found = []
        for process in self.processes:
            assert process.stdout is not None
            found.append(json.loads(process.stdout.readline()))
        return found

    def ask(self, **order: Any) -> list[dict[str, Any]]:
        """All obey at once; their answers."""
        for index in range(len(self.processes)):
            self.send(index, **order)
        return self.hear()

    def listen(self) -> None:
        nodes = len(self.addresses)
        for index, address in enumerate(self.addresses):
            self.send(index, do="listen", index=index, nodes=nodes, address=address, token=self.tokens[index])
        self.peers = [[answer["address"], answer["port"]] for answer in self.hear()]

    def reach(self) -> list[dict[str, Any]]:
        return self.ask(do="reach", peers=self.peers)

    def measure(self, attempt: int = 0) -> list[dict[str, Any]]:
        nodes, again = len(self.processes), attempt > 0
        return self.ask(do="measure", attempt=attempt, bytes=exchange_bytes(nodes, again), limit_s=exchange_s(nodes, again))

    def close(self) -> None:
        for process in self.processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.stdout.close()
            process.wait(5)

    def __enter__(self) -> "Children":
        return self

    def __exit__(self, *error: object) -> None:
        if any(error):
            for process in self.processes:
                process.kill()
        self.close()


class Direct(Preflight):
    """The supervisor's part, with children in place of node programs."""

    def __init__(self, children: Children, names: Sequence[str], interface: str) -> None:
        nodes = [
            Node(name=name, hostname=name, address=at, interface=interface) for name, at in zip(names, children.addresses, strict=True)
        ]
        allocation = Allocation(scheduler="slurm", job_id="1", nodes=tuple(nodes), device="cpu", exclusive=True)
        super().__init__(RunScope(Loop()), cast("Nodes", None), allocation)
        self._children = children
        self.asked = 0

    def _tell(self, own: Sequence[commands.PreflightCommand]) -> None:
        for index, order in enumerate(own):
            token = {"token": self._children.tokens[index]} if isinstance(order, commands.Listen) else {}
            self._children.send(index, **msgspec.to_builtins(order), **token)
        self.asked += 1

    def _answers(self, kind: type[A], limit_s: float) -> list[A]:
        return [msgspec.convert(answer, kind) for answer in self._children.hear()]
