"""Which directory keeps us from a path: its own name says nothing of one above it that is another user's."""

from __future__ import annotations

import os
from pathlib import Path

from base.account import user_name


def obstacle(path: str) -> str | None:
    """Return the uppermost directory above `path` that we may not enter, with its owner and mode; None where there is none or it cannot be
    determined."""
    for place in reversed(Path(os.path.abspath(path)).parents):
        try:
            status = place.stat()
        except OSError:
            return None
        if not os.access(place, os.X_OK):
            return f"{place} belongs to {user_name(status.st_uid)} and has mode {status.st_mode & 0o7777:04o}"
    return None
