"""Our jobs in Slurm's queue: one question, the one parser of its answer, and which study and which run each job belongs to.

A job for one run or shard says so in its comment (`work_words`). A job of `slipway submit` says it by its name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Final

from base.errors import SchedulerOutputError, SchedulerSilent
from base.foreign import digits, text
from cluster.schedulers.asking import ask
from cluster.schedulers.jobs import QueuedJob, Stage, parse_work
from cluster.schedulers.limits import ANSWER_S
from cluster.schedulers.slurm.answers import NEVER, parse_node_reasons, state_word, time_of
from cluster.schedulers.slurm.directives import COMMENT_WIDTH
from cluster.schedulers.slurm.query import SLURM, UNKNOWN_JOB
from cluster.schedulers.slurm.states import ENDED_BY, NOT_STARTED, OVER, WAITS, advice_of, hold_of, plain_reason

COLUMNS: Final = (
    ("job_id", "JobID", 20),
    ("state", "State", 24),
    ("reason", "Reason", 64),
    ("restarts", "RestartCnt", 12),
    ("submitted", "SubmitTime", 24),
    ("expected", "StartTime", 24),
    ("name", "Name", 160),
    ("comment", "Comment", COMMENT_WIDTH),
    ("nodes", "NodeList", 120),
    ("directory", "WorkDir", 1024),
)
"""Of squeue, with widths. What is cut is a list of many nodes, which is only shown, or foreign."""
QUESTION: Final = ("squeue", "--noheader", f"--Format={','.join(f'{name}:{width}' for _, name, width in COLUMNS)}")
_JOB_ID: Final = re.compile(r"[0-9]+([_+]\S+)?")
"""With the number in an array, or in a job of several parts."""


def our_jobs(patience_s: float, timeout_s: float) -> tuple[QueuedJob, ...]:
    """All of this user that are not over, oldest first. Raises SchedulerSilent, SchedulerOutputError."""
    return parse_queue(ask(SLURM, (*QUESTION, f"--user={os.getuid()}"), patience_s, timeout_s))


def jobs_named(name: str, patience_s: float) -> tuple[QueuedJob, ...]:
    """Ours of exactly that name, in any state that squeue still shows, oldest first. Raises SchedulerSilent; SchedulerOutputError where a
    line cannot be read, since it may be the job that is looked for, which would be submitted twice."""
    answer = ask(SLURM, (*QUESTION, f"--user={os.getuid()}", "--states=all", f"--name={name}"), patience_s, ANSWER_S)
    jobs = parse_queue(answer)
    if len(jobs) < sum(bool(line.strip()) for line in answer.splitlines()):
        raise SchedulerOutputError(f"a line of squeue cannot be read: {text(answer, 400)}")
    return tuple(job for job in jobs if job.name == name)


def known_jobs(job_ids: Sequence[str], patience_s: float) -> tuple[QueuedJob, ...]:
    """Those of them that slurmctld knows, in any state, by one question. Raises SchedulerSilent, SchedulerOutputError."""
    question = (*QUESTION, f"--user={os.getuid()}", "--states=all", f"--jobs={','.join(job_ids)}")
    try:
        found = parse_queue(ask(SLURM, question, patience_s, ANSWER_S))
        return tuple(replace(job, ended_by="not_started") if was_not_started(job, patience_s) else job for job in found)
    except SchedulerSilent:
        raise
    except SchedulerOutputError as error:
        if any(words in str(error) for words in UNKNOWN_JOB):  # all of them: of some, squeue says the others
            return ()
        raise


def was_not_started(job: QueuedJob, patience_s: float) -> bool:
    """Return True if Slurm itself has cancelled a job because a node could not start it. Slurm does so where it may not put the job back
    into the queue (`--no-requeue`), and then only the node shows the difference to a job that a person has cancelled."""
    if job.ended_by != "cancelled" or not job.nodes:
        return False
    try:
        answer = ask(SLURM, ("scontrol", "-o", "show", "node", job.nodes), patience_s, ANSWER_S)
    except SchedulerOutputError:  # also of a list of nodes that squeue has cut
        return False
    return any(reason.startswith(NOT_STARTED) for reason in parse_node_reasons(answer))


def parse_queue(answer: str) -> tuple[QueuedJob, ...]:
    """Pure: the answer to QUESTION. A line that cannot be read is of nobody we know."""
    found = []
    for line in answer.splitlines():
        words, start = {}, 0
        for key, _, width in COLUMNS:
            word = line[start : start + width].strip()
            words[key] = "" if word in NEVER else word
            start += width
        restarts = digits(words.pop("restarts") or "0")
        if _JOB_ID.fullmatch(words["job_id"]) and restarts is not None:
            found.append(queued_job(**words, restarts=restarts))
    return tuple(sorted(found, key=lambda job: (job.submitted or 0.0, len(job.job_id), job.job_id)))


def queued_job(*, job_id: str, state: str, reason: str = "", comment: str = "", restarts: int = 0, **words: str) -> QueuedJob:
    """Pure: of Slurm's words. A time that is none is not known."""
    word = state_word(state)
    stage = stage_of(word)
    work = parse_work(comment)
    return QueuedJob(
        job_id=job_id,
        stage=stage,
        state=word.lower(),
        why=plain_reason(reason, job_id) if stage == "waits" else "",
        hold=hold_of(reason) if stage == "waits" else "",
        advice=advice_of(reason, job_id) if stage == "waits" else "",
        ended_by=ENDED_BY.get(word) if stage == "over" else None,
        restarts=restarts,
        submitted=time_of(words.get("submitted", "")),
        expected=time_of(words.get("expected", "")),
        **({} if work is None else asdict(work)),
        **{key: words.get(key, "") for key in ("name", "nodes", "directory")},
    )


def stage_of(state: str) -> Stage:
    """Pure: of one of Slurm's words for the state of a job."""
    if state in WAITS:
        return "waits"
    return "over" if state in OVER else "ends" if state == "COMPLETING" else "runs"
