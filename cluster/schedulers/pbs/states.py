"""What PBS's letters for the state of a job mean, how jobs end, and why a job waits, in plain words. Pure."""

from __future__ import annotations

from typing import Final

from cluster.schedulers.jobs import Hold, Stage
from cluster.schedulers.pbs.answers import JobInfo

STATES: Final[dict[str, tuple[Stage, str]]] = {
    "Q": ("waits", "queued"),
    "H": ("waits", "held"),
    "W": ("waits", "waiting for its start time"),
    "T": ("waits", "in transit"),
    "R": ("runs", "running"),
    "B": ("runs", "begun"),
    "S": ("runs", "suspended"),
    "U": ("runs", "suspended"),
    "E": ("ends", "exiting"),
    "F": ("over", "finished"),
    "X": ("over", "expired"),
    "M": ("over", "moved to another server"),
}
WALLTIME: Final = -29
NODE_LOST: Final = frozenset({-4, -5, -6, -20, -30})
"""Exit_status where a daemon of a node, or the way to it, was gone: it is negative where PBS says it, and not the job."""
NOT_STARTED: Final = frozenset({-1, -2})
"""Exit_status of a job that its first node could not start, and that PBS does not try again: a prologue has ended with 1."""
REQUEUED: Final = frozenset({-11, -12, -14, -15, -16, -18})
SIGNALLED: Final = 256
"""Exit_status of a job whose shell was ended by a signal: so much more than its number."""
TERM: Final = 15
TERMINATED: Final = "terminated by"
"""In the comment of a job that was deleted, from then on."""
FAILED: Final = "too many failed attempts to run"
"""In the comment of a job that PBS has tried to start twenty times; it holds it then."""
REASONS: Final = (
    ("Can Never Run", "no node can ever give it what it asks; `qdel JOBID`, and ask for less"),
    ("Not enough free nodes", "waiting for nodes to become free"),
    ("Insufficient amount of", "waiting for nodes to become free"),
    ("Not enough total nodes", "asks for more nodes than there are, and never starts: `qdel JOBID`, and fewer nodes"),
    ("Queue not started", "the queue is stopped"),
    ("Not enough of the right type of nodes", "no free node has what its constraint asks"),
    ("would exceed", "a limit of the queue or of yours is reached"),
    ("has reached", "a limit of the queue or of yours is reached"),
)


def stage_of(state: str) -> Stage:
    """By the letter; one that nobody knows is of a job that may run."""
    return STATES.get(state, ("runs", ""))[0]


def word_of(state: str) -> str:
    """The letter in words."""
    return STATES.get(state, ("runs", state))[1]


def ended_by(job: JobInfo) -> str | None:
    """Why PBS ended a job that is over; None where its program ended by itself, or was killed by its own doing."""
    status = job.exit_status
    if status == WALLTIME:
        return "timeout"
    if status in NODE_LOST:
        return "node_lost"
    if status in NOT_STARTED:
        return "not_started"
    if status in REQUEUED:
        return "requeued"
    if TERMINATED in job.comment or status == SIGNALLED + TERM or (status is None and job.state == "F"):
        return "cancelled"
    return None


def hold_of(job: JobInfo) -> Hold:
    """Whether it waits until somebody lets it go."""
    if job.state != "H":
        return ""
    return "failed" if FAILED in job.comment.lower() else "held"


def advice_of(job: JobInfo) -> str:
    """Who lets it go, and by which command; "" where nobody has to."""
    if job.state != "H":
        return ""
    if {"o", "s"} & set(job.holds):
        return f"an operator lets it go (`qrls -h {job.holds} {job.job_id}`), and `qdel {job.job_id}` ends it"
    return f"`qrls {job.job_id}` lets it go"


def plain_reason(job: JobInfo) -> str:
    """Why a job waits, in words, with PBS's own."""
    if job.state == "H":
        words = "PBS could not start it" if hold_of(job) == "failed" else "held"
        return f"{words} ({job.comment})" if job.comment else words
    if not job.comment:
        return "PBS has not looked at it yet"
    words = next((words for sign, words in REASONS if sign in job.comment), "")
    return f"{words.replace('JOBID', job.job_id)} ({job.comment})" if words else job.comment
