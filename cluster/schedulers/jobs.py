"""Define what a job asks for and what it makes, how it stands in the queue, and the lines that batch scripts share."""

import hashlib
import re
import shlex
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from base import errors, humanize

RUN: Final = "stage_train_push"
SHARD: Final = "dataset_shard"
OUR_NAMES: Final = "slipway-"
"""The beginning of the names of our jobs."""
JOB_ID_PLACEHOLDER: Final = "\0"
"""The placeholder for the job's id in `BatchJob.output`."""
SUBMISSION: Final = "SLIPWAY_SUBMISSION"
"""The variable that is set in the job of `slipway submit`, which holds a whole study whose runs share its nodes."""
_WORK: Final = re.compile(r"(?:.* )?rule_(?P<rule>[a-z_]+)_wildcards_(?P<wildcards>\S*) (?P<mark>slipway=\S+)(?: .*)?")
_NAME: Final = re.compile(r"slipway-(?P<study>.+)-[0-9a-f]{8}")

Stage = Literal["waits", "runs", "ends", "over"]
"""The stage of a job. `ends`: its processes are being ended. `over`: the scheduler may still know the job."""
Hold = Literal["", "held", "failed"]
"""Why a job is kept in the queue until somebody releases it.

`held`: by a person, or by a rule of the site. `failed`: the scheduler could not start the job, and has kept it since.
"""


@dataclass(frozen=True, kw_only=True)
class JobSize:
    """What one job asks of the scheduler; None: not requested. Per node: `cores`, `memory_mb` (0: all of it) and `gpus`."""

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
    """The name of a parallel environment of Grid Engine, and after a blank the number of its slots per node (default: `cores`)."""
    directives: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """Nodes that the job must not get, by the scheduler's names, because they failed an earlier attempt.

    A scheduler that cannot exclude nodes ignores them.
    """

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.minutes < 1:
            raise ValueError(f"nodes and minutes must be positive, found {self.nodes!r} and {self.minutes!r}")


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a job of Snakemake makes: the mark of its study, the rule, and the values of the rule's wildcards, joined by `_`."""

    mark: str
    rule: str
    wildcards: str


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """One job: what it asks for, and what it runs. No other job has its name, so that an unconfirmed submission can be found by it.

    `work`: what a job for one run or shard makes; it travels with the job (`work_words`). None: the job of `slipway submit`. `environ`:
    additional variables that the script exports.
    """

    name: str
    size: JobSize
    work: Work | None = None
    environ: tuple[tuple[str, str], ...] = ()
    output: str
    directory: str
    argv: tuple[str, ...]
    setup: tuple[str, ...] = ()

    @property
    def is_shard(self) -> bool:
        """Return True if the job builds one shard: it needs one core of any node, and starts nothing on others."""
        return self.work is not None and self.work.rule == SHARD


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job of ours that the scheduler knows. Times are unix seconds.

    `rule`, `wildcards` and `mark` are the Work of a job for one run or shard.
    """

    job_id: str
    stage: Stage
    state: str
    """The scheduler's own word for the state."""
    why: str = ""
    """The reason why a waiting job waits, in words."""
    hold: Hold = ""
    ended_by: str | None = None
    """`cancelled`, `preempted`, `requeued`, `timeout`, `node_lost` or `not_started` for a job that the scheduler has ended, or ends now.

    A job that ends by itself may have a word too until its stage is `over`: some schedulers do not tell the two apart before.
    """
    preempted: bool = False
    """True if the scheduler has decided to take the nodes back for another job. This job may still end by itself, or continue later."""
    restarts: int = 0
    submitted: float | None = None
    expected: float | None = None
    """The time when the job started or is expected to start."""
    end: float | None = None
    """The time when the scheduler ends the job. It is None without a limit."""
    name: str = ""
    rule: str = ""
    wildcards: str = ""
    mark: str = ""
    nodes: str = ""
    directory: str = ""
    """The directory from which the job was submitted."""
    lost: str = ""
    """The first node of the job, if that node is silent and the scheduler keeps the job because of it.

    Also a node that could not start the job, which is over then. The next job of the run excludes this node.
    """

    @property
    def waits(self) -> bool:
        """Return True if the job has no nodes, either not yet or no longer."""
        return self.stage == "waits"


def job_name(study: str, token: str) -> str:
    """Return a unique job name, by which an unconfirmed submission can be found. `token` is 8 hex digits."""
    return f"slipway-{study}-{token}"


def is_of_study(name: str, study: str) -> bool:
    """Return True if a job of that name is a submission of that study."""
    match = _NAME.fullmatch(name)
    return match is not None and match["study"] == study


def work_name(work: Work, token: str) -> str:
    """Return a unique name for a job that makes one run or shard. People read it in the queue."""
    return f"slipway-{work.wildcards[:80] or work.rule}.{token}"


def work_words(work: Work) -> str:
    """Format the work of a job for the field in which its scheduler keeps words; parse_work reads it."""
    return f"rule_{work.rule}_wildcards_{work.wildcards} {work.mark}"


def parse_work(words: str) -> dict[str, Any]:
    """Parse the words of any user's job. Returns the fields of a Work, or nothing if they hold no work of ours."""
    found = _WORK.fullmatch(words)
    return {} if found is None else found.groupdict()


def one_line(what: str, value: str) -> str:
    """Return a value for a line of a batch script. Raises ConfigError for one that holds the end of a line."""
    if set(value) & set("\n\r\0"):
        raise errors.ConfigError(f"{what}: {value!r} holds the end of a line, which would begin another line of the batch script")
    return value


def script_lines(job: BatchJob) -> tuple[str, ...]:
    """Return the lines of a batch script after its directives. The last begins with `exec`, so that signals reach the program."""
    return (
        f"cd {shlex.quote(job.directory)} || exit",
        *((f"export {SUBMISSION}={shlex.quote(job.name)}",) if job.work is None else ()),
        *(f"export {name}={shlex.quote(value)}" for name, value in job.environ),
        *job.setup,
        f"exec {shlex.join(job.argv)}",
    )


def mark_of(study: str, results_dir: str) -> str:
    """Return the mark that only the jobs of one study have: its name, and the directory of its results."""
    return f"slipway={study}-{hashlib.sha256(results_dir.encode()).hexdigest()[:8]}"


def jobs_of_rule(jobs: Iterable[QueuedJob], mark: str, rule: str) -> Mapping[str, QueuedJob]:
    """Map wildcards to the job of that study and rule. Of several with the same wildcards a running one counts, else the oldest."""
    found: dict[str, QueuedJob] = {}
    for job in jobs:
        if (job.mark, job.rule) == (mark, rule) and (job.wildcards not in found or (found[job.wildcards].waits and not job.waits)):
            found[job.wildcards] = job
    return found


def jobs_of_submissions(jobs: Iterable[QueuedJob], study: str) -> tuple[QueuedJob, ...]:
    """Select the jobs that `slipway submit` has submitted for a study."""
    return tuple(job for job in jobs if is_of_study(job.name, study))


def job_words(job: QueuedJob, now: float) -> str:
    """Describe the state of a job: `job 31 waits for 2m05s: ... (Resources), expected to start 22 Nov 15:26`."""
    if not job.waits:
        silent = f", and {job.lost} does not answer" if job.lost else ""
        return f"job {job.job_id} is {job.state}{f' on {job.nodes}' if job.nodes else ''}{silent}"
    long = "" if job.submitted is None else f" for {humanize.whole_duration(max(1.0, now - job.submitted))}"
    again = ", put back into the queue" if job.restarts else ""
    expected = (
        "" if job.expected is None or job.hold else f", expected to start {time.strftime('%d %b %H:%M', time.localtime(job.expected))}"
    )
    return f"job {job.job_id} waits{long}{again}: {job.why}{expected}"
