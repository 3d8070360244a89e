"""What a child says to the node program's loop: lines of JSON on a pipe that is not blocking."""

from __future__ import annotations

import os
from typing import Any

from workflow.run.record.events import parse_line

READ_BYTES = 1 << 18


def read_values(descriptor: int, rest: bytes) -> tuple[list[Any], bytes, bool]:
    """What is there now: the values of whole lines, the beginning of one, whether the pipe has ended. `rest`: the beginning from before."""
    try:
        data = os.read(descriptor, READ_BYTES)
    except BlockingIOError:
        return [], rest, False
    *lines, rest = (rest + data).split(b"\n")
    return [parse_line(line) for line in lines], rest, not data
