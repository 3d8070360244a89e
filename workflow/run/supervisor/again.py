"""The last steps of a run, tried again where storage does not take them: until the deadline where it is away, for a minute where it is
full, since time alone makes no room there. Whoever tells the run to end meanwhile ends this at once.

The ranks have ended by then, so others may measure on this machine as soon as storage has said that it is full.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from base.errors import Defect, LeaseError, PushError, SlipwayError, StorageFull
from base.refusals import FULL_WORDS
from base.units import format_duration
from workflow.run.link.calls import Call
from workflow.run.link.limits import CANCELLED_PUSH_S
from workflow.run.supervisor.limits import STORAGE_FIRST_PAUSE_S, STORAGE_LONGEST_PAUSE_S
from workflow.run.supervisor.run_scope import RunScope

logger = logging.getLogger(__name__)


def is_full(error: SlipwayError) -> bool:
    """Whether it is for want of room on storage, or of quota."""
    return isinstance(error, StorageFull) or any(words in str(error) for words in FULL_WORDS)


class Again:
    """Of one run, from its push on, until the monotonic time `until`, at most `full_s` from when storage has said that it is full:
    `let_others` is called then."""

    def __init__(self, scope: RunScope, until: float, full_s: float, let_others: Callable[[], None]) -> None:
        self._scope, self._until, self._full_s, self._let_others = scope, until, full_s, let_others
        self._cancels = scope.cancels

    @property
    def told(self) -> bool:
        """Whether somebody has told us to end since we began."""
        return self._scope.cancels > self._cancels

    def repeat(self, what: str, step: Callable[[float], None]) -> None:
        """`step(seconds left)` until it succeeds or time is over. A lost lease is final, and so is a defect of ours. Raises the last
        error."""
        pause = STORAGE_FIRST_PAUSE_S
        while True:
            try:
                step(max(1.0, self._until - time.monotonic()))
                return
            except (LeaseError, Defect):
                raise
            except SlipwayError as error:
                if is_full(error):  # whoever measures then is disturbed by few tries; where storage is away there may be many
                    self._let_others()
                how = self._how_long(error)
                left = self._until - time.monotonic()
                if left < pause or self.told:
                    raise
                logger.warning("%s failed: %s; again in %.0f s, for %s more%s", what, error, pause, format_duration(left), how)
                self._scope.loop.until(lambda: self.told, pause)
                if self.told:
                    raise
            pause = min(2 * pause, STORAGE_LONGEST_PAUSE_S)

    def call(self, what: str, function: Any, *arguments: Any, left_s: float) -> Any:
        """`function` in a child that may touch storage. Raises what it raises, StorageError when it takes too long, PushError when we are
        told to end before it has."""
        call = Call(self._scope.loop, what, function, *arguments, timeout_s=left_s)
        self.wait(lambda: call.finished)
        if not call.finished:
            call.abandon()
            raise PushError(f"{what}: storage had not answered when this run was told to end")
        return call.result()

    def wait(self, done: Callable[[], bool], limit_s: float | None = None) -> None:
        """Until `done()`, for a while only when we are told to end."""
        self._scope.loop.until(lambda: done() or self.told, limit_s)
        if not done() and self.told:
            self._scope.loop.until(done, CANCELLED_PUSH_S)

    def _how_long(self, error: SlipwayError) -> str:
        """Shorten the time where there is no room; what that means, in words."""
        if not is_full(error):
            return ""
        self._until = min(self._until, time.monotonic() + self._full_s)
        return ": a full disk is not waited for longer, the result stays on its nodes then"
