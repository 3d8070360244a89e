"""Results that storage did not take: they wait in the node's cache, are shown there, and are delivered later."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from base.errors import PushError, RecordError, SlipwayError
from base.jsonfile import publish_json, read_json
from base.limited import call_limited
from base.publish import part_path, remove_tree
from base.typed import FileName, read_as
from data_prep.push.copy import push_files
from data_prep.push.publish import TargetDiffers, publish_or_differ

SCHEMA = "slipway.pending/1"
NAME = "pending.json"
MAX_BYTES = 1 << 20


class _Note(TypedDict):
    out: FileName
    own: NotRequired[FileName | None]
    target: Path


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One waiting result: where it went, or why it still waits."""

    run_dir: Path
    target: Path
    delivered: bool
    message: str


def keep_pending(run_dir: Path, target: Path, reason: str, own: str | None = None) -> None:
    """Mark `run_dir` as a result that belongs to `target` (absolute) and could not be pushed for `reason`: its directory `out`, which a
    program wrote, and `own`, which we wrote."""
    publish_json(run_dir / NAME, {"schema": SCHEMA, "out": "out", "own": own, "target": str(target), "reason": reason})


def deliver_pending(cache_dir: Path, timeout_s: float = 600.0) -> list[Delivery]:
    """Push every waiting result of this node, each in a child process of at most `timeout_s`; what was delivered leaves the cache.

    Where another result has the name meanwhile (the run was repeated), this one goes beside it as `<name>.lost-<work directory>`. A result
    that cannot be delivered stays and is reported, not raised. The caller must have one thread only.
    """
    found = []
    for path in sorted((cache_dir / "runs").glob(f"*/{NAME}")):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append(_deliver(path.parent, timeout_s))
        except BlockingIOError:
            continue  # somebody else delivers it at this moment
        finally:
            os.close(descriptor)
    return found


def push(out: Path, own: Path | None, target: Path) -> str:
    """Copy and publish one whole result; returns where it lies then, which is not `target` if something else has that name."""
    part = part_path(target)
    try:
        files = push_files(out, part, own_dir=own)
        try:
            publish_or_differ(part, files, target)
        except TargetDiffers:
            target = target.with_name(f"{target.name}.lost-{out.parent.name}")
            publish_or_differ(part, files, target)
    except SlipwayError:
        remove_tree(part)
        raise
    return str(target)


def _deliver(run_dir: Path, timeout_s: float) -> Delivery:
    target = Path("unknown")
    try:
        out, own, target = _content(run_dir)
        went = Path(call_limited(f"push of {out}", push, out, own, target, timeout_s=timeout_s))
        remove_tree(run_dir)
    except SlipwayError as error:
        return Delivery(run_dir=run_dir, target=target, delivered=False, message=str(error))
    return Delivery(
        run_dir=run_dir, target=went, delivered=True, message="delivered" if went == target else "delivered beside another result"
    )


def _content(run_dir: Path) -> tuple[Path, Path | None, Path]:
    """The directories that wait, of the program and our own, and the target."""
    path = run_dir / NAME
    note = read_as(_Note, read_json(path, RecordError, MAX_BYTES), f"{path} is not a note of ours", RecordError, "move the result by hand")
    out, target = run_dir / note["out"], note["target"]
    own = None if note.get("own") is None else run_dir / str(note.get("own"))
    places = [place for place in (out, own) if place is not None]
    if not target.is_absolute() or not all(place.parent == run_dir and place.is_dir() and not place.is_symlink() for place in places):
        raise PushError(f"{run_dir / NAME} names {out} and {target}: expected a directory beside it and an absolute path")
    return out, own, target
