"""Mark images of this node as ours, with their last use: a tag in the engine, and a small file beside the lock."""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NotRequired, TypedDict

from base import errors, jsonfile, typed
from base.lock import LockFile
from containers.images.model import PinnedImage

REPOSITORY: Final = "slipway-loaded"


class _Mark(TypedDict):
    used: typed.Moment
    checked: NotRequired[list[int] | None]


def our_repository(uid: int) -> str:
    """Return our own repository: other users of the node have theirs in the same daemon."""
    return f"{REPOSITORY}/u{uid}"


def our_tag(image: PinnedImage) -> str:
    """Return the tag that keeps the image in the engine: archives name none. Taking it away removes the image unless somebody else named it
    too.
    """
    return f"{our_repository(os.geteuid())}:{image.short}"


def mark_used(place: Path, image: PinnedImage, engine: str) -> None:
    """Say that a run is about to start it."""
    said = {"reference": image.reference, "image_id": image.image_id, "used": time.time(), "checked": _state(place / image.file_name)}
    jsonfile.publish_json(_path(place, image.short, engine), said, 0o600)


def last_used(place: Path, short: str, engine: str) -> float | None:
    """Return the Unix time of the last use; None where it was never marked."""
    mark = _mark(place, short, engine)
    return None if mark is None else mark["used"]


def is_checked(place: Path, image: PinnedImage, engine: str) -> bool:
    """Return True if the image's file has not been written to since its hash was found right."""
    mark, state = _mark(place, image.short, engine), _state(place / image.file_name)
    return mark is not None and state is not None and mark.get("checked") == state


def _state(file: Path) -> list[int] | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns, found.st_ino]


def _mark(place: Path, short: str, engine: str) -> _Mark | None:
    path = _path(place, short, engine)
    try:
        return typed.read_as(_Mark, jsonfile.read_json(path, errors.RecordError, 1 << 16), path)
    except errors.RecordError:
        return None


def forget(place: Path, short: str, engine: str) -> None:
    """Forget the mark of a removed image."""
    _path(place, short, engine).unlink(missing_ok=True)


def _path(place: Path, short: str, engine: str) -> Path:
    return place / f"{short}.{engine}.json"


# One load of an image at a time on this node.


_NOT_OURS: Final = (errno.EACCES, errno.EPERM)


@contextlib.contextmanager
def locked(path: Path, what: str, limit_s: float, waits: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold the lock `path`, made where it is not there; `waits()` is called where another has it. Raises ContainerError when that is for
    longer than `limit_s`, or when it cannot be made."""
    with contextlib.ExitStack() as open_:
        try:
            lock = open_.enter_context(LockFile(path, trusted=True))
            taken = lock.try_take()
            if not taken:
                waits()
                taken = lock.take(limit_s)
            if taken:
                lock.write_holder(f"{os.getpid()} ({what}, since {time.strftime('%Y-%m-%d %H:%M:%S')})")
            holder = lock.read_holder()
        except OSError as error:
            whose = "; is it another user's? give a place of your own in the site file" if error.errno in _NOT_OURS else ""
            raise errors.ContainerError(f"{what}: the lock {path} cannot be made: {error.strerror}{whose}") from error
        if not taken:
            raise errors.ContainerError(
                f"{what}: process {holder or '?'} of this node holds {path} for more than {limit_s:g} s; see whether it or its engine hangs"
            )
        yield


# The files that a load keeps on the node's disk while it runs, and leaves there when it is killed: `.<archive>.part-<short>`, file or
# directory.


def parts_of(place: Path, short: str = "*") -> list[Path]:
    """Find the parts of one image, or of all."""
    return sorted(place.glob(f".*.part*-{short}"))


def short_of(part: Path) -> str:
    """Return the image it belongs to, which names the lock."""
    return part.name.rpartition("-")[2]
