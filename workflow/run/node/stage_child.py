"""`python -m data_prep.staging` as a child of the node program: the command, its lines, its answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from msgspec.structs import asdict

from workflow.run.link.event_loop import Loop
from workflow.run.link.fields import Port, Value, What
from workflow.run.link.said import Listening, Progress, StagedCopy, Waiting
from workflow.run.node.child import Problem, Worker, WorkLine, say_how_far


@dataclass(frozen=True, kw_only=True)
class PeerGroup:
    """The node's place among those that stage the same files at once, and where it listens for them. `token` proves it."""

    index: int
    nodes: int
    address: str
    token: bytes


def stage_argv(
    python: str, source: str, cache: str, holder: dict[str, Any] | None, max_bytes: int | None, bytes_per_s: float | None
) -> tuple[str, ...]:
    """Pure: the command that brings the dataset `source`, or with --single a file, into `cache`. `bytes_per_s`: for all readers of storage
    together."""
    argv = [python, "-P", "-m", "data_prep.staging", "--source", source, "--cache", cache]
    if holder is not None:
        argv += ["--holder", json.dumps(holder, sort_keys=True)]
    if max_bytes is not None:
        argv += ["--max-bytes", str(max_bytes)]
    if bytes_per_s is not None:
        argv += ["--bytes-per-s", f"{bytes_per_s:g}"]
    return tuple(argv)


def check_argv(check_s: float | None) -> tuple[str, ...]:
    """Pure: what to add where the site says how long a dataset that is in the cache may be hashed."""
    return () if check_s is None else ("--check-s", f"{check_s:g}")


def group_argv(group: bool) -> tuple[str, ...]:
    """Pure: what to add where the site says `shared: group`."""
    return ("--group",) if group else ()


def peer_group_argv(peer_group: PeerGroup | None) -> tuple[str, ...]:
    """Pure: what to add for a node that is not alone."""
    return () if peer_group is None else ("--peer-group", f"{peer_group.index}/{peer_group.nodes}", "--address", peer_group.address)


class Failure(Value, frozen=True, kw_only=True, rename={"name": "class"}):
    """Why nothing is staged."""

    name: str
    message: str


class Address(Value, frozen=True, kw_only=True):
    """Where the stager listens for those of the other nodes, and which chunks it has: see data_prep/staging/wire.py."""

    address: str
    port: Port
    have: str


class StageLine(WorkLine, frozen=True, kw_only=True):
    """A line of `python -m data_prep.staging`."""

    failure: ClassVar[Problem] = ("StagingError", "the staging process")
    listening: Address | None = None
    result: StagedCopy | None = None
    error: Failure | None = None

    def answer(self) -> tuple[StagedCopy | None, Problem | None]:
        """See child.Answer."""
        return self.result, None if self.error is None else (self.error.name, self.error.message)


def stage_child(
    loop: Loop,
    what: What,
    argv: tuple[str, ...],
    say: Callable[[Progress | Listening | Waiting], None],
    then: Callable[[StagedCopy | None, Problem | None], None],
    peer_group: PeerGroup | None = None,
) -> Worker[StagedCopy]:
    """A running staging process of `what`, with the other nodes of its `peer_group` or alone (None). In a group it goes on passing chunks
    to others after its result. A copy that is killed is resumed by the next stager."""

    def told(line: StageLine) -> None:
        say_how_far(say, what, line)
        if line.listening is not None:
            say(Listening(what=what, **asdict(line.listening)))

    child = Worker(loop, (*argv, *peer_group_argv(peer_group)), StageLine, told, then, at_once=peer_group is not None)
    if peer_group is not None:
        child.feed(peer_group.token.hex().encode())
    return child
