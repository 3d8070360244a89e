"""The token of the run, which the supervisor hands to a node program over its standard input."""

from __future__ import annotations

import os
import select
import time
from typing import Final

from base.errors import NodeLost

MOST_BYTES: Final = 4096


def read_token(descriptor: int, limit_s: float) -> bytes:
    """The first line of `descriptor`, which somebody may hold open who never writes: a launcher of a job that was cancelled. Raises
    NodeLost."""
    line, give_up, waiting = b"", time.monotonic() + limit_s, select.poll()
    waiting.register(descriptor, select.POLLIN)
    while b"\n" not in line and len(line) < MOST_BYTES:
        if not waiting.poll(max(0.0, give_up - time.monotonic()) * 1000):
            raise NodeLost(f"nobody has handed this node program the run's token within {limit_s:g} s: its launcher or its job has ended")
        piece = os.read(descriptor, MOST_BYTES)
        if not piece:
            break
        line += piece
    try:
        token = bytes.fromhex(line.partition(b"\n")[0].decode("ascii"))
    except ValueError as error:
        raise NodeLost("what this node program was handed on its standard input is no token of a run") from error
    if not token:
        raise NodeLost("the standard input of this node program has ended without the run's token: its launcher or its job has ended")
    return token
