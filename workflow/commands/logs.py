"""Show what supervisor, nodes and ranks of an attempt wrote, safe for a terminal, for `slipway logs RUN`."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from base.errors import ConfigError, RecordError
from base.jsonfile import read_content
from base.logs import printable
from base.untrusted import open_file
from workflow.commands.chosen_study import told_study
from workflow.commands.watching import output
from workflow.commands.watching.watch import run_states
from workflow.run.node.caches import caches_here
from workflow.run.node.workdir import of_run
from workflow.run.record.machine_load import together
from workflow.run.record.model import NotBelieved
from workflow.run.record.reading import MAX_BYTES, attempt_directories, read_record
from workflow.study import paths
from workflow.study.study import Study

MAX_LINE: Final = 1 << 16  # a longer line is shown in parts


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The choice of logs, and how they are shown.

    Logs of one attempt (None: the latest), of one rank (None: all, and nodes and supervisor), the last lines only; going on while the
    run does, or for programs.
    """

    attempt: int | None = None
    rank: int | None = None
    lines: int | None = None
    follow: bool = False
    as_json: bool = False


def main(path: Path, site: str | None, run: str, wanted: Wanted) -> None:
    """Print the logs."""
    study = told_study(path, site)
    run_id = study.run(run).run_id
    found = log_files(study, run_id, wanted)
    if not found:
        raise ConfigError(_nothing(study, run_id, wanted))
    told = _told(study, run_id, wanted)
    if wanted.as_json:
        logs = [{"file": str(file), "lines": [printable(text) for text in _last(_lines(file), wanted.lines)]} for file in found]
        output.json_value({"run": run_id, "told": [printable(line) for line in told], "logs": logs})
        return
    if told:
        sys.stdout.write("".join(f"{printable(line)}\n" for line in told) + "\n")
    if wanted.follow:
        from workflow.commands.watching.follow_logs import follow

        follow(partial(log_files, study, run_id, wanted), partial(_runs_now, study, run_id), wanted.lines)
        return
    empty: list[str] = []
    for number, file in enumerate(found):
        lines = iter(_last(_lines(file), wanted.lines))
        first = next(lines, None)
        if first is None:
            empty.append(file.name)
            continue
        sys.stdout.write(f"{chr(10) if number > len(empty) else ''}==> {printable(str(file))} <==\n")
        for text in chain([first], lines):
            sys.stdout.write(printable(text) + "\n")
    if empty:
        sys.stdout.write(f"{chr(10) if len(empty) < len(found) else ''}nothing was written to {printable(', '.join(empty))}\n")


def _runs_now(study: Study, run_id: str) -> bool:
    return any(state.run.run_id == run_id and state.state == "running" for state in run_states(study))


def log_files(study: Study, run_id: str, wanted: Wanted) -> list[Path]:
    """Return the logs: the supervisor's, then those of the attempt on storage, else of one that still runs on this machine."""
    attempts = paths.attempts_dir(study.results_dir, run_id)
    number = wanted.attempt or max(attempt_directories(attempts), default=None)
    directories = [attempts / str(number) / "logs"] if number is not None else []
    if wanted.attempt is None or not directories[0].is_dir():
        directories = _on_this_machine(study, run_id, wanted.attempt) or directories
    pattern = "*.log" if wanted.rank is None else f"rank-{wanted.rank}.log"
    files = [file for directory in directories for file in sorted(directory.glob(pattern))]
    supervisor = paths.supervisor_log(study.results_dir, run_id)
    return [supervisor, *files] if wanted.rank is None and wanted.attempt is None and supervisor is not None else files


def _told(study: Study, run_id: str, wanted: Wanted) -> list[str]:
    """Return what an attempt went on from, and what else its machines did while it measured.

    The logs of the beginning are those of the earlier attempt.
    """
    attempts = paths.attempts_dir(study.results_dir, run_id)
    number = wanted.attempt or max(attempt_directories(attempts), default=None)
    try:
        record = read_record(read_content(attempts / str(number) / "record.json", max_bytes=MAX_BYTES))
    except (RecordError, NotBelieved):
        return []
    earlier = record.resumed_from
    went_on = [] if earlier is None else [f"attempt {number} went on from attempt {earlier.attempt} at step {earlier.step} (see --attempt)"]
    return [*went_on, *(f"busy: {words}" for words in together(record.busy or ()))]


def _on_this_machine(study: Study, run_id: str, attempt: int | None) -> list[Path]:
    """Return the directories of logs of an attempt whose work directory is on this machine: it runs, or its result waits here."""
    run_dir = paths.run_dir(study.results_dir, run_id)
    return [work / "own" / "logs" for cache in caches_here(study.site) for work in of_run(cache, run_dir, attempt)]


def _nothing(study: Study, run_id: str, wanted: Wanted) -> str:
    attempts = paths.attempts_dir(study.results_dir, run_id)
    numbers = attempt_directories(attempts)
    what = "no logs" if wanted.rank is None else f"no log of rank {wanted.rank}"
    where = f"attempt {wanted.attempt} of {run_id}" if wanted.attempt else run_id
    known = f"attempts there: {', '.join(map(str, numbers))}" if numbers else "it was never started"
    return f"{what} of {where}; {known} ({attempts})"


def _lines(file: Path) -> Iterator[str]:
    try:
        descriptor = open_file(file)
    except OSError as error:
        yield f"[not shown: {error.strerror}]"
        return
    with os.fdopen(descriptor, "rb") as content:
        while chunk := content.readline(MAX_LINE):
            yield chunk.decode(errors="replace").rstrip("\r\n")


def _last(lines: Iterable[str], count: int | None) -> Iterable[str]:
    return lines if count is None else deque(lines, maxlen=count)
