"""Which images of this node are ours, and when we used them last: a tag in the engine, and a small file beside the lock."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, NotRequired, TypedDict

from base.errors import RecordError
from base.jsonfile import publish_json, read_json
from base.typed import Moment, read_as
from containers.images.model import PinnedImage

REPOSITORY: Final = "slipway-loaded"


class _Mark(TypedDict):
    used: Moment
    checked: NotRequired[list[int] | None]
    tree: NotRequired[str | None]


def our_repository(uid: int) -> str:
    """Ours alone: other users of the node have theirs in the same daemon."""
    return f"{REPOSITORY}/u{uid}"


def our_tag(image: PinnedImage) -> str:
    """What keeps the image in the engine: archives name no tag. Taking it away removes the image unless somebody else named it too."""
    return f"{our_repository(os.geteuid())}:{image.short}"


def mark_used(place: Path, image: PinnedImage, engine: str, tree: str | None = None) -> None:
    """Say that a run is about to start it. `tree`: under what name it is unpacked here, for the engine that starts it by one."""
    said = {"reference": image.reference, "image_id": image.image_id, "used": time.time(), "checked": _state(place / image.file_name)}
    publish_json(_path(place, image.short, engine), {**said, "tree": tree} if tree else said, 0o600)


def tree_of(place: Path, short: str, engine: str) -> str | None:
    """The name of the tree that the image's mark says is whole."""
    mark = _mark(place, short, engine)
    return None if mark is None else mark.get("tree")


def marked_trees(place: Path, engine: str) -> set[str]:
    """Those of all images in the cache."""
    found = (tree_of(place, path.name.partition(".")[0], engine) for path in place.glob(f"*.{engine}.json"))
    return {tree for tree in found if tree}


def last_used(place: Path, short: str, engine: str) -> float | None:
    """Unix time; None where we never said."""
    mark = _mark(place, short, engine)
    return None if mark is None else mark["used"]


def is_checked(place: Path, image: PinnedImage, engine: str) -> bool:
    """Whether the image's file has not been written to since its hash was found right."""
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
        return read_as(_Mark, read_json(path, RecordError, 1 << 16), path)
    except RecordError:
        return None


def forget(place: Path, short: str, engine: str) -> None:
    """After it was removed."""
    _path(place, short, engine).unlink(missing_ok=True)


def _path(place: Path, short: str, engine: str) -> Path:
    return place / f"{short}.{engine}.json"
