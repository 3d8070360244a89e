"""The token of the run, which the supervisor hands to a node program over its standard input."""

from __future__ import annotations

from base.errors import NodeLost
from base.first_line import first_line


def read_token(descriptor: int, limit_s: float) -> bytes:
    """The first line of `descriptor`, which somebody may hold open who never writes: a launcher of a job that was cancelled. Raises
    NodeLost."""
    try:
        line = first_line(descriptor, limit_s)
    except TimeoutError as error:
        raise NodeLost(
            f"nobody has handed this node program the run's token within {limit_s:g} s: its launcher or its job has ended"
        ) from error
    try:
        token = bytes.fromhex(line.removesuffix(b"\n").decode("ascii"))
    except ValueError as error:
        raise NodeLost("what this node program was handed on its standard input is no token of a run") from error
    if not token:
        raise NodeLost("the standard input of this node program has ended without the run's token: its launcher or its job has ended")
    return token
