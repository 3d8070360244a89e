"""What Slurm's words for the state of a job mean, and why a job waits, in plain words. Pure."""

from __future__ import annotations

from typing import Final

from cluster.schedulers.jobs import Hold

WAITS: Final = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
"""It has no nodes yet, or none any more."""
OVER: Final = frozenset(
    {
        "COMPLETED",
        "CANCELLED",
        "FAILED",
        "TIMEOUT",
        "NODE_FAIL",
        "PREEMPTED",
        "BOOT_FAIL",
        "DEADLINE",
        "OUT_OF_MEMORY",
        "REVOKED",
        "LAUNCH_FAILED",
    }
)
ENDED_BY: Final = {
    "CANCELLED": "cancelled",
    "PREEMPTED": "preempted",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "NODE_FAIL": "node_lost",
    "BOOT_FAIL": "node_lost",
    "REQUEUED": "requeued",
    "REQUEUE_HOLD": "requeued",
    "REQUEUE_FED": "requeued",
    "PENDING": "requeued",
}
REASONS: Final = {
    "Resources": "waiting for nodes to become free",
    "Priority": "others are before it in the queue",
    "Dependency": "waiting for another job",
    "BeginTime": "its start time is not reached: after a requeue Slurm waits two minutes",
    "DependencyNeverSatisfied": "waiting for another job that has failed; it never starts",
    "PartitionNodeLimit": "asks for more nodes than the partition allows, and never starts: `scancel JOBID`, and fewer nodes",
    "PartitionTimeLimit": "asks for more time than the partition allows, and never starts: `scancel JOBID`, and a shorter walltime",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition takes no jobs now",
    "ReqNodeNotAvail": "nodes it needs are down, drained or reserved",
    "BadConstraints": "no node has what its constraint asks",
    "InvalidAccount": "the account does not exist",
    "InvalidQOS": "the QoS does not exist",
    "QOSMaxJobsPerUserLimit": "you have as many jobs as the QoS allows",
    "QOSMaxNodePerUserLimit": "you have as many nodes as the QoS allows",
    "AssocGrpNodeLimit": "your account has as many nodes as it may",
    "AssocGrpGRES": "your account has as many GPUs as it may",
    "Reservation": "waiting for its reservation",
}
RELEASE: Final = "`scontrol release JOBID` lets it go"
HELD: Final = {
    "JobHeldUser": ("held by you", RELEASE),
    "JobHeldAdmin": ("held by an administrator", "nobody else lets it go, and `scancel JOBID` ends it"),
    "JobHoldMaxRequeue": ("held, since it was put back into the queue too often", RELEASE),
    "job requeued in held state": ("put back into the queue, and held", RELEASE),
}
"""Until somebody lets it go: why, and how."""
FAILED: Final = "failed requeued held"
"""How Slurm's words for a job end that it could not start: a prolog has failed, or a directory is missing on the node."""
NOT_STARTED: Final = ("Prolog error", "Job env setup error")
"""How the reason of a node begins that Slurm has drained because it could not start a job there."""
AGAIN: Final = "`scontrol release JOBID` tries again, `scancel JOBID` ends it"
LIMITS: Final = (("QOS", "a limit of your QoS"), ("Assoc", "a limit of your account"), ("MaxBillingPerAccount", "a limit of your account"))
"""Slurm has a word for each of many limits; they begin alike."""


def hold_of(reason: str) -> Hold:
    """Whether a job that waits for this reason waits until somebody lets it go."""
    word = _word(reason)
    return "failed" if word.endswith(FAILED) else "held" if word in HELD else ""


def advice_of(reason: str, job_id: str) -> str:
    """How a job that is held for this reason is let go; "" for others."""
    word = _word(reason)
    return (AGAIN if word.endswith(FAILED) else HELD.get(word, ("", ""))[1]).replace("JOBID", job_id)


def plain_reason(reason: str, job_id: str = "JOBID") -> str:
    """Why a job waits, in words, with Slurm's own word for who wants to search for it."""
    if not reason:
        return "Slurm has not looked at it yet"
    word = _word(reason)
    if word.endswith(FAILED):
        return f"Slurm could not start it on its nodes ({reason})"
    words = REASONS.get(word) or next((words for start, words in LIMITS if word.startswith(start)), None)
    if word in HELD:
        words, _ = HELD[word]
    elif words is None and word.lower().startswith("nodes"):
        words = "nodes it needs are down, drained or reserved"
    return f"{words.replace('JOBID', job_id)} ({reason})" if words else f"{reason.replace('_', ' ')}"


def _word(reason: str) -> str:
    """squeue and scontrol say it alike but for brackets and, in sentences, blanks."""
    word = reason.strip("()")
    spaced = word.replace("_", " ")
    return spaced if spaced in HELD or spaced.endswith(FAILED) else word
