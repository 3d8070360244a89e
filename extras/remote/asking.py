"""Ask the Slipway on a host: where it is, and the questions of `slipway remote-end`, with a type for each answer; and fetch results."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, TypeVar

from base import VERSION, jsonfile, process, publish, untrusted
from base.errors import RemoteError, error_of_exit
from base.humanize import counted, format_size
from base.typed import Check, Count, Digest, read_as
from cluster import ssh
from data_prep import free_space, hashing
from data_prep.tree.manifest import name_fault
from extras.remote.laptop_state import Settings

Answer = TypeVar("Answer")
PROTOCOL: Final = 1
"""Raised when the two ends would not understand each other."""
PLACES: Final = ("slipway", "~/.venv/bin/slipway", "~/slipway/.venv/bin/slipway", "~/Slipway/.venv/bin/slipway", "~/.local/bin/slipway")
ANSWER_S: Final = 120.0
GONE: Final = 127
MAX_SHOWN: Final = 2000
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


def _are_different(files: tuple["ResultFile", ...]) -> bool:
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
class RemoteHost:
    """A host with a Slipway on it."""

    connection: ssh.OpenSsh
    settings: Settings

    def ask(self, kind: type[Answer], *words: str) -> Answer:
        """Return the answer of `slipway remote-end`. Raises RemoteError, and the error that the command there ended with."""
        result = ssh.retry_once(lambda: ssh.run_there(self.connection, [self.settings.slipway, "remote-end", *words], limit_s=ANSWER_S))
        return answer_of(kind, result, self.connection.host)


def find_slipway(connection: ssh.OpenSsh, given: str | None) -> Hello:
    """Return the answer of the first Slipway that is there; a shell may not have it on its PATH. Raises RemoteError where none is."""
    places = PLACES if given is None else (given,)
    result = ssh.retry_once(lambda: ssh.run_there(connection, ["/bin/sh", "-c", SCRIPT, "sh", *places], limit_s=ANSWER_S))
    if result.returncode == GONE:
        raise RemoteError(
            f"no Slipway was found on {connection.host}: looked for {', '.join(places)}. Install it there, on storage that all nodes see "
            f"(docs/how-to/install.md), then name it: `slipway remote {connection.host} setup --slipway PATH`"
        )
    return answer_of(Hello, result, connection.host)


def answer_of(kind: type[Answer], result: process.CommandResult, host: str) -> Answer:
    """Read the answer of `host` as a `kind`. Raises RemoteError for anything else, and the class that the command there ended with."""
    if result.returncode == 2:
        raise RemoteError(
            f"the Slipway on {host} does not know this question: {process.last_lines(result.stderr, 3)[-MAX_SHOWN:]}\n{update(host)}"
        )
    if result.returncode:
        shown = process.last_lines(result.stderr, 6).removeprefix("slipway: ")[-MAX_SHOWN:]
        raise error_of_exit(result.returncode, RemoteError)(f"on {host}: {shown or f'exit code {result.returncode}'}")
    where = f"the answer of {host}"
    found = jsonfile.parse_json(result.stdout.encode(), where, RemoteError)
    if isinstance(found, dict) and found.get("protocol", PROTOCOL) != PROTOCOL:
        raise RemoteError(f"{where}: its Slipway and {VERSION} here do not understand each other: {update(host)}")
    return read_as(kind, found, where, RemoteError, update(host))


def update(host: str) -> str:
    """Return the advice for two versions that differ."""
    return f"bring both to one version (here {VERSION}), or name another one there: `slipway remote {host} setup --slipway PATH`"


# Results come down: what is here already stays, each file appears whole, and the same command again brings the rest after a cut.


COMING: Final = ".coming"
"""The directory below the results for files that have not come whole yet; removed at both ends of each fetch."""
TRIES: Final = 3
BLOCK: Final = 256 << 10


def fetch(
    connection: ssh.OpenSsh, found: Results, out: Path, max_bytes: int, tell: Callable[[str], None] = lambda _text: None
) -> list[str]:
    """Bring the files of `found` that are not below `out` yet, at most `max_bytes` of them, and return lines about them. `tell` gets a line
    before that. Raises RemoteError, NotEnoughSpace, OSError."""
    missing = [file for file in found.files if described(out, file.name) != file]
    coming = f"{counted(len(missing), 'file')} of {format_size(sum(file.bytes for file in missing))} from {connection.host}"
    needed = sum(file.bytes + ssh.MEMBER_BYTES for file in missing)
    if needed > max_bytes:
        largest = max(missing, key=lambda file: file.bytes)
        raise RemoteError(
            f"{coming} are more than the limit of {format_size(max_bytes)}, so none was fetched; the largest is {largest.name} of "
            f"{format_size(largest.bytes)}. If you want them: `--max-bytes SIZE`, such as {-(-needed // 10**9)}GB"
        )
    out.mkdir(parents=True, exist_ok=True)
    free_space.require_space(out, 2 * needed, f"fetching {coming}")  # packed, and unpacked
    if missing:
        tell(f"fetching {coming}")
    for _ in range(TRIES):
        if missing:
            missing = ssh.retry_once(lambda: _bring(connection, found.results, missing, out))  # noqa: B023 - called at once
    if missing:
        names = ", ".join(file.name for file in missing[:5])
        raise RemoteError(f"{counted(len(missing), 'file')} changed while coming, so the same command again brings them: {names}")
    total = format_size(sum(file.bytes for file in found.files))
    page = [f"report: {out / 'report.html'}"] if any(file.name == "report.html" for file in found.files) else []
    return [f"{counted(len(found.files), 'file')} ({total}): {out}", *page]


def _bring(connection: ssh.OpenSsh, source: str, files: Sequence[ResultFile], out: Path) -> list[ResultFile]:
    """Return those of `files` that have not come whole. Those that have stay, also where the line was cut after them."""
    coming = out / COMING
    publish.remove_tree(coming)
    coming.mkdir()
    try:
        ssh.get(connection, source, {file.name: file.bytes for file in files}, coming)
    finally:
        wrong = []
        for file in files:
            if described(coming, file.name) == file:
                target = out / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                publish.publish_file(coming / file.name, target)
            else:
                wrong.append(file)
        publish.remove_tree(coming)
    return wrong


def described(root: Path, name: str) -> ResultFile | None:
    """Return the file `name` below `root` with the size and the digest of one reading, and None for what is not a regular file."""
    try:
        with open(untrusted.open_plain(root / name), "rb", buffering=0) as file:
            found = hashing.hash_open(file, BLOCK)
    except (FileNotFoundError, NotADirectoryError, untrusted.Unusable):
        return None
    return ResultFile(name=name, bytes=found.bytes, blake3=found.blake3)
