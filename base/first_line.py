"""The first line of a descriptor, which somebody may hold open who never writes, or never ends his line."""

from __future__ import annotations

import os
import select
import time
from typing import Final

MOST_BYTES: Final = 4096


def first_line(descriptor: int, limit_s: float) -> bytes:
    """Read the first line with its end, or what there is of it where the descriptor ends or the line is longer than MOST_BYTES. Raises
    TimeoutError."""
    said, give_up, waiting = b"", time.monotonic() + limit_s, select.poll()
    waiting.register(descriptor, select.POLLIN)
    while b"\n" not in said and len(said) < MOST_BYTES:
        if not waiting.poll(max(0.0, give_up - time.monotonic()) * 1000):
            raise TimeoutError(f"no line came within {limit_s:g} s")
        piece = os.read(descriptor, MOST_BYTES)
        if not piece:
            break
        said += piece
    line, end, _ = said.partition(b"\n")
    return line + end
