"""List the time limits of all steps of a run, and those of an attempt that tests make shorter."""

from dataclasses import dataclass
from typing import Final

from workflow.run.link.protocol import HANDSHAKE_S

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
"""How long a launch is tried again while the scheduler, or its launcher, is silent: a controller that is restarted takes minutes."""
LAUNCH_PAUSE_S: Final = 5.0
LAUNCH_TERM_S: Final = 3.0
"""How long before a limit launches are told to end by TERM; at the limit they are killed."""

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
