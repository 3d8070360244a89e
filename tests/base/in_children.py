"""What tests of base/calls.py let other interpreters call."""

import os
import signal
import sys
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


def say(text: str) -> int:
    """Print a text and return its length."""
    sys.stdout.write(text)
    sys.stdout.flush()
    return len(text)


def read(pipe: str, number: str) -> str:
    """Note our process, then hang until somebody writes to the pipe."""
    Path(number).write_text(str(os.getpid()))
    return Path(pipe).read_text()


def die() -> None:
    """Without an answer."""
    os.kill(os.getpid(), signal.SIGKILL)
