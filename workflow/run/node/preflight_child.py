"""`python -m cluster.preflight` as a child of the node program: orders go in, answers come out, one line each; nothing here waits."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Final

import msgspec

from base.errors import NodeLost
from cluster.processes import die_with_parent, prepare_prctl
from workflow.run.link.child_lines import read_values
from workflow.run.link.event_loop import Loop
from workflow.run.link.fields import Value
from workflow.run.link.orders import Listen, Measure, Reach
from workflow.run.link.said import Measured, ProbesListen, Reached

ARGV: Final = ("-P", "-m", "cluster.preflight")


class ProbesFailed(Value, tag_field="say", tag="failed", frozen=True, kw_only=True):
    """They cannot listen."""

    problem: str


Answer = ProbesListen | Reached | Measured | ProbesFailed


class PreflightChild:
    """The probes of this node. In the loop: `on_answer(answer)`; `on_end(why)` if it ends before `close`."""

    def __init__(self, loop: Loop, on_answer: Callable[[Answer], None], on_end: Callable[[str], None]) -> None:
        self._loop, self._on_answer, self._on_end = loop, on_answer, on_end
        self._rest = b""
        self._closing = False
        parent = os.getpid()
        prepare_prctl()
        self._process = subprocess.Popen(
            (sys.executable, *ARGV), stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=lambda: die_with_parent(parent)
        )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        self._stdin, self._stdout = stdin, stdout
        os.set_blocking(stdin.fileno(), False)
        os.set_blocking(stdout.fileno(), False)
        loop.watch(stdout.fileno(), self._readable)

    def send(self, order: Listen | Reach | Measure, token: bytes) -> None:
        """One order; the one before has been answered, so the pipe is empty. `token` goes with the first, which is Listen. Raises
        NodeLost."""
        secret = {"token": token.hex()} if isinstance(order, Listen) else {}
        line = json.dumps({**msgspec.to_builtins(order), **secret}).encode() + b"\n"
        try:
            written = os.write(self._stdin.fileno(), line)
        except OSError as error:
            raise NodeLost(f"the preflight of this node takes no orders: {error.strerror}") from error
        if written < len(line):
            raise NodeLost(f"the preflight of this node takes {written} bytes of an order of {len(line)}: too many nodes for one pipe")

    def _readable(self) -> None:
        answers, self._rest, ended = read_values(self._stdout.fileno(), self._rest)
        for answer in answers:
            if isinstance(answer, dict) and not self._closing:
                self._on_answer(msgspec.convert(answer, Answer))
        if ended:
            code = self._reap()
            if not self._closing:
                self._on_end(f"the probes of this node ended with {code}; the run's log has their last words")

    def _reap(self) -> int:
        self._loop.unwatch(self._stdout.fileno())
        code = self._process.wait()
        self._stdout.close()
        self._close_stdin()
        return code

    def _close_stdin(self) -> None:
        with contextlib.suppress(OSError):
            self._stdin.close()

    def close(self) -> None:
        """It ends by itself now, and its end is no news."""
        self._closing = True
        self._close_stdin()

    def kill(self) -> None:
        """End it now; nothing is called any more."""
        self._closing = True
        if self._process.poll() is None:
            self._process.kill()
        if not self._stdout.closed:
            self._reap()
