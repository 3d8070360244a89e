"""Bound the time of a run: its walltime and the limits of all its steps. RunScope is how a step learns that the run ends, supervising() how
signals and orphans are handled."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from base.humanize import format_duration
from base.process import become_subreaper
from cluster import processes
from workflow.run.link.event_loop import Call, Loop, Timer
from workflow.run.link.protocol import HANDSHAKE_S
from workflow.run.record.outcome import Ending
from workflow.run.record.resume import EarlierAttempt
from workflow.run.record.walltime import SAVE_SHARE, Saved, at_deadline, budget_of, by_scheduler, too_late
from workflow.run.storage.results import PreparedRun

logger = logging.getLogger(__name__)

# Time limits, in the order of a run: nodes, scheduler, storage, staging, training, end.


NODE_LOCKS_AGAIN_S: Final = 0.2
"""The pause before a run that waits for its machine or its nodes looks again; other runs may take as long as they need."""
LEASE_AGAIN_S: Final = 1.0
"""The pause before it is looked again whether another one still has the run: storage tells nobody that a lease is given back."""
NODE_SILENCE_S: Final = 30.0
"""The time without a message after which a node is lost."""
NODE_DOUBT_S: Final = 6.0
"""The time without a message after which a node may be the one for which the scheduler ends the job: a node says something every 2 s, and a
scheduler may notice before we do."""
SUPERVISOR_ALIVE_EVERY_S: Final = 5.0
"""How often the supervisor says that it lives: node programs end themselves when they hear nothing of it."""
HUNG_UP_S: Final = 0.1
"""How long a node program may take to end after its connection has ended: its exit code says more than the end of a connection."""
LAUNCH_RETRY_S: Final = 300.0
"""How long a launch is tried again while the scheduler is silent: a controller that is restarted takes minutes."""
LAUNCH_PAUSE_S: Final = 5.0
LAUNCH_TERM_S: Final = 3.0
"""How long before a limit launches are told to end by TERM; at the limit they are killed."""
LAUNCH_MUTE_PAUSE_S: Final = 1.0
"""The pause after a launch that has ended well without a word: its scheduler does answer."""
LAUNCH_MUTE_TRIES: Final = 5
"""How often such a one is started at most."""

JOB_FACTS_S: Final = 90.0
"""How long the scheduler may take to say when the job ends: a busy one answers late, and the run goes on meanwhile."""
JOB_FACTS_AGAIN_S: Final = 60.0
"""The pause before a scheduler that did not say when the job ends is asked again."""
JOB_END_CAUSE_S: Final = 4.0
"""How long the scheduler may take to say why it ends the job: the time to push what is there is short."""
REQUEUE_S: Final = 30.0

STORAGE_CALL_S: Final = 120.0
"""How long a call of storage may take where nothing else is said: storage that is away must not hold the run for ever."""
STORAGE_FIRST_PAUSE_S: Final = 1.0
"""The pause before storage is asked again for the first time; each one after it is twice as long."""
STORAGE_LONGEST_PAUSE_S: Final = 30.0
"""The longest pause between two tries: storage that is back is found soon."""
GIT_S: Final = 10.0
"""How long git may take to name the commit of this checkout, which may lie on slow storage."""

PREFLIGHT_ANSWER_S: Final = 30.0
"""How long the answers of a preflight may take beyond the limits that the nodes keep themselves."""
PEERS_MEET_S: Final = 20.0
"""How long nodes wait for each other before those that are there begin to stage."""
STAGING_STALL_S: Final = 300.0
"""How long staging may go on without progress on any node. Where the site limits the rate of storage, the time that its largest chunk
takes is added."""
SHOW_EVERY_S: Final = 5.0
"""How often, at most, people are told how far staging is."""
CHECKPOINT_MIN_S: Final = 120.0
"""How long even a small checkpoint may take to come to the nodes."""
CHECKPOINT_ANSWER_S: Final = 5.0
"""How long the answers to the order to fetch a checkpoint may take beyond the limit that the nodes keep themselves."""

RANK_SILENCE_S: Final = 60.0
"""How long a rank that trains may say nothing before it counts as hanging, unless its steps take long."""
RANK_LOOKS_S: Final = 1.5
"""How long nodes may take to say how their ranks are, before the one that hangs is named."""
OTHER_FAILURES_S: Final = 0.5
"""How long after the first failure others are waited for: the message that comes first is not always the cause."""
CAUSE_SEARCH_S: Final = 10.0
"""How long a cause is looked for while there are only consequences of one, such as `connection reset by peer`."""

NODES_STOP_S: Final = 12.0
"""How long nodes may take to end all that they started: their shutdown takes 10 s at most where the engine answers at once."""
CONTAINERS_STOP_S: Final = 70.0
"""The same for an engine whose daemon is slow: a container that is not removed is left to others. A run that is cancelled has no time for
that."""
COLLECT_S: Final = 30.0
MIN_PUSH_S: Final = 10.0
"""How long a push may take even where the run's time is over."""
RELEASE_S: Final = 10.0
NODES_LEAVE_S: Final = 10.0
"""How long node programs may take to end when they are told to, and nothing runs on their nodes any more."""
STORAGE_CLEAN_UP_S: Final = 10.0
"""How long storage may take to give a run back, or to remove a half-pushed attempt: the end of the run waits for that."""
DESCENDANTS_END_S: Final = 2.0
LOG_REST_S: Final = 2.0
"""How long the copier of the log may take to write the rest of it."""


@dataclass(frozen=True, kw_only=True)
class AttemptLimits:
    """The limits of an attempt that a test would wait for too long: it starts the supervisor with shorter ones."""

    handshake_s: float = HANDSHAKE_S
    node_silence_s: float = NODE_SILENCE_S
    launch_pause_s: float = LAUNCH_PAUSE_S
    rank_silence_s: float = RANK_SILENCE_S
    other_failures_s: float = OTHER_FAILURES_S
    cause_search_s: float = CAUSE_SEARCH_S
    push_s: float | None = None
    """The time limit of the push; None: until the deadline of the attempt, MIN_PUSH_S at least."""


DEFAULT_LIMITS: Final = AttemptLimits()
"""The limits outside of tests."""


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


# The deadline of an attempt. Its time begins when it has its nodes; a margin before the end it asks for a checkpoint.


OnSaved = Callable[[int | None, str | None], None]
"""Told once of a checkpoint: its step, or why there is none."""
Save = Callable[[OnSaved], str | None]
"""Asks the ranks for a checkpoint. Why there can be none; None: it is asked for."""


class TimeLimit:
    """The time limit of one attempt. `deadline`: monotonic time at which all must be over, once the attempt has begun."""

    def __init__(self, scope: RunScope, run: PreparedRun) -> None:
        self._scope = scope
        self._budget = budget_of(run.site, run.limits)
        self._begun: float | None = None
        self._save: Save = lambda _on_saved: "the training had not begun"
        self._job_end: float | None = None
        self._timer: Timer | None = None
        self._saving = False
        self.unheard = False
        """True if the run ended since no checkpoint was told of in time: one may be there, of ranks that are slow to end."""
        self._resumed_step: int | None = None
        self.set_job_end(run.allocation.deadline)
        self.resume_from(next(iter(run.resumable), None))

    @property
    def deadline(self) -> float:
        """Return the end of the budget or of the job, whichever comes first. The budget begins when the attempt has its nodes."""
        assert self._begun is not None
        end = self._begun + self._budget.left_s
        return end if self._job_end is None else min(end, self._job_end)

    @property
    def margin_s(self) -> float:
        """Return how long before the deadline the attempt is ended, for its push."""
        return self._budget.margin_s

    def set_job_end(self, moment: float | None) -> None:
        """Note when the scheduler ends the job (unix time), None if it is not known. May come late, and again."""
        self._job_end = None if moment is None else time.monotonic() + moment - time.time()
        self._arm()

    def begin(self) -> None:
        """Begin the budget: the attempt has its nodes. Ends the run if the job has too little time left."""
        self._begun = time.monotonic()
        left = None if self._job_end is None else self._job_end - self._begun
        if left is not None and left < min(self._budget.least_s, self._budget.left_s):
            self._scope.fail(too_late(self._budget, left))
        self._arm()

    def resume_from(self, earlier: EarlierAttempt | None) -> None:
        """Continue from the checkpoint of `earlier`: the time trained up to it counts. None: the run begins anew, and nothing counts."""
        self._resumed_step = None if earlier is None else earlier.step
        self._budget = replace(self._budget, used_s=0.0 if earlier is None else earlier.used_s)
        self._arm()

    def enable_checkpoint(self, save: Save) -> None:
        self._save = save

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._begun is not None:
            self._timer = self._scope.loop.after(
                max(0.0, self.deadline - self._budget.margin_s - time.monotonic()), self._request_checkpoint
            )
        elif self._job_end is not None:
            left = self._job_end - time.monotonic()
            self._timer = self._scope.loop.after(max(0.0, left - self._budget.least_s), self._too_late)

    def _too_late(self) -> None:
        if self._job_end is not None:
            self._scope.end(too_late(self._budget, self._job_end - time.monotonic()))

    # -- the end

    def _request_checkpoint(self) -> None:
        """Request a checkpoint: nothing more than the margin is left."""
        if self._saving or self._scope.ending is not None:
            return
        why = self._save(self._saved)
        if why is not None:
            self._saved(None, why)
            return
        self._saving = True
        limit = SAVE_SHARE * self._budget.margin_s
        logger.info("%s left: a checkpoint is wanted within %s", format_duration(self._budget.margin_s), format_duration(limit))
        self._scope.loop.after(limit, lambda: self._not_heard(f"it was not written within {format_duration(limit)}"))

    def _not_heard(self, why: str) -> None:
        self.unheard = self._scope.ending is None
        self._saved(None, why)

    def on_saving(self, step: int | None) -> None:
        if step is None and self._saving:
            self._saved(None, "no step was done")

    def _saved(self, step: int | None, why: str | None) -> None:
        self._scope.end(self._ending(step, why))

    def _ending(self, step: int | None = None, why: str | None = None) -> Ending:
        saved = Saved(step=step, why=why, resumed_step=self._resumed_step)
        job_s = None if self._job_end is None or self._begun is None else self._job_end - self._begun
        return at_deadline(self._budget, job_s, saved)

    def saved_at(self, step: int) -> Ending:
        """Return how a run has ended whose checkpoint was reported only when its ranks were stopped."""
        return self._ending(step)

    def ending_of_scheduler(self, word: str | None, told: str) -> Ending:
        """Return how the run ends that the scheduler has ended, by `word` of Scheduler.ended_by; `told`: what was seen of it."""
        return by_scheduler(word, told, self._ending())
