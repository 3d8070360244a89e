"""`python -m containers.images load` as a child of the node program: its answer, its error, how long it has taken, its end in any case."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from base.units import format_duration
from cluster.processes import die_with_parent, prepare_prctl
from workflow.run.events import parse_line
from workflow.run.loop import Loop

LOAD_S: Final = 5400.0
"""Longer than what it limits itself: another's load of the same image, then its own."""
SAY_EVERY_S: Final = 5.0

Answer = dict[str, Any]


class ImageChild:
    """A running load. `waits(seconds)` is called in the loop now and then, `then(answer, error)` once: one of them is None, `error` is
    (class name, message)."""

    def __init__(
        self,
        loop: Loop,
        argv: tuple[str, ...],
        waits: Callable[[float], None],
        then: Callable[[Answer | None, tuple[str, str] | None], None],
        limit_s: float = LOAD_S,
    ) -> None:
        self._loop, self._waits, self._then, self._limit_s = loop, waits, then, limit_s
        self._since = time.monotonic()
        self._said = b""
        self._closed = False
        parent = os.getpid()
        prepare_prctl()
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            start_new_session=True,  # with the engine's client that it starts, it is ended as one
            preexec_fn=lambda: die_with_parent(parent),
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        loop.watch(self._output, self._readable)
        self._timer = loop.after(min(SAY_EVERY_S, limit_s), self._look)

    def _look(self) -> None:
        passed = time.monotonic() - self._since
        if passed >= self._limit_s:
            self.kill()
            self._then(None, ("ContainerError", f"the image was not here after {format_duration(self._limit_s)}; its load was ended"))
            return
        self._timer = self._loop.after(min(SAY_EVERY_S, self._limit_s), self._look)
        self._waits(passed)

    def _readable(self) -> None:
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return
        self._said += data
        if not data:
            self._finish()

    def _finish(self) -> None:
        code = self._close()
        answer = parse_line(self._said)
        if isinstance(answer, dict) and "error" in answer:
            name, message = answer["error"]
            self._then(None, (str(name), str(message)))
        elif isinstance(answer, dict) and code == 0:
            self._then(answer, None)
        else:
            self._then(
                None, ("ContainerError", f"the load of the image ended with {code} and without an answer; the run's log has its words")
            )

    def _close(self) -> int:
        self._closed = True
        self._timer.cancel()
        self._loop.unwatch(self._output)
        code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def kill(self) -> None:
        """End it now, with the client that feeds the engine; what the engine has got so far is its own to drop. `then` is not called."""
        if not self._closed:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._close()
