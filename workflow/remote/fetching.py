"""Results come down: what is here already stays, each file appears whole, and the same command again brings the rest after a cut."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from blake3 import blake3

from base.errors import RemoteError
from base.lock import LockFile
from base.publish import publish_file
from base.removing import remove_tree
from base.units import counted, format_size
from cluster.ssh import Transport, again, copying
from workflow.remote.asking import ResultFile, Results

COMING: Final = ".coming"
"""The directory below the results for files that have not come whole yet; removed at both ends of each fetch."""
LOCK: Final = ".coming.lock"
TRIES: Final = 3
BLOCK: Final = 1 << 20


def fetch(line: Transport, found: Results, out: Path) -> list[str]:
    """Bring the files of `found` that are not below `out` yet, and return lines about them. Raises RemoteError, OSError."""
    missing = [file for file in found.files if digest_of(out / file.name) != file.blake3]
    out.mkdir(parents=True, exist_ok=True)
    with LockFile(out / LOCK) as lock:
        if not lock.try_take():
            raise RemoteError(
                f"another command is bringing results into {out}; the same command again, when that has ended, brings the rest"
            )
        try:
            for _ in range(TRIES if missing else 0):
                missing = again(lambda: _bring(line, found.results, missing, out))  # noqa: B023 - called at once
                if not missing:
                    break
        finally:
            lock.path.unlink()
    if missing:
        names = ", ".join(file.name for file in missing[:5])
        raise RemoteError(f"{counted(len(missing), 'file')} changed while coming, so the same command again brings them: {names}")
    total = format_size(sum(file.bytes for file in found.files))
    page = [f"report: {out / 'report.html'}"] if any(file.name == "report.html" for file in found.files) else []
    return [f"{counted(len(found.files), 'file')} ({total}): {out}", *page]


def _bring(line: Transport, source: str, files: Sequence[ResultFile], out: Path) -> list[ResultFile]:
    """Return those of `files` that have not come whole. Those that have stay, also where the line was cut after them."""
    coming = out / COMING
    remove_tree(coming)
    coming.mkdir()
    try:
        copying.get(line, source, {file.name: file.bytes for file in files}, coming)
    finally:
        wrong = []
        for file in files:
            part, target = coming / file.name, out / file.name
            if digest_of(part) == file.blake3:
                target.parent.mkdir(parents=True, exist_ok=True)
                publish_file(part, target)
            else:
                wrong.append(file)
        remove_tree(coming)
    return wrong


def digest_of(path: Path) -> str | None:
    """Return the BLAKE3 of a regular file, and None for anything else."""
    if not path.is_file():
        return None
    hashed = blake3()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            hashed.update(block)
    return hashed.hexdigest()
