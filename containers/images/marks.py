"""Which images of this node are ours, and when we used them last: a tag in the engine, and a small file beside the lock."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, TypedDict

from base.errors import RecordError
from base.jsonfile import publish_json, read_json
from base.typed import Moment, read_as
from containers.images.model import PinnedImage

REPOSITORY: Final = "slipway-loaded"


class _Mark(TypedDict):
    used: Moment


def our_repository(uid: int) -> str:
    """Ours alone: other users of the node have theirs in the same daemon."""
    return f"{REPOSITORY}/u{uid}"


def our_tag(image: PinnedImage) -> str:
    """What keeps the image in the engine: archives name no tag. Taking it away removes the image unless somebody else named it too."""
    return f"{our_repository(os.geteuid())}:{image.short}"


def mark_used(place: Path, image: PinnedImage, engine: str) -> None:
    """Say that a run is about to start it."""
    publish_json(_path(place, image.short, engine), {"reference": image.reference, "image_id": image.image_id, "used": time.time()}, 0o600)


def last_used(place: Path, short: str, engine: str) -> float | None:
    """Unix time; None where we never said."""
    path = _path(place, short, engine)
    try:
        return read_as(_Mark, read_json(path, RecordError, 1 << 16), path)["used"]
    except RecordError:
        return None


def forget(place: Path, short: str, engine: str) -> None:
    """After it was removed."""
    _path(place, short, engine).unlink(missing_ok=True)


def _path(place: Path, short: str, engine: str) -> Path:
    return place / f"{short}.{engine}.json"
