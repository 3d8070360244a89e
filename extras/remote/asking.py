"""Ask the Slipway on a host: where it is, and the questions of `slipway remote-end`, with a type for each answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Final, TypeVar

from base import VERSION
from base.errors import RemoteError, error_of_exit
from base.jsonfile import parse_json
from base.process import CommandResult, last_lines
from base.typed import Check, Count, Digest, read_as
from cluster.ssh import Transport, again, run
from data_prep.tree.manifest import name_fault
from extras.remote.kept import Settings

Answer = TypeVar("Answer")
PROTOCOL: Final = 1
"""Raised when the two ends would not understand each other."""
PLACES: Final = ("slipway", "~/.venv/bin/slipway", "~/slipway/.venv/bin/slipway", "~/Slipway/.venv/bin/slipway", "~/.local/bin/slipway")
ANSWER_S: Final = 120.0
GONE: Final = 127
MOST_SHOWN: Final = 2000
"""The characters of a host's own words that an error of ours repeats."""
SCRIPT: Final = """
for one in "$@"; do
  case $one in "~/"*) one=$HOME/${one#??};; esac
  found=$(command -v -- "$one") && exec "$found" remote-end hello "$found"
done
exit 127
"""
FILES: Final = ("study.json", "study.yaml", "records.parquet", "report.html", "runs/*/record.json")
TREES: Final = ("tables", "plots")
"""What comes down: those files, and all below these directories."""


def is_result(name: str) -> bool:
    """Return True for the path of a file that may come down. `--out` may be any directory of the user's, and a cluster must not put a
    program there."""
    path = PurePosixPath(name)
    if name_fault(name) is not None or not name.isprintable() or any(part.startswith(".") for part in path.parts):
        return False
    return any(path.match(pattern) and len(path.parts) == pattern.count("/") + 1 for pattern in FILES) or (
        path.parts[0] in TREES and len(path.parts) > 1
    )


def _are_different(files: tuple[ResultFile, ...]) -> bool:
    names = {file.name for file in files}
    return len(names) == len(files) and not any(above.as_posix() in names for name in names for above in PurePosixPath(name).parents)


RemotePath = Annotated[str, Check("an absolute path", lambda path: path.startswith("/") and path.isprintable() and len(path) < 4096)]
Word = Annotated[str, Check("printable text", lambda word: word.isprintable() and len(word) < 256)]
ResultName = Annotated[str, Check("the path of a file of a study's results", is_result)]


@dataclass(frozen=True, kw_only=True)
class Hello:
    """The answer to `hello`: who answers, and by which program."""

    version: Word
    host: Word
    program: RemotePath


@dataclass(frozen=True, kw_only=True)
class Have:
    """The answer to `have`. `there`: whether this version of a study lies at `place`; if not, `incoming` is where it is to be put."""

    place: RemotePath
    there: bool
    incoming: RemotePath


@dataclass(frozen=True, kw_only=True)
class Placed:
    """The answer to `place`: where the study lies now."""

    place: RemotePath


@dataclass(frozen=True, kw_only=True)
class ResultFile:
    """A file of the results: its path below them, its size and its digest."""

    name: ResultName
    bytes: Count
    blake3: Digest


@dataclass(frozen=True, kw_only=True)
class Results:
    """The answer to `results`: the directory of a study's results, and the files in it that come down."""

    results: RemotePath
    files: Annotated[tuple[ResultFile, ...], Check("each file once, and none below another", _are_different)]


@dataclass(frozen=True, kw_only=True)
class Far:
    """A host with a Slipway on it."""

    line: Transport
    settings: Settings

    def ask(self, kind: type[Answer], *words: str) -> Answer:
        """Return the answer of `slipway remote-end`. Raises RemoteError, and the error that the command there ended with."""
        result = again(lambda: run(self.line, [self.settings.slipway, "remote-end", *words], limit_s=ANSWER_S))
        return answer_of(kind, result, self.line.host)


def find_slipway(line: Transport, given: str | None) -> Hello:
    """Return the answer of the first Slipway that is there; a shell may not have it on its PATH. Raises RemoteError where none is."""
    places = PLACES if given is None else (given,)
    result = again(lambda: run(line, ["/bin/sh", "-c", SCRIPT, "sh", *places], limit_s=ANSWER_S))
    if result.returncode == GONE:
        raise RemoteError(
            f"no Slipway was found on {line.host}: looked for {', '.join(places)}. Install it there, on storage that all nodes see "
            f"(docs/installing.md), then name it: `slipway remote {line.host} setup --slipway PATH`"
        )
    return answer_of(Hello, result, line.host)


def answer_of(kind: type[Answer], result: CommandResult, host: str) -> Answer:
    """Read the answer of `host` as a `kind`. Raises RemoteError for anything else, and the class that the command there ended with."""
    if result.returncode == 2:
        raise RemoteError(
            f"the Slipway on {host} does not know this question: {last_lines(result.stderr, 3)[-MOST_SHOWN:]}\n{update(host)}"
        )
    if result.returncode:
        shown = last_lines(result.stderr, 6).removeprefix("slipway: ")[-MOST_SHOWN:]
        raise error_of_exit(result.returncode, RemoteError)(f"on {host}: {shown or f'exit code {result.returncode}'}")
    where = f"the answer of {host}"
    found = parse_json(result.stdout.encode(), where, RemoteError)
    if isinstance(found, dict) and found.get("protocol", PROTOCOL) != PROTOCOL:
        raise RemoteError(f"{where}: its Slipway and {VERSION} here do not understand each other: {update(host)}")
    return read_as(kind, found, where, RemoteError, update(host))


def update(host: str) -> str:
    """Return the advice for two versions that differ."""
    return f"bring both to one version (here {VERSION}), or name another one there: `slipway remote {host} setup --slipway PATH`"
