"""What commands ask of a scheduler that takes jobs: the functions of its JOBS, and the values that go to them and come back."""

from __future__ import annotations

import hashlib
import re
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from base.units import whole_duration

RUN: Final = "stage_train_push"
SHARD: Final = "dataset_shard"
JOB_ID_PLACEHOLDER: Final = "\0"
"""Stands for the job's id in `BatchJob.output`."""
SUBMISSION: Final = "SLIPWAY_SUBMISSION"
"""Set in the job of `slipway submit`: it holds a whole study, whose runs share its nodes."""
_WORK: Final = re.compile(r"(?:.* )?rule_(?P<rule>[a-z_]+)_wildcards_(?P<wildcards>\S*) (?P<mark>slipway=\S+)(?: .*)?")
_NAME: Final = re.compile(r"slipway-(?P<study>.+)-[0-9a-f]{8}")

Stage = Literal["waits", "runs", "ends", "over"]
"""`ends`: its processes are being ended. `over`: the scheduler may still know it."""
Hold = Literal["", "held", "failed"]
"""Of a job that waits until somebody lets it go: `held` by a person, or by a rule of the site; `failed`: the scheduler could not start it,
and keeps it since."""


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
    parallel_environment: str | None = None
    """Of Grid Engine: its name, and after a blank how many of its slots are a node; without that, as many as `cores`."""
    directives: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """Nodes that the job is not to get, by the scheduler's names: they failed an earlier attempt. A scheduler that cannot leave nodes out
    ignores them."""

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.minutes < 1:
            raise ValueError(f"nodes and minutes must be positive, found {self.nodes!r} and {self.minutes!r}")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a job of Snakemake makes: the mark of its study, the rule, and the values of the rule's wildcards, with `_` between them."""

    mark: str
    rule: str
    wildcards: str


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """One job: what it asks for, and what runs there. Its name is no other job's: a submission that nobody confirmed is found by it.

    `work`: of a job for one run or shard, and travels with it (`work_words`); None: the one job of `slipway submit`. `environ`: what the
    script exports beside; `export`: the variables that the job inherits, None: all that its submission has."""

    name: str
    size: JobSize
    work: Work | None = None
    environ: tuple[tuple[str, str], ...] = ()
    export: tuple[str, ...] | None = None
    output: str
    directory: str
    argv: tuple[str, ...]
    setup: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job of ours that the scheduler knows. Times are unix seconds. `rule`, `wildcards`, `mark`: its Work, of a job per run or shard."""

    job_id: str
    stage: Stage
    state: str
    """In the scheduler's own words, in small letters."""
    why: str = ""
    """Why it waits, in words; of a job that waits only."""
    hold: Hold = ""
    advice: str = ""
    """Who lets it go then, and by which command."""
    ended_by: str | None = None
    """`cancelled`, `preempted`, `requeued`, `timeout`, `node_lost`, `not_started`: of a job that is over, where the scheduler ended it."""
    restarts: int = 0
    submitted: float | None = None
    expected: float | None = None
    """When it is expected to start, or when it started."""
    name: str = ""
    rule: str = ""
    wildcards: str = ""
    mark: str = ""
    nodes: str = ""
    directory: str = ""
    """Where it was submitted."""
    lost: str = ""
    """Its first node, where that answers nobody and the scheduler keeps the job until it does (`Jobs.forget` ends the waiting), or where
    that could not start the job, which is over. The next job of the run asks for other nodes."""

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

    def our_jobs(self, patience_s: float, timeout_s: float) -> tuple[QueuedJob, ...]:
        """All of this user that are not over, oldest first."""

    def jobs_named(self, name: str, patience_s: float) -> tuple[QueuedJob, ...]:
        """Ours of exactly that name, in any stage that the scheduler still knows, oldest first."""

    def known_jobs(self, job_ids: Sequence[str], patience_s: float) -> tuple[QueuedJob, ...]:
        """Those of them that the scheduler still knows, in any stage, by one question: how a job ended that is not among `our_jobs`."""

    def cancel(self, job_ids: Sequence[str], patience_s: float) -> None:
        """End them, by one command if that goes, whatever they do; one that is over, or that nobody knows, is no failure."""

    def forget(self, job_ids: Sequence[str], patience_s: float) -> None:
        """Take jobs out of the queue whose `lost` node has been silent for long, without waiting for it."""

    def list_words(self) -> str:
        """The command that lists our jobs, as people type it."""

    def show_words(self, job_id: str) -> str:
        """The command that shows a job."""

    def cancel_words(self, job_ids: Sequence[str]) -> str:
        """The command that cancels jobs."""

    def enter_words(self, job_id: str, node: str) -> str:
        """Pure: what stands before a command that is to have this terminal on a node of a running job; "" where nothing does that."""

    def never_starts(self, size: JobSize) -> str | None:
        """Why such a job never starts here, and what to change; None if it may, or nobody can say it. Raises SchedulerSilent."""

    def refusal_of(self, job: BatchJob) -> str | None:
        """What the scheduler would refuse of a job, in its words, without submitting it; None if nothing, or nobody answers."""

    def owned_by_us(self, directive: str) -> str | None:
        """Pure: what a directive of the site sets although Slipway does, such as `walltime`; None if nothing."""

    def script(self, job: BatchJob) -> str:
        """Pure: the batch script, as it would be submitted: its directives, then `script_lines`. Raises ConfigError."""

    def options(self, job: BatchJob) -> tuple[str, ...]:
        """Pure: what the script asks for, as options of SUBMIT. Raises ConfigError."""

    def inherited(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """Pure: names of the variables that a job takes along, for a script that somebody submits by hand."""

    def submit(self, job: BatchJob, patience_s: float) -> str:
        """Hand it over once; its id. While nobody answers it is looked for by its name, and tried again for `patience_s` (may be infinite),
        which is said once on standard error. Raises SubmitError."""

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


def work_name(work: Work, token: str) -> str:
    """The same of a job for one run or shard; people read it in the queue."""
    return f"slipway-{work.wildcards[:80] or work.rule}.{token}"


def work_words(work: Work) -> str:
    """Pure: how a job's work travels with it, where its scheduler keeps words for a job; parse_work reads it."""
    return f"rule_{work.rule}_wildcards_{work.wildcards} {work.mark}"


def parse_work(words: str) -> Work | None:
    """Pure: of what a job of anybody's says."""
    found = _WORK.fullmatch(words)
    return None if found is None else Work(**found.groupdict())


def script_lines(job: BatchJob) -> tuple[str, ...]:
    """Pure: what stands in any scheduler's batch script after its directives. It ends in `exec`, so that signals reach the program."""
    return (
        f"cd {shlex.quote(job.directory)} || exit",
        *((f"export {SUBMISSION}={shlex.quote(job.name)}",) if job.work is None else ()),
        *(f"export {name}={shlex.quote(value)}" for name, value in job.environ),
        *job.setup,
        f"exec {shlex.join(job.argv)}",
    )


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
        silent = f", and {job.lost} does not answer" if job.lost else ""
        return f"job {job.job_id} is {job.state}{f' on {job.nodes}' if job.nodes else ''}{silent}"
    long = "" if job.submitted is None else f" for {whole_duration(max(1.0, now - job.submitted))}"
    again = ", put back into the queue" if job.restarts else ""
    expected = (
        "" if job.expected is None or job.hold else f", expected to start {time.strftime('%d %b %H:%M', time.localtime(job.expected))}"
    )
    return f"job {job.job_id} waits{long}{again}: {job.why}{'; ' if job.advice else ''}{job.advice}{expected}"
