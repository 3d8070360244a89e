"""What time it is for a file system. Its servers have a clock of their own, and the times of its files are compared with that one only."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def now_at(directory: Path) -> float:
    """What a file that is made in `directory` now has as the time of its last change. Raises OSError."""
    with tempfile.TemporaryFile(dir=directory) as fresh:
        return os.fstat(fresh.fileno()).st_mtime
