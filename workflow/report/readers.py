"""Many runs -> rows, on as many cores as there are: one process each, since reading a record is work of one core, not of a disk."""

from __future__ import annotations

import io
import os
import queue
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE
from typing import IO, Final

import polars as pl

from base.errors import RecordError
from base.jsonfile import json_line
from base.rooms import rooms_environ
from workflow.report.chunks import LENGTH_BYTES, read_chunk

CHUNK = 4096
MOST_PROCESSES: Final = 16  # more of them ask a file server more than it answers


def read_runs(runs_dir: Path, runs: Sequence[str]) -> pl.DataFrame:
    """One row per run, in the order of `runs`. Raises RecordError when a process that reads them dies."""
    chunks = [runs[start : start + CHUNK] for start in range(0, len(runs), CHUNK)] or [[]]
    processes = min(len(chunks), len(os.sched_getaffinity(0)), MOST_PROCESSES)
    if processes == 1:
        return pl.concat([read_chunk(str(runs_dir), chunk) for chunk in chunks])
    with ExitStack() as stack:
        free: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        for _ in range(processes):
            free.put(stack.enter_context(_reader(runs_dir)))

        def ask(chunk: Sequence[str]) -> pl.DataFrame:
            reader = free.get()
            try:
                return _answer(reader, chunk)
            finally:
                free.put(reader)

        with ThreadPoolExecutor(processes) as pool:
            return pl.concat(pool.map(ask, chunks))


@contextmanager
def _reader(runs_dir: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that reads chunks; it is gone at the end, however that comes."""
    environment = os.environ | rooms_environ(os.environ)
    environment["POLARS_MAX_THREADS"] = "1"  # each has a core
    argv = [sys.executable, "-P", "-m", "workflow.report.chunks", str(runs_dir)]
    process = subprocess.Popen(argv, stdin=PIPE, stdout=PIPE, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _answer(reader: subprocess.Popen[bytes], runs: Sequence[str]) -> pl.DataFrame:
    ask, answers = reader.stdin, reader.stdout
    assert ask is not None
    assert answers is not None
    try:
        ask.write(json_line(runs))
        ask.flush()
        length = int.from_bytes(_exactly(answers, LENGTH_BYTES), "big")
        return pl.read_ipc_stream(io.BytesIO(_exactly(answers, length)))
    except (OSError, EOFError) as error:
        raise RecordError(
            f"the process that read {len(runs)} records from {runs[0]} on ended before it had done so (exit {reader.poll()}; "
            "out of memory, or killed?); ask again"
        ) from error


def _exactly(answers: IO[bytes], length: int) -> bytes:
    content = answers.read(length)
    if len(content) < length:
        raise EOFError
    return content
