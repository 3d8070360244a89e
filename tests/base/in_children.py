"""What tests of base/calls.py let other interpreters call."""

from __future__ import annotations

import os
import signal
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


def process() -> int:
    """Its number."""
    return os.getpid()


def read(pipe: str) -> str:
    """Hangs until somebody writes to it."""
    return Path(pipe).read_text()


def die() -> None:
    """Without an answer."""
    os.kill(os.getpid(), signal.SIGKILL)
