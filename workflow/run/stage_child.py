"""`python -m data_prep.staging` as a child of the node program: its JSON lines, its end, its error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from cluster.processes import die_with_parent, prepare_prctl
from workflow.run.events import parse_line
from workflow.run.loop import Loop


def stage_argv(
    python: str, source: str, cache: str, holder: dict[str, Any] | None, max_bytes: int | None, bytes_per_s: float | None
) -> tuple[str, ...]:
    """Pure: the command that brings the dataset `source` into `cache`."""
    argv = [python, "-P", "-m", "data_prep.staging", "--source", source, "--cache", cache]
    if holder is not None:
        argv += ["--holder", json.dumps(holder, sort_keys=True)]
    if max_bytes is not None:
        argv += ["--max-bytes", str(max_bytes)]
    if bytes_per_s is not None:
        argv += ["--bytes-per-s", f"{bytes_per_s:g}"]
    return tuple(argv)


class StageChild:
    """A running staging process. In the loop: `on_progress(done, total)`; at the end `on_end(result, error)`, one of them None, where
    `error` is (class name, message)."""

    def __init__(
        self,
        loop: Loop,
        argv: tuple[str, ...],
        on_progress: Callable[[int, int], None],
        on_end: Callable[[dict[str, Any] | None, tuple[str, str] | None], None],
    ) -> None:
        self._loop, self._on_progress, self._on_end = loop, on_progress, on_end
        self._rest = b""
        self._answer: dict[str, Any] = {}
        parent = os.getpid()
        prepare_prctl()
        self._process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=sys.stderr, preexec_fn=lambda: die_with_parent(parent)
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._output, False)
        loop.watch(self._output, self._readable)

    def _readable(self) -> None:
        try:
            data = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(parse_line(line))
        if not data:
            self._finish()

    def _take(self, value: Any) -> None:
        if not isinstance(value, dict):
            return
        if "progress" in value:
            self._on_progress(int(value["progress"][0]), int(value["progress"][1]))
        else:
            self._answer.update(value)

    def _finish(self) -> None:
        code = self._close()
        if "result" in self._answer and code == 0:
            self._on_end(self._answer["result"], None)
        elif "error" in self._answer:
            self._on_end(None, (str(self._answer["error"]["class"]), str(self._answer["error"]["message"])))
        else:
            self._on_end(None, ("StagingError", f"the staging process ended with {code} and without an answer; its log is that of the run"))

    def _close(self) -> int:
        self._loop.unwatch(self._output)
        code = self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return code

    def kill(self) -> None:
        """End it now; an unfinished copy stays, and the next stager goes on with it. `on_end` is not called."""
        self._process.kill()
        self._close()
