"""The token of the run, which the supervisor hands to a node program over its standard input."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

from base.errors import NodeLost
from base.first_line import first_line
from workflow.run.node.limits import TOKEN_LOOK_EVERY_S, TOKEN_LOOK_S


def read_token(
    descriptor: int, limit_s: float, is_awaited: Callable[[], bool] = lambda: True, look_every_s: float = TOKEN_LOOK_EVERY_S
) -> bytes:
    """The first line of `descriptor`, which somebody may hold open who never writes: a launcher that has ended, or of a job that was
    cancelled. `is_awaited()`: whether the supervisor still takes node programs. Raises NodeLost."""
    give_up = time.monotonic() + limit_s
    while not select.select([descriptor], [], [], max(0.0, min(look_every_s, give_up - time.monotonic())))[0]:
        if time.monotonic() < give_up and not is_awaited():
            raise NodeLost(
                "nobody has handed this node program the run's token, and its supervisor awaits none any more: another has come up in its "
                "place, or the run has ended"
            )
        if time.monotonic() >= give_up:
            break
    try:
        line = first_line(descriptor, max(0.0, give_up - time.monotonic()))
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


def listens(address: tuple[str, int]) -> bool:
    """Whether somebody does there: a supervisor that has all its node programs takes no more. True where that cannot be told."""
    try:
        socket.create_connection(address, timeout=TOKEN_LOOK_S).close()
    except ConnectionRefusedError:
        return False
    except OSError:
        return True
    return True
