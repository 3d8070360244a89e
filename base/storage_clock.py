"""The time by a file system's own clock: its servers have their own, and only that one can be compared with the times of its files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def now_at(directory: Path) -> float:
    """What a file that is made in `directory` now has as the time of its last change. Raises OSError."""
    with tempfile.TemporaryFile(dir=directory) as fresh:
        return os.fstat(fresh.fileno()).st_mtime
