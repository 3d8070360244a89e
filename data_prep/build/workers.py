"""Several shards at once: worker processes that are handed one shard after the other, and the progress of all of them together.

A worker is `python -m data_prep.build work`; it ends with its parent, since it reads and writes the parent's pipes.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from base.errors import DatasetError, SlipwayError
from base.rooms import rooms_environ


def build_shards(build_dir: Path, indices: Sequence[int], jobs: int, on_samples: Callable[[int, int], None]) -> None:
    """Build the shards `indices`, `jobs` at a time; `on_samples(index, samples done)`. Raises what the first failing worker raised."""
    waiting = list(reversed(indices))
    with selectors.DefaultSelector() as selector:
        workers = [_Worker(build_dir) for _ in range(min(jobs, len(waiting)))]
        try:
            for worker in workers:
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
        finally:
            for worker in workers:
                worker.stop()


def _heed(worker: _Worker, line: dict[str, Any], waiting: list[int], on_samples: Callable[[int, int], None]) -> None:
    if "error" in line:
        raise _error_class(line["error"])(line["message"])
    if "done" in line:
        on_samples(worker.index, line["done"])
    elif waiting:
        worker.begin(waiting.pop())
    else:
        worker.release()


def _error_class(name: str) -> type[SlipwayError]:
    known: list[type[SlipwayError]] = [SlipwayError]
    for cls in known:
        known += cls.__subclasses__()
    return next((cls for cls in known if cls.__name__ == name), SlipwayError)


class _Worker:
    """One process; it answers {"done": samples}, {"finished": index} or {"error": class, "message": text}."""

    def __init__(self, build_dir: Path) -> None:
        environment = os.environ | rooms_environ(os.environ)
        argv = [sys.executable, "-P", "-m", "data_prep.build", "work", "--build-dir", str(build_dir)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, bufsize=0)
        self.index = -1
        self.ended = False
        self._rest = b""

    def fileno(self) -> int:
        """Readable when it has said something or ended."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def begin(self, index: int) -> None:
        """Hand it the next shard."""
        assert self.process.stdin is not None
        self.index = index
        try:
            self.process.stdin.write(f"{index}\n".encode())
        except BrokenPipeError:
            self.ended = True
            self.check_end()

    def release(self) -> None:
        """No more shards: it may end."""
        assert self.process.stdin is not None
        self.index = -1
        self.process.stdin.close()

    def lines(self) -> list[dict[str, Any]]:
        """What it has said since."""
        content = os.read(self.fileno(), 1 << 16)
        if not content:
            self.ended = True
            return []
        *lines, self._rest = (self._rest + content).split(b"\n")
        return [json.loads(line) for line in lines]

    def check_end(self) -> None:
        """Raises DatasetError if it died instead of ending."""
        code = self.process.wait()
        if code < 0:
            hint = " (out of memory?)" if code == -signal.SIGKILL else ""
            raise DatasetError(f"the worker of shard {self.index} was killed by {signal.Signals(-code).name}{hint}; run again to continue")
        if code or self.index >= 0:
            raise DatasetError(f"the worker of shard {self.index} ended with {code}; its message stands above; run again to continue")

    def stop(self) -> None:
        """Kill it if it is still there: a shard it was at is begun anew by the next run."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        self.process.wait()
