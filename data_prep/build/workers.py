"""Build several shards at once in worker processes, and sum their progress.

A worker gets one shard after the other. It is `python -m data_prep.build work`; it ends with its parent, since it reads and writes the
parent's pipes.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from base.errors import DatasetError, error_named
from base.process import PipedChild


def build_shards(build_dir: Path, indices: Sequence[int], jobs: int, on_samples: Callable[[int, int], None]) -> None:
    """Build the shards `indices`, `jobs` at a time; `on_samples(index, samples done)`. Raises what the first failing worker raised."""
    waiting = list(reversed(indices))
    with selectors.DefaultSelector() as selector, ExitStack() as workers:
        for _ in range(min(jobs, len(waiting))):
            worker = workers.enter_context(_Worker(build_dir))
            worker.begin(waiting.pop())
            selector.register(worker, selectors.EVENT_READ, worker)
        while selector.get_map():
            for key, _ in selector.select():
                worker = key.data
                for line in worker.lines():
                    _heed(worker, line, waiting, on_samples)
                if worker.ended:
                    selector.unregister(worker)
                    worker.check_end()


def _heed(worker: _Worker, line: dict[str, Any], waiting: list[int], on_samples: Callable[[int, int], None]) -> None:
    if "error" in line:
        raise error_named(line["error"])(line["message"])
    if "done" in line:
        on_samples(worker.index, line["done"])
    elif waiting:
        worker.begin(waiting.pop())
    else:
        worker.release()


class _Worker(PipedChild):
    """A worker process. It answers {"done": samples}, {"finished": index} or {"error": class, "message": text}."""

    def __init__(self, build_dir: Path) -> None:
        super().__init__("data_prep.build", "work", "--build-dir", str(build_dir))
        self.index = -1
        self.ended = False
        self._rest = b""

    def fileno(self) -> int:
        return self.answers.fileno()

    def begin(self, index: int) -> None:
        self.index = index
        try:
            self.ask(f"{index}\n".encode())
        except BrokenPipeError:
            self.ended = True
            self.check_end()

    def release(self) -> None:
        self.index = -1
        self.requests.close()

    def lines(self) -> list[dict[str, Any]]:
        content = os.read(self.fileno(), 1 << 16)
        if not content:
            self.ended = True
            return []
        *lines, self._rest = (self._rest + content).split(b"\n")
        return [json.loads(line) for line in lines]

    def check_end(self) -> None:
        """Raise DatasetError if the worker died."""
        code = self.process.wait()
        if code < 0:
            hint = " (out of memory?)" if code == -signal.SIGKILL else ""
            raise DatasetError(f"the worker of shard {self.index} was killed by {signal.Signals(-code).name}{hint}; run again to continue")
        if code or self.index >= 0:
            raise DatasetError(f"the worker of shard {self.index} ended with {code}; its message stands above; run again to continue")
