"""Shutdown of the ranks on a node: TERM, after 5 s KILL, then what the engine made, then all that descends from this process. It takes at
most 10 s if the engine answers at once."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from functools import partial

from base.errors import SlipwayError
from cluster import processes
from workflow.run.link.calls import Call
from workflow.run.link.event_loop import Loop, Timer
from workflow.run.node.limits import DESCENDANTS_END_S, RANKS_END_S, RANKS_TERM_S
from workflow.run.node.ranks import Ranks

logger = logging.getLogger(__name__)


class Shutdown:
    """Ends the ranks (None: there are none), then every descendant of this process; `then(clean)` once, in the loop or at once."""

    def __init__(self, loop: Loop, ranks: Ranks | None, then: Callable[[bool], None]) -> None:
        self._ranks = ranks
        self._then: list[Callable[[bool], None]] = [then]
        self._timers: list[Timer] = []
        self._closing = False
        if ranks is None or not ranks.running():
            self._finish()
            return
        self._timers = [loop.after(RANKS_TERM_S, self._kill), loop.after(RANKS_END_S, self._finish)]
        ranks.signal(signal.SIGTERM)

    def also(self, then: Callable[[bool], None]) -> None:
        """Call this too at the end."""
        self._then.append(then)

    @property
    def finished(self) -> bool:
        """Whether `then` has been called."""
        return not self._then

    def _kill(self) -> None:
        if self._ranks is not None:
            self._ranks.signal(signal.SIGKILL)

    def rank_ended(self) -> None:
        """To be told when a process of the ranks has ended."""
        if not self._closing and (self._ranks is None or not self._ranks.running()):
            self._finish()

    def _finish(self) -> None:
        self._closing = True
        for timer in self._timers:
            timer.cancel()
        closed = self._ranks is None or self._close(self._ranks)
        if self._ranks is None or not self._ranks.remove(partial(self._removed, closed)):
            self._end_descendants(closed)

    def _removed(self, closed: bool, removal: Call) -> None:
        """The engine's clients are our descendants, and had to end before those are killed."""
        try:
            removal.result()
        except SlipwayError as error:
            logger.error("%s", error)
            self._end_descendants(False)
        else:
            self._end_descendants(closed)

    def _end_descendants(self, removed: bool) -> None:
        ended = processes.kill_descendants(DESCENDANTS_END_S)
        if not ended:
            logger.error("processes of this run are left in uninterruptible sleep")
        clean = ended and removed
        waiting, self._then = self._then, []
        for then in waiting:
            then(clean)

    def _close(self, ranks: Ranks) -> bool:
        try:
            ranks.close()
        except OSError as error:
            logger.error("%s", error)
            return False
        return True
