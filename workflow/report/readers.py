"""Many runs -> rows, on as many cores as there are: one process each, since reading a record is work of one core, not of a disk."""

from __future__ import annotations

import io
import os
import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

import polars as pl

from base.errors import RecordError
from base.jsonfile import json_line
from base.piped import PipedChild
from workflow.report.chunks import LENGTH_BYTES, read_chunk

CHUNK = 4096
MOST_PROCESSES: Final = 16  # more of them ask a file server more than it answers


def read_runs(runs_dir: Path, runs: Sequence[str], chunk: int = CHUNK) -> pl.DataFrame:
    """One row per run, in the order of `runs`; a process reads `chunk` of them at a time. Raises RecordError when one dies."""
    chunks = [runs[start : start + chunk] for start in range(0, len(runs), chunk)] or [[]]
    processes = min(len(chunks), len(os.sched_getaffinity(0)), MOST_PROCESSES)
    if processes == 1:
        return pl.concat([read_chunk(str(runs_dir), part) for part in chunks])
    with ExitStack() as stack:
        free: queue.SimpleQueue[PipedChild] = queue.SimpleQueue()
        for _ in range(processes):
            child = PipedChild("workflow.report.chunks", str(runs_dir), POLARS_MAX_THREADS="1")  # each has a core
            free.put(stack.enter_context(child))

        def ask(chunk: Sequence[str]) -> pl.DataFrame:
            reader = free.get()
            try:
                return _answer(reader, chunk)
            finally:
                free.put(reader)

        with ThreadPoolExecutor(processes) as pool:
            return pl.concat(pool.map(ask, chunks))


def _answer(reader: PipedChild, runs: Sequence[str]) -> pl.DataFrame:
    try:
        reader.ask(json_line(runs))
        length = int.from_bytes(_exactly(reader.answers, LENGTH_BYTES), "big")
        return pl.read_ipc_stream(io.BytesIO(_exactly(reader.answers, length)))
    except (OSError, EOFError) as error:
        raise RecordError(
            f"the process that read {len(runs)} records from {runs[0]} on ended before it had done so (exit {reader.process.poll()}; "
            "out of memory, or killed?); ask again"
        ) from error


def _exactly(answers: IO[bytes], length: int) -> bytes:
    content = answers.read(length)
    if len(content) < length:
        raise EOFError
    return content
