"""Show what supervisor, nodes and ranks of an attempt wrote, safe for a terminal, for `slipway logs RUN`."""

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import typer

from base import errors, untrusted
from base.logs import printable
from base.process import raise_file_limit
from workflow.commands.chosen_study import load_chosen_study
from workflow.commands.options import DEFAULT_STUDY, JsonOption, SiteOption, StudyOption
from workflow.commands.watching import output
from workflow.run.node import caches, workdir
from workflow.run.record.reading import attempt_directories
from workflow.run.storage.prepare import held_runs
from workflow.study import paths
from workflow.study.study import Study

EVERY_S: Final = 1.0
LOOK_S: Final = 5.0
"""The seconds between two looks whether the run still goes on: on storage, and at its holder."""
MAX_LINE: Final = 1 << 16


class _Followed:
    """A log that is open: its directory may be removed, or copied to storage, before all of it was read."""

    def __init__(self, path: Path, content: BinaryIO) -> None:
        self.path, self.content = path, content
        self.rest = b""

    def new_lines(self, *, to_the_end: bool) -> Iterator[str]:
        """Yield whole lines; the beginning of one too where nobody will write more. A longer line is shown in parts."""
        while part := self.content.readline(MAX_LINE):
            self.rest += part
            if self.rest.endswith(b"\n") or len(self.rest) >= MAX_LINE:
                yield self._taken()
        if to_the_end and self.rest:
            yield self._taken()

    def _taken(self) -> str:
        line, self.rest = self.rest, b""
        return line.decode(errors="replace").rstrip("\r\n")


class _Output:
    """What is printed of logs: a heading where another log begins, and at the end the names of those in which nothing was written."""

    def __init__(self) -> None:
        self._shown: Path | None = None
        self._has_lines: dict[Path, bool] = {}

    def write(self, path: Path, lines: Iterable[str]) -> None:
        self._has_lines.setdefault(path, False)
        for text in lines:
            if self._shown != path:
                sys.stdout.write(f"{'' if self._shown is None else chr(10)}==> {printable(str(path))} <==\n")
                self._shown, self._has_lines[path] = path, True
            sys.stdout.write(printable(text) + "\n")

    def end(self) -> None:
        if silent := [path.name for path, has_lines in self._has_lines.items() if not has_lines]:
            sys.stdout.write(f"{'' if self._shown is None else chr(10)}nothing was written to {printable(', '.join(silent))}\n")


def show_logs(
    files: Callable[[], Sequence[Path]],
    runs: Callable[[], object],
    last: int | None = None,
    *,
    every_s: float = EVERY_S,
    look_s: float = LOOK_S,
) -> None:
    """Print what is in the files, then what is written to them until `runs` says no. Files may appear and go, and a log of a run that goes
    on may be copied to another directory. `last`: so many lines of what is there already."""
    followed: dict[str, _Followed] = {}
    shown = _Output()
    looked, goes_on, follows = -look_s, True, False
    with ExitStack() as opened:
        while goes_on:
            if time.monotonic() - looked >= look_s:
                goes_on, looked = bool(runs()), time.monotonic()
                follows = follows or goes_on
            for path in files():
                name = path.name if follows else str(path)
                if name not in followed and (content := _opened(path, again=goes_on)) is not None:
                    followed[name] = _Followed(path, opened.enter_context(content))
            for log in followed.values():
                shown.write(log.path, _last(log.new_lines(to_the_end=not goes_on), last))
            last = None
            sys.stdout.flush()
            if goes_on:
                time.sleep(every_s)
    shown.end()


def _opened(path: Path, *, again: bool = False) -> BinaryIO | None:
    """Open a log. One that cannot be shown, such as a link, is a line that says why; None where there is none any more, and `again` where
    another try follows."""
    try:
        return os.fdopen(untrusted.open_file(path), "rb")
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        return None if gone or again else BytesIO(f"[not shown: {error.strerror}]".encode())


def main(  # noqa: PLR0913 - its options
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run, or the beginning of its name if no other run begins so.")],
    study: StudyOption = DEFAULT_STUDY,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Default: the latest.")] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Of this rank only.")] = None,
    lines: Annotated[int | None, typer.Option("--lines", "-n", min=1, help="Only the last lines of each log.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Keep showing what is written until the run has ended.")] = False,
    site: SiteOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what supervisor, nodes and ranks of a run wrote, by default in its latest attempt.

    An attempt that still runs on this machine is shown, too. `slipway status` says what attempt it went on from, and what
    else its machines did while it measured. Control characters are replaced.
    """
    if follow and as_json:
        raise typer.BadParameter("--json is one document, which --follow would never end")
    loaded = load_chosen_study(study, site)
    run_id = loaded.run(run).run_id
    found = log_files(loaded, run_id, attempt, rank)
    if not found:
        raise errors.ConfigError(_nothing(loaded, run_id, attempt, rank))
    if as_json:
        logs = [{"file": str(file), "lines": [printable(text) for text in _last(_lines(file), lines)]} for file in found]
        output.json_value({"run": run_id, "logs": logs})
        return
    raise_file_limit()  # each rank has a log, and all are open at a time
    runs = partial(held_runs, str(loaded.results_dir), [run_id]) if follow else bool
    show_logs(partial(log_files, loaded, run_id, attempt, rank), runs, lines)


def log_files(study: Study, run_id: str, attempt: int | None = None, rank: int | None = None) -> list[Path]:
    """Return the logs: the supervisor's, then those of the attempt on storage, else of one that still runs on this machine."""
    attempts = paths.attempts_dir(study.results_dir, run_id)
    number = attempt or max(attempt_directories(attempts), default=None)
    directories = [attempts / str(number) / "logs"] if number is not None else []
    if attempt is None or not directories[0].is_dir():
        directories = _on_this_machine(study, run_id, attempt) or directories
    pattern = "*.log" if rank is None else f"rank-{rank}.log"
    files = [file for directory in directories for file in sorted(directory.glob(pattern))]
    supervisor = paths.supervisor_log(study.results_dir, run_id)
    return [supervisor, *files] if rank is None and attempt is None and supervisor is not None else files


def _on_this_machine(study: Study, run_id: str, attempt: int | None) -> list[Path]:
    """Return the directories of logs of an attempt whose work directory is on this machine: it runs, or its result waits here."""
    run_dir = paths.run_dir(study.results_dir, run_id)
    return [work / "own" / "logs" for cache in caches.caches_here(study.site) for work in workdir.of_run(cache, run_dir, attempt)]


def _nothing(study: Study, run_id: str, attempt: int | None, rank: int | None) -> str:
    attempts = paths.attempts_dir(study.results_dir, run_id)
    numbers = attempt_directories(attempts)
    what = "no logs" if rank is None else f"no log of rank {rank}"
    where = f"attempt {attempt} of {run_id}" if attempt else run_id
    known = f"attempts there: {', '.join(map(str, numbers))}" if numbers else "it was never started"
    return f"{what} of {where}; {known} ({attempts})"


def _lines(file: Path) -> Iterator[str]:
    with _opened(file) or BytesIO() as content:
        yield from _Followed(file, content).new_lines(to_the_end=True)


def _last(lines: Iterable[str], count: int | None) -> Iterable[str]:
    return lines if count is None else deque(lines, maxlen=count)
