"""How long the steps of a run go on. Callbacks of the event loop only note why the run ends; a step hears of it where it waits, and nowhere
else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NoReturn

from workflow.run.link.calls import Call
from workflow.run.link.event_loop import Loop
from workflow.run.record.outcome import Ending
from workflow.run.supervisor.limits import STORAGE_CALL_S, USUAL, AttemptLimits

logger = logging.getLogger(__name__)


class RunEnded(Exception):
    """The run is over; `ending` says how."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.reason)
        self.ending = ending


class RunScope:
    """The steps of one run: `ending` is the first cause that ends them, or None while they go on."""

    def __init__(self, loop: Loop, limits: AttemptLimits = USUAL) -> None:
        self.loop, self.limits = loop, limits
        self.ending: Ending | None = None
        self.cancels = 0
        """How often somebody has told this run to end, also after its end."""

    def end(self, ending: Ending) -> None:
        """Note a cause. The first one ends the run; later ones are consequences of the end."""
        if self.ending is None:
            self.ending = ending
        else:
            logger.debug("after the end: %s: %s", ending.status, ending.reason)

    # -- for the steps, not for callbacks

    def fail(self, ending: Ending) -> NoReturn:
        """The step itself has found why the run ends. Raises RunEnded."""
        self.end(ending)
        raise RunEnded(self.ending or ending)

    def wait(self, done: Callable[[], bool], limit_s: float | None = None) -> bool:
        """Run the loop until `done()`; False if that did not happen within `limit_s`. Raises RunEnded as soon as the run has ended."""
        happened = self.loop.until(lambda: self.ending is not None or done(), limit_s)
        if self.ending is not None:
            raise RunEnded(self.ending)
        return happened

    def call(
        self,
        what: str,
        function: Callable[..., Any],
        *arguments: Any,
        timeout_s: float = STORAGE_CALL_S,
        keep: tuple[int, ...] = (),
        renewed: bool = False,
    ) -> Any:
        """Do something on network storage, in a child that keeps the descriptors `keep`. `renewed`: see LimitedCall. Raises what it raises,
        StorageError when it takes too long, and RunEnded as soon as the run has ended; the child is killed then."""
        call = Call(self.loop, what, function, *arguments, timeout_s=timeout_s, keep=keep, renewed=renewed)
        try:
            self.wait(lambda: call.finished)
        finally:
            call.abandon()  # nothing, if it has finished
        return call.result()
