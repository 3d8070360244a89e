"""The small files that tell of this machine, in /proc, /sys and /etc: not there on every machine, and not all ours to read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from base.sanitize import digits

MAX_TEXT: Final = 1 << 17


def machine_text(path: str | Path) -> str:
    """Read the beginning of a file such as one in /proc, stripped; empty where it is missing or unreadable. By a descriptor, since a look
    at a machine reads thousands of files, and a file object takes twice the time."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, MAX_TEXT).decode(errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def machine_number(path: str | Path) -> int | None:
    """Read the one number in such a file; None where there is none."""
    return digits(machine_text(path))
