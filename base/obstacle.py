"""Which directory keeps us from a path: its own name says nothing of one above it that is another user's."""

from __future__ import annotations

import os
import pwd
from pathlib import Path


def obstacle(path: str) -> str | None:
    """The uppermost directory above `path` that we may not enter, with its owner and mode; None where there is none, or it cannot be
    told."""
    for place in reversed(Path(os.path.abspath(path)).parents):
        try:
            status = place.stat()
        except OSError:
            return None
        if not os.access(place, os.X_OK):
            return f"{place} belongs to {_name(status.st_uid)} and has mode {status.st_mode & 0o7777:04o}"
    return None


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"
