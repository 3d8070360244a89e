"""The small files that tell of this machine, in /proc, /sys and /etc: not there on every machine, and not all ours to read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from base.sanitize import digits

MAX_TEXT: Final = 1 << 17


def machine_text(path: str | Path) -> str:
    """The beginning of such a file, without the white space around it; nothing where it is not there, or tells us nothing. By a
    descriptor: a look at a machine reads thousands of them, and a file object takes twice the time."""
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
    """The one number in such a file."""
    return digits(machine_text(path))
