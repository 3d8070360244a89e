"""Build a dataset of any kind: the three steps of each kind, and all of them in one call with worker processes.

A killed build is continued. A worker gets one part after the other; workers for images start while the source is listed. A worker is
`python -m data_prep.build work`; it ends with its parent, since it reads and writes the parent's pipes.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from base.errors import DatasetError, error_named
from base.process import PipedChild
from base.publish import remove_tree
from data_prep.build import locks, steps
from data_prep.manifest import Progress, silent

if TYPE_CHECKING:
    from data_prep.spec import DatasetSpec


KINDS: Final = {"images": "build.shard", "sequences": "sequences.shard", "tree": "tree.plan"}
"""The module of each kind of dataset, which is loaded when it is needed: a worker for images starts while the source is listed."""


def kind_named(name: str) -> steps.Kind[Any, Any]:
    """Return one of KINDS."""
    kind: steps.Kind[Any, Any] = import_module(f"data_prep.{KINDS[name]}").KIND
    return kind


def kind_of(spec: DatasetSpec) -> steps.Kind[Any, Any]:
    """Return the kind of dataset that a specification asks for."""
    return kind_named("tree" if spec.is_tree else "sequences" if spec.has_sequences else "images")


def kind_in(build_dir: Path) -> steps.Kind[Any, Any]:
    """Return the kind of dataset that is planned in `build_dir`. Raises DatasetError where there is no plan."""
    names = {"slipway.tree-plan/1": "tree", "slipway.sequences-plan/1": "sequences"}
    return kind_named(names.get(str(steps.plan_schema(build_dir)), "images"))


def build_dir_of(datasets_dir: Path, name: str, spec: DatasetSpec) -> Path:
    """Return the directory where a dataset is made, `<datasets>/.build/<name>-<spec12>`. `spec` is resolved."""
    from data_prep.spec import spec12  # workers need none of its models

    return datasets_dir / ".build" / f"{name}-{spec12(spec)}"


def build_dataset(
    spec: DatasetSpec, name: str, datasets_dir: Path, jobs: int | None = None, progress: Progress = silent, *, fresh: bool = False
) -> steps.BuiltDataset:
    """Build the dataset of the resolved `spec`, or go on with it, or find it done. `fresh` forgets what an earlier call decided.

    `jobs` processes (default: the cores this process may use); `progress(samples done, samples in all)`, of a tree bytes, in all 0 while
    the source is listed. Raises ConfigError, DatasetError, NotEnoughSpace, StorageError.
    """
    build_dir, kind = build_dir_of(datasets_dir, name, spec), kind_of(spec)
    if fresh:
        remove_tree(build_dir)
    built = None if kind.in_place else steps.finished_dataset(build_dir, datasets_dir)  # its plan may be an older version's
    if built is not None:
        progress(built.samples or 0, built.samples or 0)
        return built
    jobs = jobs or len(os.sched_getaffinity(0))
    build_dir.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        early = min(jobs, spec.shards) if kind.alone_bytes == 0 and not (build_dir / steps.PLAN_FILE).exists() else 0
        workers = [stack.enter_context(_Worker(build_dir)) for _ in range(early)]
        plan = kind.plan(spec, name, build_dir, lambda done, _total: progress(0 if spec.is_tree else done, 0))
        sizes = [plan.part_size(index) for index in range(plan.num_parts)]
        left = [index for index in range(plan.num_parts) if kind.find(build_dir, index, plan) is None]
        done = [0 if index in set(left) else size for index, size in enumerate(sizes)]

        def advance(index: int, num_done: int, _total: int = 0) -> None:
            done[index] = num_done
            progress(sum(done), sum(sizes))

        if sum(map(plan.part_bytes, left)) <= kind.alone_bytes:
            for index in left:
                kind.build(build_dir, index, partial(advance, index))
        else:
            try:
                build_shards(build_dir, left, jobs, advance, workers)
            except BaseException:
                stack.close()  # ends the workers that still write
                locks.remove_all_dead_parts(build_dir)  # of builders that ended with the one that failed: the disk may be full
                raise
    built = kind.finish(build_dir, datasets_dir)
    progress(sum(sizes), sum(sizes))
    return built


def build_shards(
    build_dir: Path, indices: Sequence[int], jobs: int, on_samples: Callable[[int, int], None], started: Sequence[_Worker] = ()
) -> None:
    """Build the shards `indices`, `jobs` at a time, by workers that were `started` before and others; `on_samples(index, samples done)`.
    Raises what the first failing worker raised."""
    waiting = list(reversed(indices))
    with selectors.DefaultSelector() as selector, ExitStack() as workers:
        for number in range(min(jobs, len(waiting))):
            worker = started[number] if number < len(started) else workers.enter_context(_Worker(build_dir))
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
        super().__init__("data_prep.build", "work", "--build-dir", str(build_dir), OPENBLAS_NUM_THREADS="1")  # no matrix is multiplied
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
