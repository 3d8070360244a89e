"""Our jobs in Slurm's queue: one question for all of them, and which study and which run each belongs to.

A job of `profiles/slurm` says so in its comment: the rule and its wildcards, as Snakemake's plugin writes them, and the study's mark, which
the stand-in for sbatch adds. A job of `slipway submit` says it by its name.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from base.foreign import digits
from cluster.schedulers.slurm.answers import NEVER
from cluster.schedulers.slurm.batch_script import is_of_study
from cluster.schedulers.slurm.query import ask

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
QUICK_S: Final = 8.0
RUN: Final = "stage_train_push"
SHARD: Final = "dataset_shard"
_WORK: Final = re.compile(r"rule_(?P<rule>[a-z_]+)_wildcards_(?P<wildcards>\S+)")
_COMMENT: Final = re.compile(rf"(?P<work>{_WORK.pattern}) (?P<mark>slipway=\S+)(?: .*)?")


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job that waits, runs or is about to end. Times are unix seconds; `expected`: when a waiting one is expected to start, or when it
    started; `directory`: where it was submitted."""

    job_id: str
    state: str
    reason: str | None = None
    restarts: int = 0
    submitted: float | None = None
    expected: float | None = None
    name: str = ""
    comment: str = ""
    nodes: str = ""
    directory: str = ""

    @property
    def waits(self) -> bool:
        """Whether it has no nodes yet, or none any more."""
        return self.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")


def our_jobs(patience_s: float = 0.0, timeout_s: float = QUICK_S) -> tuple[QueuedJob, ...]:
    """All of this user that are not over, oldest first. Raises SchedulerSilent, SchedulerOutputError."""
    return parse_queue(ask((*QUESTION, f"--user={os.getuid()}"), patience_s, timeout_s))


def parse_queue(text: str) -> tuple[QueuedJob, ...]:
    """Pure: the answer to QUESTION. A line that cannot be read is of nobody we know."""
    found = []
    for line in text.splitlines():
        words, start = {}, 0
        for key, _, width in COLUMNS:
            word = line[start : start + width].strip()
            words[key] = "" if word in NEVER else word
            start += width
        restarts = digits(words["restarts"])
        if not words["job_id"] or restarts is None:
            continue
        found.append(
            QueuedJob(
                job_id=words["job_id"],
                state=re.split(r"[,+ ]", words["state"])[0],
                reason=words["reason"] or None,
                restarts=restarts,
                submitted=_time(words["submitted"]),
                expected=_time(words["expected"]),
                **{key: words[key] for key in ("name", "comment", "nodes", "directory")},
            )
        )
    return tuple(sorted(found, key=lambda job: (job.submitted or 0.0, len(job.job_id), job.job_id)))


def mark_of(study: str, results_dir: str) -> str:
    """Pure: what the jobs of a study have in common, and no other's: its name, and where its results lie."""
    return f"slipway={study}-{hashlib.sha256(results_dir.encode()).hexdigest()[:8]}"


def jobs_of_rule(jobs: Iterable[QueuedJob], mark: str, rule: str) -> Mapping[str, QueuedJob]:
    """Pure: jobs of that study and rule, by its wildcards. Of several, one that runs; else the oldest."""
    found: dict[str, QueuedJob] = {}
    for job in jobs:
        said = _COMMENT.fullmatch(job.comment)
        if said is None or (said["mark"], said["rule"]) != (mark, rule):
            continue
        if said["wildcards"] not in found or (found[said["wildcards"]].waits and not job.waits):
            found[said["wildcards"]] = job
    return found


def rule_and_wildcards(comment: str) -> tuple[str, str] | None:
    """Pure: what Snakemake's plugin says of a job, before anybody adds to it."""
    said = _WORK.fullmatch(comment)
    return None if said is None else (said["rule"], said["wildcards"])


def jobs_of_work(jobs: Iterable[QueuedJob], mark: str) -> Mapping[str, QueuedJob]:
    """Pure: jobs of that study, by what the plugin says of them."""
    said = ((job, _COMMENT.fullmatch(job.comment)) for job in jobs)
    return {match["work"]: job for job, match in said if match is not None and match["mark"] == mark}


def jobs_of_submissions(jobs: Iterable[QueuedJob], study: str) -> tuple[QueuedJob, ...]:
    """Pure: those of `slipway submit`."""
    return tuple(job for job in jobs if is_of_study(job.name, study))


def _time(text: str) -> float | None:
    found = digits(text)
    return None if not found else float(found)
