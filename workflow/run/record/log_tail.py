"""The last lines of one of our logs, for commands that say how something stands. Reads little of it, whatever its size."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from base.logs import level_and_message
from base.untrusted import open_plain

TAIL_BYTES: Final = 1 << 20
"""The last error is near the end."""
SHORT_BYTES: Final = 8192


def last_error(log: Path) -> str | None:
    """What went wrong last, in the words of the log; None if nothing did, or there is no log."""
    errors = [message for level, message in messages(log) if level == "ERROR"]
    return errors[-1] if errors else None


def messages(log: Path, most: int = TAIL_BYTES) -> list[tuple[str, str]]:
    """(level, message) of the first line of each message in the last `most` bytes."""
    try:
        with os.fdopen(open_plain(log), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            lines = file.read(most).decode(errors="replace").splitlines()
    except OSError:
        return []
    return [found for line in lines if (found := level_and_message(line)) is not None]
