"""Copy a local result into a hidden directory on storage, durably, hashing every byte that is written.

One thread: it runs in forked children.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from blake3 import blake3

from base.errors import PushError, StorageError
from base.publish import sync_directory
from base.units import format_size

LOG_BYTES = 64 << 20
_READ_BYTES = 4 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)

PushedFile = dict[str, Any]  # {"path": relative, "bytes", "blake3"}


def push_files(local_dir: Path, part_dir: Path, log_bytes: int = LOG_BYTES) -> list[PushedFile]:
    """Copy the files of `local_dir` into `part_dir`, beside what other nodes put there; returns {"path", "bytes", "blake3"} of each.

    A log longer than `log_bytes` (`*.log`, and all below a directory `logs`) keeps its head and its tail. Links and special files are not
    followed: they are listed in a file `not-pushed-<hash>.jsonl`. Raises PushError where storage is full (what this call wrote is removed,
    the local copy stays), StorageError where it fails.
    """
    paths, refused = list_files(local_dir)
    written: list[Path] = []
    need = 0
    try:
        make_directory(part_dir)
        need = sum(min(path.stat().st_size, log_bytes) if _is_log(path, local_dir) else path.stat().st_size for path in paths)
        _check_room(local_dir, part_dir, need)
        files = []
        for path in paths:
            target = part_dir / path.relative_to(local_dir)
            make_directory(target.parent)
            written.append(target)
            with path.open("rb") as source:
                files.append(_write(target, part_dir, _pieces(source, log_bytes if _is_log(path, local_dir) else None)))
        if refused:
            text = "".join(json.dumps(entry, sort_keys=True) + "\n" for entry in refused).encode()
            written.append(part_dir / f"not-pushed-{blake3(text).hexdigest()[:12]}.jsonl")
            files.append(_write(written[-1], part_dir, iter([text])))
        for directory in {path.parent for path in written}:
            sync_directory(directory)
    except OSError as error:
        if error.errno not in _FULL:
            raise StorageError(
                f"{local_dir} cannot be pushed to {part_dir}: {error.strerror}: {error.filename}; it stays on the node"
            ) from error
        for path in written:
            path.unlink(missing_ok=True)
        raise _full(local_dir, part_dir, need, str(error.strerror)) from error
    return sorted(files, key=lambda file: str(file["path"]))


def list_files(local_dir: Path) -> tuple[list[Path], list[dict[str, str]]]:
    """Regular files below `local_dir`, sorted, and {"path", "reason"} of everything else that is no directory."""
    paths, refused = [], []
    for directory, names, files in os.walk(local_dir):
        for name in [*files, *(name for name in names if Path(directory, name).is_symlink())]:
            path = Path(directory, name)
            reason = _refusal(path, str(path.relative_to(local_dir)))
            if reason is None:
                paths.append(path)
            else:
                refused.append({"path": ascii(str(path.relative_to(local_dir)))[1:-1], "reason": reason})
    return sorted(paths), sorted(refused, key=lambda entry: entry["path"])


def make_directory(path: Path) -> None:
    """Create `path` and its parents, each durable in its own parent. Raises OSError."""
    missing = [path]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for directory in reversed(missing):
        try:
            directory.mkdir()
        except FileExistsError:
            continue
        sync_directory(directory.parent)


def _refusal(path: Path, name: str) -> str | None:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if not stat.S_ISREG(mode):
        return "neither a file nor a directory"
    if not name.isprintable():
        return "its name holds control characters or is no UTF-8"
    return None


def _is_log(path: Path, root: Path) -> bool:
    return path.suffix == ".log" or "logs" in path.relative_to(root).parts[:-1]


def _pieces(source: BinaryIO, limit: int | None) -> Iterator[bytes]:
    """The content; with a `limit` that is passed, whole lines from both ends and one line that says what is missing between."""
    size = os.fstat(source.fileno()).st_size
    if limit is None or size <= limit:
        while piece := source.read(_READ_BYTES):
            yield piece
        return
    head = source.read(limit // 2)
    head = head[: head.rfind(b"\n") + 1] or head
    source.seek(size - limit // 2)
    tail = source.read(limit // 2)
    tail = tail[tail.find(b"\n") + 1 :] or tail
    yield head
    yield f"[slipway: {size - len(head) - len(tail)} bytes left out here]\n".encode()
    yield tail


def _write(target: Path, root: Path, pieces: Iterator[bytes]) -> PushedFile:
    """Write and sync one file. What a killed push left under the same name is overwritten: nobody reads a part directory."""
    hasher, size = blake3(), 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with os.fdopen(os.open(target, flags, 0o644), "wb", buffering=0) as file:
        for piece in pieces:
            hasher.update(piece)
            size += len(piece)
            view = memoryview(piece)
            while view:
                view = view[file.write(view) or 0 :]
        os.fsync(file.fileno())
    return {"path": str(target.relative_to(root)), "bytes": size, "blake3": hasher.hexdigest()}


def _check_room(local_dir: Path, part_dir: Path, need: int) -> None:
    status = os.statvfs(part_dir)
    if need > status.f_bavail * status.f_frsize:
        raise _full(local_dir, part_dir, need, "not enough room")


def _full(local_dir: Path, part_dir: Path, need: int, reason: str) -> PushError:
    status = os.statvfs(part_dir.parent)
    return PushError(
        f"storage is full: the result {local_dir} needs {format_size(need)}, {part_dir.parent} has "
        f"{format_size(status.f_bavail * status.f_frsize)} free ({reason}); it stays on the node (slipway cache ls): free room or quota, "
        "then deliver it with `slipway reap --push`"
    )
