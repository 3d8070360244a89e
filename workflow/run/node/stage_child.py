"""`python -m data_prep.staging` as a child of the node program: its JSON lines, its end, its error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from cluster.processes import bury, die_with_parent, prepare_prctl
from workflow.run.link.child_input import ChildInput
from workflow.run.link.child_lines import read_values
from workflow.run.link.event_loop import Loop
from workflow.run.link.fields import What
from workflow.run.link.said import Listening, Progress, StagedFiles, Waiting


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


class StageChild:
    """A running staging process of `what`, with the other nodes of its `peer_group` or alone (None). `say` is called in the loop,
    `then(result, error)` once: one of them is None, `error` is (class name, message). In a group the process then goes on passing chunks to
    others."""

    def __init__(
        self,
        loop: Loop,
        what: What,
        argv: tuple[str, ...],
        say: Callable[[Progress | Listening | Waiting], None],
        then: Callable[[StagedFiles | None, tuple[str, str] | None], None],
        peer_group: PeerGroup | None = None,
    ) -> None:
        self._loop, self._what, self._say, self._then = loop, what, say, then
        self._rest = b""
        self._answer: dict[str, Any] = {}
        self._ended = self._closed = False
        self._orders: ChildInput | None = None
        parent = os.getpid()
        prepare_prctl()
        self._process = subprocess.Popen(
            (*argv, *peer_group_argv(peer_group)),
            stdin=subprocess.DEVNULL if peer_group is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            preexec_fn=lambda: die_with_parent(parent),
        )
        if peer_group is not None:
            assert self._process.stdin is not None
            self._orders = ChildInput(loop, self._process.stdin)
            self._orders.feed(peer_group.token.hex().encode() + b"\n")
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        loop.watch(self._output, self._readable)

    def _readable(self) -> None:
        values, self._rest, ended = read_values(self._output, self._rest)
        for value in values:
            self._take(value)
        if ended and not self._closed:
            self._finish()

    def _take(self, value: Any) -> None:
        if not isinstance(value, dict):
            return
        if "progress" in value:
            self._say(Progress(what=self._what, done=int(value["progress"][0]), total=int(value["progress"][1])))
            return
        if "listening" in value:
            self._say(Listening(what=self._what, **value["listening"]))
        if "waiting" in value:
            self._say(Waiting(what=self._what))
        self._answer.update(value)
        if "result" in value and self._orders is not None:
            self._end(self._result(), None)

    def _result(self) -> StagedFiles:
        return msgspec.convert(self._answer["result"], StagedFiles)

    def tell(self, **order: Any) -> None:
        """Say something about the others."""
        if self._orders is not None:
            self._orders.feed(json.dumps(order, separators=(",", ":")).encode() + b"\n")

    def _finish(self) -> None:
        self._close()
        code = self._process.wait()
        if self._ended:
            return
        if "result" in self._answer and code == 0:
            self._end(self._result(), None)
        elif "error" in self._answer:
            self._end(None, (str(self._answer["error"]["class"]), str(self._answer["error"]["message"])))
        else:
            self._end(None, ("StagingError", f"the staging process ended with {code} and without an answer; its log is that of the run"))

    def _end(self, result: StagedFiles | None, error: tuple[str, str] | None) -> None:
        self._ended = True
        self._then(result, error)

    def _close(self) -> None:
        self._closed = True
        self._loop.unwatch(self._output)
        if self._orders is not None:
            self._orders.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def kill(self) -> None:
        """End it now; an unfinished copy stays, and the next stager resumes it. `then` is not called."""
        if not self._closed:
            self._process.kill()
            self._close()
            bury(self._process)
