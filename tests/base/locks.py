"""For children of base.limited: what they share with who started them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

LOCK = threading.Lock()


def take(text: str) -> tuple[str, int]:
    """When it is free."""
    with LOCK:
        return text, 3


def look(path: str) -> int:
    """Raises OSError."""
    return Path(path).stat().st_size


def environment(name: str) -> str | None:
    """Of this process."""
    return os.environ.get(name)
