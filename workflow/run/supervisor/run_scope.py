"""Let the steps of a run wait in one event loop, and end them all at the first cause, a signal or the end of our parent among them."""

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

from base.process import become_subreaper
from cluster import processes
from workflow.run.link.event_loop import Call, Loop
from workflow.run.record.outcome import Ending
from workflow.run.supervisor.step_limits import DEFAULT_LIMITS, DESCENDANTS_END_S, STORAGE_CALL_S, AttemptLimits

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def supervising(
    loop: Loop,
    on_signal: Callable[[int], None],
    on_orphaned: Callable[[], None] | None = None,
    more: tuple[signal.Signals, ...] = (),
    spare: Sequence[int] = (),
) -> Iterator[None]:
    """Handle signals and the end of our parent process in `loop`, and end all that was started, but for `spare`, at the end."""
    loop.on_signals(on_signal, more)
    if on_orphaned is not None:
        _watch_parent(loop, on_orphaned)
    become_subreaper()
    try:
        yield
    finally:
        if not processes.kill_descendants(DESCENDANTS_END_S, spare):
            logger.error(processes.STUCK)


def _watch_parent(loop: Loop, then: Callable[[], None]) -> None:
    """Call `then` in the loop when our parent has ended: nobody waits for us any more. Started by init itself, nobody is watched."""
    parent = os.getppid()
    if parent <= 1:
        return
    try:
        descriptor = os.pidfd_open(parent)
    except ProcessLookupError:
        loop.after(0, then)
        return
    if os.getppid() != parent:
        os.close(descriptor)
        loop.after(0, then)
        return

    def gone() -> None:
        loop.unwatch(descriptor)
        os.close(descriptor)
        then()

    loop.watch(descriptor, gone)


class RunEnded(Exception):
    """The run is over; `ending` says how."""

    def __init__(self, ending: Ending) -> None:
        super().__init__(ending.reason)
        self.ending = ending


class RunScope:
    """The steps of one run: `ending` is the first cause that ends them, or None while they go on."""

    def __init__(self, loop: Loop, limits: AttemptLimits = DEFAULT_LIMITS) -> None:
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
        """End the run. Raises RunEnded."""
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
        kind: Any = Any,
        timeout_s: float = STORAGE_CALL_S,
        renewed: bool = False,
    ) -> Any:
        """Call a function on network storage, in a child, and return its result as a `kind`. `renewed`: see LimitedCall. Raises what it
        raises, StorageError when it takes too long, and RunEnded as soon as the run has ended; the child is killed then."""
        call = Call(self.loop, what, function, *arguments, timeout_s=timeout_s, renewed=renewed)
        try:
            self.wait(lambda: call.finished)
        finally:
            call.abandon()  # nothing, if it has finished
        return call.result(kind)
