"""Results come down: what is here already stays, each file appears whole, and the same command again brings the rest after a cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from base.errors import RemoteError
from base.humanize import counted, format_size
from base.lock import LockFile
from base.publish import publish_file, remove_tree
from base.untrusted import Unusable, open_plain
from cluster.ssh import MEMBER_BYTES, Transport, again, openssh
from data_prep.hashing import hash_open
from data_prep.space import require_space
from extras.remote.asking import ResultFile, Results

COMING: Final = ".coming"
"""The directory below the results for files that have not come whole yet; removed at both ends of each fetch."""
LOCK: Final = ".coming.lock"
TRIES: Final = 3
BLOCK: Final = 256 << 10


def fetch(line: Transport, found: Results, out: Path, max_bytes: int, tell: Callable[[str], None] = lambda _text: None) -> list[str]:
    """Bring the files of `found` that are not below `out` yet, at most `max_bytes` of them, and return lines about them. `tell` gets a line
    before that. Raises RemoteError, NotEnoughSpace, OSError."""
    missing = [file for file in found.files if described(out, file.name) != file]
    coming = f"{counted(len(missing), 'file')} of {format_size(sum(file.bytes for file in missing))} from {line.host}"
    needed = sum(file.bytes + MEMBER_BYTES for file in missing)
    if needed > max_bytes:
        largest = max(missing, key=lambda file: file.bytes)
        raise RemoteError(
            f"{coming} are more than the limit of {format_size(max_bytes)}, so none was fetched; the largest is {largest.name} of "
            f"{format_size(largest.bytes)}. If you want them: `--max-bytes SIZE`, such as {-(-needed // 10**9)}GB"
        )
    out.mkdir(parents=True, exist_ok=True)
    require_space(out, 2 * needed, f"fetching {coming}")  # packed, and unpacked
    if missing:
        tell(f"fetching {coming}")
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
        openssh.get(line, source, {file.name: file.bytes for file in files}, coming)
    finally:
        wrong = []
        for file in files:
            if described(coming, file.name) == file:
                target = out / file.name
                target.parent.mkdir(parents=True, exist_ok=True)
                publish_file(coming / file.name, target)
            else:
                wrong.append(file)
        remove_tree(coming)
    return wrong


def described(root: Path, name: str) -> ResultFile | None:
    """Return the file `name` below `root` with the size and the digest of one reading, and None for what is not a regular file."""
    try:
        with open(open_plain(root / name), "rb", buffering=0) as file:
            found = hash_open(file, BLOCK)
    except (FileNotFoundError, NotADirectoryError, Unusable):
        return None
    return ResultFile(name=name, bytes=found.bytes, blake3=found.blake3)
