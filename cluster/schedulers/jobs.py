"""What commands ask of a scheduler that takes jobs: the functions of its JOBS, and the values that go to them and come back."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from base.units import whole_duration

RUN: Final = "stage_train_push"
SHARD: Final = "dataset_shard"
JOB_ID: Final = "\0"
"""Stands for the job's id in `BatchJob.output`."""
_NAME: Final = re.compile(r"slipway-(?P<study>.+)-[0-9a-f]{8}")

Stage = Literal["waits", "runs", "ends", "over"]
"""`ends`: its processes are being ended. `over`: the scheduler may still know it."""


@dataclass(frozen=True, kw_only=True)
class JobSize:
    """What one job asks of the scheduler. None: not asked for. `cores`, `memory_mb` and `gpus` are per node; 0 MB: all there is."""

    nodes: int
    minutes: int
    cores: int | None = None
    memory_mb: int | None = None
    gpus: int | None = None
    whole_nodes: bool = True
    queue: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    directives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.minutes < 1:
            raise ValueError(f"nodes and minutes must be positive, found {self.nodes!r} and {self.minutes!r}")


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """The one job of `slipway submit`: what it asks for, and what runs there. `environ`: what the script exports beside its own name;
    `export`: the variables that the job inherits, None: all that the submission has."""

    name: str
    size: JobSize
    environ: tuple[tuple[str, str], ...] = ()
    export: tuple[str, ...] | None = None
    output: str
    directory: str
    argv: tuple[str, ...]
    setup: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunJob:
    """The job that Snakemake submits for one run: what it asks for, where it works and writes its log, and what is said of it."""

    run_id: str
    size: JobSize
    directory: str


@dataclass(frozen=True, kw_only=True)
class Submitter:
    """The Snakemake that submits jobs, and what for: the mark of the study, where its runs have their logs, and where its datasets are
    built. `state`: a directory on shared storage that jobs see too."""

    pid: int
    state: Path
    account: str | None
    mark: str
    run_logs: str
    builds: str


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job of ours that the scheduler knows. Times are unix seconds. `rule` and `wildcards` are Snakemake's, `mark` is the study's: of a
    job per run or shard. `comment`: all that was said of it at its submission."""

    job_id: str
    stage: Stage
    state: str
    """In the scheduler's own words, in small letters."""
    why: str = ""
    """Why it waits, in words; of a job that waits only."""
    ended_by: str | None = None
    """`cancelled`, `preempted`, `requeued`, `timeout`, `node_lost`: of a job that is over, where the scheduler ended it."""
    restarts: int = 0
    submitted: float | None = None
    expected: float | None = None
    """When it is expected to start, or when it started."""
    name: str = ""
    comment: str = ""
    rule: str = ""
    wildcards: str = ""
    mark: str = ""
    nodes: str = ""
    directory: str = ""
    """Where it was submitted."""

    @property
    def waits(self) -> bool:
        """Whether it has no nodes yet, or none any more."""
        return self.stage == "waits"


class Jobs(Protocol):
    """What the module behind a scheduler's JOBS offers. A question may be asked again for `patience_s` while nobody answers, each time for
    at most `timeout_s`; it raises SchedulerSilent then, and SchedulerOutputError for an answer that is none."""

    TITLE: str
    """The scheduler's name in a sentence."""
    SERVER: str
    """Who answers its commands, in a sentence."""
    SUBMIT: str
    """The command that submits a job."""
    PROFILE: str
    """Our profile for Snakemake that submits a job per run."""
    SHARED_PROFILE: str
    """Our profile for Snakemake inside of one job for all runs."""
    EXECUTOR: str
    """Snakemake's executor in PROFILE."""

    def our_jobs(self, patience_s: float, timeout_s: float) -> tuple[QueuedJob, ...]:
        """All of this user that are not over, oldest first."""

    def jobs_named(self, name: str, patience_s: float) -> tuple[QueuedJob, ...]:
        """Ours of exactly that name, in any stage that the scheduler still knows, oldest first."""

    def list_words(self) -> str:
        """The command that lists our jobs, as people type it."""

    def show_words(self, job_id: str) -> str:
        """The command that shows a job."""

    def cancel_words(self, job_ids: Sequence[str]) -> str:
        """The command that cancels jobs."""

    def never_starts(self, size: JobSize) -> str | None:
        """Why such a job never starts here, and what to change; None if it may, or nobody can say it. Raises SchedulerSilent."""

    def refusal_of(self, job: RunJob) -> str | None:
        """What the scheduler would refuse of a job, in its words, without submitting it; None if nothing, or nobody answers."""

    def owned_by_us(self, directive: str) -> str | None:
        """Pure: what a directive of the site sets although Slipway does, such as `walltime`; None if nothing."""

    def resources(self, size: JobSize) -> dict[str, Any]:
        """Pure: what the job of a rule asks for, under the names that EXECUTOR reads. None: not asked for."""

    def run_words(self, job: RunJob) -> str:
        """The command by which PROFILE submits the job of a run; what is decided at the start stands in <>. Raises SchedulerOutputError."""

    def script(self, job: BatchJob) -> str:
        """Pure: the batch script, as it would be submitted. Raises ConfigError."""

    def options(self, job: BatchJob) -> tuple[str, ...]:
        """Pure: what the script asks for, as options of SUBMIT. Raises ConfigError."""

    def inherited(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Pure: names of the variables that a job takes along, for a script that somebody submits by hand."""

    def submit(self, job: BatchJob) -> str:
        """Hand it over once, patiently; its id. Raises SubmitError."""

    def submitting_environ(self, environ: Mapping[str, str], submitter: Submitter) -> dict[str, str]:
        """Pure: what the Snakemake that submits jobs adds to its environment."""

    def num_nodes_of_job(self, environ: Mapping[str, str]) -> int | None:
        """Pure: how many nodes the job has that `environ` is of."""

    def end_of_job(self, environ: Mapping[str, str], patience_s: float) -> float | None:
        """When the job ends that `environ` is of, in unix time; None where that is not known."""


def job_name(study: str, token: str) -> str:
    """Unique, so that a submission nobody confirmed can be looked for; `token`: 8 hex digits."""
    return f"slipway-{study}-{token}"


def is_of_study(name: str, study: str) -> bool:
    """Whether a job of that name is a submission of that study."""
    match = _NAME.fullmatch(name)
    return match is not None and match["study"] == study


def mark_of(study: str, results_dir: str) -> str:
    """Pure: what the jobs of a study have in common, and no other's: its name, and where its results lie."""
    return f"slipway={study}-{hashlib.sha256(results_dir.encode()).hexdigest()[:8]}"


def jobs_of_rule(jobs: Iterable[QueuedJob], mark: str, rule: str) -> Mapping[str, QueuedJob]:
    """Pure: jobs of that study and rule, by its wildcards. Of several, one that runs; else the oldest."""
    found: dict[str, QueuedJob] = {}
    for job in jobs:
        if (job.mark, job.rule) == (mark, rule) and (job.wildcards not in found or (found[job.wildcards].waits and not job.waits)):
            found[job.wildcards] = job
    return found


def jobs_of_submissions(jobs: Iterable[QueuedJob], study: str) -> tuple[QueuedJob, ...]:
    """Pure: those of `slipway submit`."""
    return tuple(job for job in jobs if is_of_study(job.name, study))


def job_words(job: QueuedJob, now: float) -> str:
    """Pure: what a job does, for the line of its run: `job 31 waits for 2m05s: ... (Resources), expected to start 22 Nov 15:26`."""
    if not job.waits:
        return f"job {job.job_id} is {job.state}{f' on {job.nodes}' if job.nodes else ''}"
    long = "" if job.submitted is None else f" for {whole_duration(max(1.0, now - job.submitted))}"
    again = ", put back into the queue" if job.restarts else ""
    expected = "" if job.expected is None else f", expected to start {time.strftime('%d %b %H:%M', time.localtime(job.expected))}"
    return f"job {job.job_id} waits{long}{again}: {job.why}{expected}"
