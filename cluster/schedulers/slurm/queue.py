"""Our jobs in Slurm's queue: one question, the one parser of its answer, and which study and which run each job belongs to.

A job of `profiles/slurm` says so in its comment: the rule and its wildcards, as Snakemake's plugin writes them, and the study's mark, which
the stand-in for sbatch adds. A job of `slipway submit` says it by its name.
"""

from __future__ import annotations

import os
import re
from typing import Final

from base.errors import SchedulerOutputError
from base.foreign import digits, text
from cluster.schedulers.jobs import QueuedJob, Stage
from cluster.schedulers.slurm.answers import NEVER, state_word, time_of
from cluster.schedulers.slurm.limits import ANSWER_S
from cluster.schedulers.slurm.query import ask
from cluster.schedulers.slurm.states import ENDED_BY, OVER, WAITS, plain_reason

COLUMNS: Final = (
    ("job_id", "JobID", 20),
    ("state", "State", 24),
    ("reason", "Reason", 64),
    ("restarts", "RestartCnt", 12),
    ("submitted", "SubmitTime", 24),
    ("expected", "StartTime", 24),
    ("name", "Name", 160),
    ("comment", "Comment", 400),
    ("nodes", "NodeList", 120),
    ("directory", "WorkDir", 1024),
)
"""Of squeue, with widths. What is cut is a list of many nodes, which is only shown, or foreign."""
QUESTION: Final = ("squeue", "--noheader", f"--Format={','.join(f'{name}:{width}' for _, name, width in COLUMNS)}")
_JOB_ID: Final = re.compile(r"[0-9]+([_+]\S+)?")
"""With the number in an array, or in a job of several parts."""
_WORK: Final = re.compile(r"rule_(?P<rule>[a-z_]+)_wildcards_(?P<wildcards>\S+)")
_COMMENT: Final = re.compile(rf"{_WORK.pattern} (?P<mark>slipway=\S+)(?: .*)?")


def our_jobs(patience_s: float, timeout_s: float) -> tuple[QueuedJob, ...]:
    """All of this user that are not over, oldest first. Raises SchedulerSilent, SchedulerOutputError."""
    return parse_queue(ask((*QUESTION, f"--user={os.getuid()}"), patience_s, timeout_s))


def jobs_named(name: str, patience_s: float) -> tuple[QueuedJob, ...]:
    """Ours of exactly that name, in any state that squeue still shows, oldest first. Raises SchedulerSilent; SchedulerOutputError where a
    line cannot be read, since it may be the job that is looked for, which would be submitted twice."""
    answer = ask((*QUESTION, f"--user={os.getuid()}", "--states=all", f"--name={name}"), patience_s, ANSWER_S)
    jobs = parse_queue(answer)
    if len(jobs) < sum(bool(line.strip()) for line in answer.splitlines()):
        raise SchedulerOutputError(f"a line of squeue cannot be read: {text(answer, 400)}")
    return tuple(job for job in jobs if job.name == name)


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
    work = _COMMENT.fullmatch(comment)
    return QueuedJob(
        job_id=job_id,
        stage=stage,
        state=word.lower(),
        why=plain_reason(reason, job_id) if stage == "waits" else "",
        ended_by=ENDED_BY.get(word) if stage == "over" else None,
        restarts=restarts,
        submitted=time_of(words.get("submitted", "")),
        expected=time_of(words.get("expected", "")),
        comment=comment,
        **({} if work is None else work.groupdict()),
        **{key: words.get(key, "") for key in ("name", "nodes", "directory")},
    )


def stage_of(state: str) -> Stage:
    """Pure: of one of Slurm's words for the state of a job."""
    if state in WAITS:
        return "waits"
    return "over" if state in OVER else "ends" if state == "COMPLETING" else "runs"


def rule_and_wildcards(comment: str) -> tuple[str, str] | None:
    """Pure: what Snakemake's plugin says of a job, before anybody adds to it."""
    said = _WORK.fullmatch(comment)
    return None if said is None else (said["rule"], said["wildcards"])
