"""End the processes that earlier attempts of a run have left on this node: schedulers start a job again while its old processes live."""

from __future__ import annotations

import logging
import re
import signal
from typing import Final

from cluster import processes
from workflow.run.node.limits import LEFTOVERS_END_S
from workflow.run.plan import TAG

logger = logging.getLogger(__name__)

_TAG: Final = re.compile(r"(?P<run>.+)-a(?P<attempt>\d+)-(?P<where>[0-9a-f]{16})[0-9a-f]{8}")


def is_older(tag: str, other: str) -> bool:
    """Pure: whether `other` is the tag of an earlier attempt of the run that `tag` is of."""
    ours, theirs = _TAG.fullmatch(tag), _TAG.fullmatch(other)
    if ours is None or theirs is None or (ours["run"], ours["where"]) != (theirs["run"], theirs["where"]):
        return False
    return int(theirs["attempt"]) < int(ours["attempt"])


def end_older_attempts(tag: str) -> None:
    """Kill what is left here of attempts before that of `tag`, which holds the run's lease, and wait for the end of it."""
    left = [pid for pid in processes.tagged(TAG, lambda other: is_older(tag, other)) if processes.of_this_node(pid)]
    if not left:
        return
    processes.send(left, signal.SIGKILL)
    gone = processes.wait_for_ends(left, LEFTOVERS_END_S)
    logger.warning("killed %d processes of an earlier attempt of this run%s", len(left), "" if gone else "; some have not ended yet")
