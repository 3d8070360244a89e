"""Whole-study jobs of ours in Slurm's queue, and what states and reasons of jobs mean in plain words."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from base.errors import SchedulerSilent
from base.units import whole_duration
from cluster.schedulers.slurm.batch_script import is_of_study
from cluster.schedulers.slurm.query import ask
from cluster.schedulers.slurm.queue import QueuedJob
from cluster.schedulers.slurm.submit import tell

ACTIVE: Final = frozenset(
    {"PENDING", "RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESIZING"}
    | {"SIGNALING", "STAGE_OUT", "STOPPED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
REASONS: Final = {
    "Resources": "waiting for nodes to become free",
    "Priority": "others are before it in the queue",
    "Dependency": "waiting for another job",
    "BeginTime": "its start time is not reached: after a requeue Slurm waits two minutes",
    "JobHeldUser": "held by you; `scontrol release JOBID` lets it go",
    "JobHoldMaxRequeue": "held, since it was put back into the queue too often; `scontrol release JOBID` lets it go",
    "DependencyNeverSatisfied": "waiting for another job that has failed; it never starts",
    "JobHeldAdmin": "held by an administrator",
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
LIMITS: Final = (("QOS", "a limit of your QoS"), ("Assoc", "a limit of your account"), ("MaxBillingPerAccount", "a limit of your account"))
"""Slurm has a word for each of many limits; they begin alike."""
SAID_AFTER_S: Final = 10.0
PATIENCE_S: Final = 600.0
FIRST_S: Final = 5.0
LONGEST_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Submission:
    """A job of a whole study."""

    job_id: str
    name: str
    state: str


def submissions_of(study: str) -> tuple[Submission, ...]:
    """Those of a study that wait or run. One question; it is said when it takes long. Raises SchedulerSilent."""
    argv = ("squeue", "--noheader", f"--user={os.getuid()}", "--format=%i|%T|%j")
    try:
        answer = ask(argv, SAID_AFTER_S)
    except SchedulerSilent:
        tell(f"slurmctld does not answer; it is asked again for {PATIENCE_S / 60:.0f} minutes")
        answer = ask(argv, PATIENCE_S)
    return parse_submissions(answer, study)


def parse_submissions(text: str, study: str) -> tuple[Submission, ...]:
    """Pure: of squeue's lines of id, state and name."""
    rows = [line.strip().split("|", 2) for line in text.splitlines() if line.count("|") >= 2]
    found = [Submission(job_id=row[0], state=row[1], name=row[2]) for row in rows]
    return tuple(job for job in found if is_of_study(job.name, study) and job.state in ACTIVE)


def plain_reason(reason: str | None, job_id: str = "JOBID") -> str:
    """Why a job waits, in words, with Slurm's own word for who wants to search for it."""
    if reason is None:
        return "Slurm has not looked at it yet"
    word = reason.strip("()")
    words = REASONS.get(word) or next((words for start, words in LIMITS if word.startswith(start)), None)
    if words is None and word.lower().startswith("nodes"):
        words = "nodes it needs are down, drained or reserved"
    return f"{words.replace('JOBID', job_id)} ({reason})" if words else f"{reason.replace('_', ' ')}"


def job_words(job: QueuedJob, now: float) -> str:
    """What a job does, for a line that tells of its run: `job 31 waits for 2m05s: ... (Resources), expected to start 22 Nov 15:26`."""
    if not job.waits:
        return f"job {job.job_id} is {job.state.lower()}{f' on {job.nodes}' if job.nodes else ''}"
    long = "" if job.submitted is None else f" for {whole_duration(max(1.0, now - job.submitted))}"
    again = ", put back into the queue" if job.restarts else ""
    return f"job {job.job_id} waits{long}{again}: {plain_reason(job.reason, job.job_id)}{expected_words(job.expected)}"


def expected_words(expected: float | None) -> str:
    """When a waiting job is expected to start, where Slurm says it."""
    return "" if expected is None else f", expected to start {time.strftime('%d %b %H:%M', time.localtime(expected))}"


def intervals() -> Iterator[float]:
    """Seconds between two questions: more and more, to be polite."""
    pause = FIRST_S
    while True:
        yield pause
        pause = min(pause * 1.5, LONGEST_S)
