"""Results come down: what is here already stays, what was begun goes on, and each file appears whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from blake3 import blake3

from base.errors import RecordError, RemoteError
from base.publish import publish_file
from base.units import counted, format_size
from cluster.ssh import Transport, again

COMING: Final = ".coming"
"""The directory in which files are that are not whole yet."""
FILES: Final = ("study.json", "study.yaml", "records.parquet", "report.html", "runs/*/record.json")
TREES: Final = ("tables", "plots")
"""What comes down: those files, and all below these directories."""
TRIES: Final = 3
BLOCK: Final = 1 << 20


class Wanted(NamedTuple):
    """A file there: its path below the results, its size and digest."""

    name: str
    bytes: int
    blake3: str


def fetch(line: Transport, told: Any, out: Path) -> list[str]:
    """Bring the files that `slipway remote-end results` has `told` of below `out`, and say so in lines. Raises RemoteError, OSError."""
    source, files = parse_told(told)
    missing = [file for file in files if digest_of(out / file.name) != file.blake3]
    out.mkdir(parents=True, exist_ok=True)
    for _ in range(TRIES):
        if not missing:
            break
        missing = _some(line, source, missing, out)
    if missing:
        names = ", ".join(file.name for file in missing[:5])
        raise RemoteError(f"{counted(len(missing), 'file')} changed while coming, so the same command again brings them: {names}")
    _clean(out / COMING)
    total = format_size(sum(file.bytes for file in files))
    page = [f"report: {out / 'report.html'}"] if any(file.name == "report.html" for file in files) else []
    return [f"{counted(len(files), 'file')} ({total}): {out}", *page]


def _some(line: Transport, source: str, files: Sequence[Wanted], out: Path) -> list[Wanted]:
    """Those that are not what was told."""
    coming = out / COMING
    coming.mkdir(exist_ok=True)
    for file in files:
        part = coming / file.name
        if part.exists() and (part.stat().st_size > file.bytes):
            part.unlink()  # of another version
    begun = [file for file in files if digest_of(coming / file.name) != file.blake3]
    again(lambda: line.get(source, [file.name for file in begun], coming))
    wrong = []
    for file in files:
        part = coming / file.name
        if digest_of(part) == file.blake3:
            (out / file.name).parent.mkdir(parents=True, exist_ok=True)
            publish_file(part, out / file.name)
        else:
            part.unlink(missing_ok=True)
            wrong.append(file)
    return wrong


def parse_told(told: Any) -> tuple[str, tuple[Wanted, ...]]:
    """The directory there and its files. Raises RecordError for what is none, or a name that leads elsewhere."""
    try:
        files = tuple(Wanted(str(one["name"]), int(one["bytes"]), str(one["blake3"])) for one in told["files"])
        source = str(told["results"])
    except (LookupError, TypeError, ValueError) as error:
        raise RecordError(f"the cluster's list of results cannot be read: {error!r}") from error
    for file in files:
        path = PurePosixPath(file.name)
        if path.as_posix() != file.name or ".." in path.parts or not file.name.isprintable() or not _is_result(path):
            raise RecordError(f"the cluster's list of results has {file.name!r}, which is no file of a study's results")
    if len({file.name for file in files}) < len(files):
        raise RecordError("the cluster's list of results has a file twice")
    return source, files


def _is_result(path: PurePosixPath) -> bool:
    """Whether it is among those that come down. `--out` may be any directory of the user's, and a cluster must not put a program there."""
    if not path.parts or any(part.startswith(".") for part in path.parts):
        return False
    return any(path.match(pattern) and len(path.parts) == pattern.count("/") + 1 for pattern in FILES) or (
        path.parts[0] in TREES and len(path.parts) > 1
    )


def digest_of(path: Path) -> str | None:
    """BLAKE3 of a file; None where there is none."""
    hashed = blake3()
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK):
                hashed.update(block)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return hashed.hexdigest()


def _clean(coming: Path) -> None:
    for directory, _, _ in os.walk(coming, topdown=False):
        Path(directory).rmdir()
