"""`python -m containers.images load` as a child of the node program: when it may read storage, its answer or its error, and its end in any
case."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from base.units import format_duration
from cluster.processes import bury, die_with_parent, prepare_prctl
from workflow.run.link.child_input import ChildInput
from workflow.run.link.child_lines import read_values
from workflow.run.link.event_loop import Loop
from workflow.run.link.said import ImageRead, ImageWanted, Loading

LOAD_S: Final = 5400.0
"""From the start until it may read storage, and again from the archive's last byte to the end: with these two another's load of the same
image, and our own. Waiting for permission and reading, which the site may slow down, have no limit but STALL_S."""
STALL_S: Final = 300.0
"""Without a byte of the archive, once it is read."""
SAY_EVERY_S: Final = 5.0

Answer = dict[str, Any]


class ImageChild:
    """A running load. `say` is called in the loop, `then(answer, error)` once: one of them is None, `error` is (class name, message)."""

    def __init__(
        self,
        loop: Loop,
        argv: tuple[str, ...],
        say: Callable[[ImageRead | ImageWanted | Loading], None],
        then: Callable[[Answer | None, tuple[str, str] | None], None],
        limit_s: float = LOAD_S,
        stall_s: float = STALL_S,
    ) -> None:
        self._loop, self._say, self._then, self._limit_s, self._stall_s = loop, say, then, limit_s, stall_s
        self._since = self._limited_from = self._moved = time.monotonic()
        self._phase = "before"
        """before, waiting (until it may read), reading (storage), after."""
        self._answer: Answer | None = None
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
        return min(SAY_EVERY_S, self._limit_s, self._stall_s)

    def _look(self) -> None:
        now = time.monotonic()
        if self._phase == "reading" and now - self._moved >= self._stall_s:
            self._give_up("StorageError", f"the image's archive on storage gave no byte for {format_duration(self._stall_s)}")
        elif self._phase in ("before", "after") and now - self._limited_from >= self._limit_s:
            self._give_up("ContainerError", f"the image was not here after {format_duration(self._limit_s)}")
        else:
            self._timer = self._loop.after(self._next_look_s(), self._look)
            self._say(Loading(seconds=now - self._since))

    def _give_up(self, error: str, why: str) -> None:
        self.kill()
        self._then(None, (error, f"{why}; its load was ended"))

    def read(self, bytes_per_s: float | None) -> None:
        """It may read storage now."""
        self._phase = "reading"
        self._moved = time.monotonic()
        self._orders.feed(json.dumps({"bytes_per_s": bytes_per_s}).encode() + b"\n")

    def _readable(self) -> None:
        values, self._rest, ended = read_values(self._output, self._rest)
        for value in values:
            self._take(value)
        if ended:
            self._finish()

    def _take(self, value: Any) -> None:
        self._moved = time.monotonic()
        if not isinstance(value, dict):
            return
        if "image_id" in value or "error" in value:
            self._answer = value
        if "wants" in value:
            self._phase = "waiting"
            self._say(ImageWanted(bytes=value["wants"]))
        elif "read" in value:
            self._phase, self._limited_from = "after", self._moved
            self._say(ImageRead(bytes=value["read"]))

    def _finish(self) -> None:
        self._close()
        code = self._process.wait()
        answer = self._answer
        if answer is not None and "error" in answer:
            name, message = answer["error"]
            self._then(None, (str(name), str(message)))
        elif answer is not None and code == 0:
            self._then(answer, None)
        else:
            self._then(
                None, ("ContainerError", f"the load of the image ended with {code} and without an answer; the run's log has its words")
            )

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
