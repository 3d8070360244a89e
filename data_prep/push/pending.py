"""Keep results that storage did not take in the node's cache, and deliver them later.

A cache may be shared by a group, so a note in it may be anybody's. Only notes and directories of this user are used, by descriptors from
the cache on, and the caller must accept the place where a result goes.
"""

import contextlib
import os
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from base import calls, jsonfile, lock, publish, untrusted
from base.errors import PushError, RecordError, SlipwayError
from base.typed import FileName, read_as
from data_prep.limits import PUSH_STALL_S
from data_prep.push.copy import AS_THEY_ARE, Naming, publish_checked_files, push_files, write_list

SCHEMA = "slipway.pending/1"
NAME = "pending.json"
MAX_BYTES = 1 << 20
BY_HAND = "move the result by hand"
MAX_REASON = 4000
_OTHERS_WRITE = 0o022

Remove = Callable[[Path], object]
Check = Callable[[Path], None]
"""Raises an error of the tree where a result has no business at this path. Called in the child that pushes: it may read storage."""


class _Note(TypedDict):
    out: FileName
    own: NotRequired[FileName | None]
    first: NotRequired[list[FileName]]
    below: NotRequired[FileName | None]
    passed_on: NotRequired[list[FileName]]
    target: Path


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """The delivery of one waiting result: its target, or the reason why it still waits."""

    run_dir: Path
    target: Path
    delivered: bool
    message: str


def keep_pending(run_dir: Path, target: Path, reason: str, *, own: str | None = None, naming: Naming = AS_THEY_ARE) -> None:
    """Mark `run_dir` as a result that belongs to `target` (absolute) and could not be pushed for `reason`: its directory `out`, which a
    program wrote, and `own`, which we wrote. Raises OSError."""
    note = {"schema": SCHEMA, "out": "out", "own": own, "target": str(target), "reason": reason[:MAX_REASON], **naming._asdict()}
    jsonfile.publish_json(run_dir / NAME, note)


def deliver_pending(
    cache_dir: Path,
    check: Check,
    remove: Remove = publish.remove_leftover,
    only: Container[Path] | None = None,
    record: Remove = lambda _target: None,
) -> list[Delivery]:
    """Push every waiting result of this user on this node, or those in the directories `only`, each in a child process that is given up
    when no byte has moved for PUSH_STALL_S; what was delivered leaves the cache by `remove`. `check` says where a result may go.
    `record` is called with where it lies, before it leaves the cache: a kill between the two, or an error of it, and it is delivered again.

    Where another result has the name meanwhile (the run was repeated), this one goes beside it as `<name>.lost-<work directory>`. A result
    that cannot be delivered stays and is reported, not raised. The caller must have one thread only.
    """
    found = []
    waiting = sorted(path.parent for path in (cache_dir / "runs").glob(f"*/{NAME}"))
    for run_dir in waiting if only is None else [path for path in waiting if path in only]:
        with _taken(run_dir) as note:
            if note is not None:
                found.append(_deliver(run_dir, note, check, record, remove))
    return found


@contextlib.contextmanager
def _taken(run_dir: Path) -> Iterator[tuple[int, int] | None]:
    """Lock each waiting directory and its note, and yield their descriptors. The value is None where they belong to another user, or where
    another process delivers the result now."""
    with contextlib.ExitStack() as open_:
        try:
            root = open_.enter_context(untrusted.directory(run_dir))
            note = untrusted.open_regular(root, NAME)
        except OSError:
            yield None
            return
        open_.callback(os.close, note)
        is_free = _ours(root) and _ours(note) and lock.try_lock(note) and lock.has_name(note, NAME, root)
        yield (root, note) if is_free else None


def _ours(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return status.st_uid == os.geteuid() and not status.st_mode & _OTHERS_WRITE


def push(root: int, name: str, note: _Note, check: Check) -> str:
    """Copy and publish one whole result of the directory `root`, called `name`; returns where it lies then, which is not `target` if
    something else has that name."""
    out, own, target = note["out"], note.get("own"), note["target"]
    check(target)
    here = Path(f"/proc/self/fd/{root}")  # the directory that was looked at, whatever has its name by now
    part = publish.part_path(target)
    try:
        own_dir = None if own is None else here / own
        naming = Naming(tuple(note.get("first", ())), note.get("below"))
        files = push_files(here / out, part, own_dir=own_dir, naming=naming)
        if own is not None:
            files.append(write_list(part, target.name, files))
        try:
            publish_checked_files(part, files, target)
        except PushError:
            if not os.path.lexists(target):
                raise
            target = target.with_name(f"{target.name}.lost-{name}")
            publish_checked_files(part, files, target)
    except SlipwayError:
        publish.remove_tree(part)
        raise
    return str(target)


def _deliver(run_dir: Path, taken: tuple[int, int], check: Check, record: Remove, remove: Remove) -> Delivery:
    (root, note), target = taken, Path("unknown")
    try:
        said = _content(run_dir, root, note)
        target = said["target"]
        went = Path(calls.call_limited(f"push of {run_dir}", push, root, run_dir.name, said, check, timeout_s=PUSH_STALL_S, renewed=True))
        record(went)
        remove(run_dir)
    except SlipwayError as error:
        message = str(error).replace(f"/proc/self/fd/{root}", str(run_dir))
        return Delivery(run_dir=run_dir, target=target, delivered=False, message=message)
    return Delivery(
        run_dir=run_dir, target=went, delivered=True, message="delivered" if went == target else "delivered beside another result"
    )


def _content(run_dir: Path, root: int, note: int) -> _Note:
    path = run_dir / NAME
    content = jsonfile.parse_json(os.pread(note, MAX_BYTES, 0), path, RecordError, BY_HAND)
    said = read_as(_Note, content, f"{path} is not a note of ours", RecordError, BY_HAND)
    out, own, target = said["out"], said.get("own"), said["target"]
    if not target.is_absolute() or not all(_is_beside(root, name) for name in (out, own) if name is not None):
        raise PushError(f"{path} names {out}, {own} and {target}: expected directories beside it and an absolute path")
    return said


def _is_beside(root: int, name: str) -> bool:
    if "/" in name or name in ("", ".", ".."):
        return False
    try:
        os.close(untrusted.open_directory(name, root))
    except (OSError, ValueError):
        return False
    return True
