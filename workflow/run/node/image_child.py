"""`python -m containers.images load` as a child of the node program: the archive where it asks for one, its answer or its error, and its
end in any case."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from base.units import format_duration
from cluster.processes import bury, die_with_parent, prepare_prctl
from workflow.run.link.child_input import ChildInput
from workflow.run.link.child_lines import read_values
from workflow.run.link.event_loop import Loop
from workflow.run.link.fields import Seconds, Value
from workflow.run.link.said import Loading, Progress, Waiting
from workflow.run.node.limits import IMAGE_LOAD_S, IMAGE_PROGRESS_EVERY_S


class Loaded(Value, frozen=True, kw_only=True):
    """The image as it is on this node: its id, what the engine is given to start it, and how long the load took."""

    image_id: str
    start: str
    seconds: Seconds


class ImageChild:
    """A running load. `say` is called in the loop, `wants()` where the archive is needed, `then(loaded, error)` once: one of them is None,
    `error` is (class name, message)."""

    def __init__(
        self,
        loop: Loop,
        argv: tuple[str, ...],
        say: Callable[[Loading | Progress | Waiting], None],
        wants: Callable[[], None],
        then: Callable[[Loaded | None, tuple[str, str] | None], None],
        limit_s: float = IMAGE_LOAD_S,
    ) -> None:
        self._loop, self._say, self._wants, self._then, self._limit_s = loop, say, wants, then, limit_s
        self._since = self._limited_from = time.monotonic()
        self._asks = False
        """Whether it waits for the archive."""
        self._answer: dict[str, Any] | None = None
        self._rest = b""
        self._closed = False
        parent = os.getpid()
        prepare_prctl()
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            start_new_session=True,  # with the engine's client that it feeds, it is ended as one; clients that it asks end with it
            preexec_fn=lambda: die_with_parent(parent),
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders = ChildInput(loop, self._process.stdin)
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        loop.watch(self._output, self._readable)
        self._timer = loop.after(self._next_look_s(), self._look)

    def _next_look_s(self) -> float:
        return min(IMAGE_PROGRESS_EVERY_S, self._limit_s)

    def _look(self) -> None:
        now = time.monotonic()
        if now - self._limited_from >= self._limit_s and not self._asks:
            self.kill()
            self._then(None, ("ContainerError", f"the image was not here after {format_duration(self._limit_s)}; its load was ended"))
            return
        self._timer = self._loop.after(self._next_look_s(), self._look)
        if not self._asks:
            self._say(Loading(seconds=now - self._since))

    def bring(self, archive: str) -> None:
        """A checked copy of the archive is here."""
        self._asks, self._limited_from = False, time.monotonic()
        self._orders.feed(json.dumps({"archive": archive}).encode() + b"\n")

    def _readable(self) -> None:
        values, self._rest, ended = read_values(self._output, self._rest)
        for value in values:
            self._take(value)
        if ended:
            self._finish()

    def _take(self, value: Any) -> None:
        if not isinstance(value, dict):
            return
        if "image_id" in value or "error" in value:
            self._answer = value
        if "wants" in value:
            self._asks = True
            self._wants()
        elif "progress" in value:
            self._say(Progress(what="image", done=int(value["progress"][0]), total=int(value["progress"][1])))
        elif "waiting" in value:
            self._say(Waiting(what="image"))

    def _finish(self) -> None:
        self._close()
        code = self._process.wait()
        answer, loaded = self._answer or {}, None
        error = ("ContainerError", f"the load of the image ended with {code} and without an answer; the run's log has its words")
        with contextlib.suppress(msgspec.ValidationError):  # what is no answer is none
            if "error" in answer:
                error = msgspec.convert(answer["error"], tuple[str, str])
            elif code == 0:
                loaded = msgspec.convert(answer, Loaded)
        self._then(loaded, error if loaded is None else None)

    def _close(self) -> None:
        self._closed = True
        self._timer.cancel()
        self._loop.unwatch(self._output)
        self._orders.close()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def kill(self) -> None:
        """End it now, with the client that feeds the engine; what the engine has got so far is its own to drop. `then` is not called."""
        if not self._closed:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._close()
            bury(self._process)
