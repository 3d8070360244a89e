"""Ask Slurm about jobs and nodes, and parse its answers into frozen values."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from base.errors import SchedulerOutputError
from base.sanitize import ascii_int
from base.sanitize import text as shown
from cluster.schedulers.jobs import Hold, QueuedJob, Stage, parse_work
from cluster.schedulers.queries import ANSWER_S, PATIENCE_S, Server, ask, in_english

NEVER: Final = ("Unknown", "None", "N/A", "NONE", "(null)", "")
COMMENT_WIDTH: Final = 400
"""The number of bytes of a comment that squeue prints. Our words must be among them."""
LATEST: Final = 2**33
"""The latest time that is accepted, in unix seconds: the year 2242. Not every C library can format later times."""
_DURATION: Final = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?")
_FIELD: Final = re.compile(r"(?:^|\s)([A-Za-z][\w:/]*)=(.*?)(?=\s[A-Za-z][\w:/]*=|\s*$)")


COLUMNS: Final = (
    ("job_id", "JobID", 20),
    ("state", "State", 24),
    ("reason", "Reason", 64),
    ("restarts", "RestartCnt", 12),
    ("submitted", "SubmitTime", 24),
    ("started", "StartTime", 24),
    ("name", "Name", 160),
    ("comment", "Comment", COMMENT_WIDTH),
    ("nodes", "NodeList", 120),
    ("directory", "WorkDir", 1024),
    ("end", "EndTime", 24),
    ("limit_s", "TimeLimit", 24),
    ("preempted", "PreemptTime", 24),
)
"""Columns of squeue with their widths in bytes. Values that are cut off are long node lists, which are only shown, or belong to jobs of
others."""
QUESTION: Final = ("squeue", "--noheader", f"--Format={','.join(f'{name}:{width}' for _, name, width in COLUMNS)}")
_JOB_ID: Final = re.compile(r"[0-9]+([_+]\S+)?")
"""A job id, with the number in an array or in a job of several parts."""


def parse_queue(answer: str) -> tuple[QueuedJob, ...]:
    """Parse the answer to QUESTION, oldest job first. Lines that cannot be read are left out."""
    found = []
    for line in answer.split("\n"):  # a comment may hold other ends of lines
        row, words, start = line.encode(), {}, 0
        for key, _, width in COLUMNS:
            word = row[start : start + width].decode(errors="replace").strip()
            words[key] = "" if word in NEVER else word
            start += width
        restarts = ascii_int(words["restarts"] or "0")
        if restarts is not None and _JOB_ID.fullmatch(words["job_id"]):
            found.append(_job(words, restarts))
    return tuple(sorted(found, key=lambda job: (job.submitted or 0.0, len(job.job_id), job.job_id)))


def _job(words: Mapping[str, str], restarts: int) -> QueuedJob:
    state = re.split(r"[,+ ]", words["state"])[0]  # the first of several that Slurm reports together
    stage = stage_of(state)
    started, end, limit_s = time_of(words["started"]), time_of(words["end"]), parse_duration(words["limit_s"])
    is_late = started is not None and end is not None and limit_s is not None and end - started >= limit_s
    return QueuedJob(
        **{key: words[key] for key in ("job_id", "name", "nodes", "directory")},
        stage=stage,
        state=state.lower(),
        why=plain_reason(words["reason"]) if stage == "waits" else "",
        hold=hold_of(words["reason"]) if stage == "waits" else "",
        ended_by=ended_by_of(state, words["reason"], is_late),
        preempted=time_of(words["preempted"]) is not None,
        restarts=restarts,
        submitted=time_of(words["submitted"]),
        expected=started,
        end=None if limit_s is None else end,
        **parse_work(words["comment"]),
    )


def parse_node_addresses(text: str) -> dict[str, str]:
    """Map each NodeName to its NodeAddr in the answer of `scontrol -o show node`."""
    lines = [fields_of(line) for line in text.splitlines()]
    return {line["NodeName"]: line["NodeAddr"] for line in lines if line.get("NodeName") and line.get("NodeAddr")}


def fields_of(line: str) -> dict[str, str]:
    """Parse the fields of one line of `scontrol -o show`. A value ends before the next word with `=`."""
    return dict(_FIELD.findall(line))


def parse_duration(text: str) -> float | None:
    """Convert `1-02:03:04`, `1-02`, `02:03:04`, `03:04` or `3` (minutes) to seconds. Returns None for anything else, such as UNLIMITED."""
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    days, *clock = (int(part or "0") for part in match.groups())
    if match[1] is None and match[4] is None:
        clock = [0, *clock[:2]]
    hours, minutes, seconds = clock
    return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)


def time_of(text: str) -> float | None:
    """Parse unix seconds. Returns None for a value that is no time or is later than LATEST."""
    found = ascii_int(text)
    return None if not found or found > LATEST else float(found)


# The variables that Slurm gives a job.


JOB_ID: Final = "SLURM_JOB_ID"
RESTART_COUNT: Final = "SLURM_RESTART_COUNT"
NODE_LIST: Final = "SLURM_JOB_NODELIST"
CPUS_PER_NODE: Final = "SLURM_JOB_CPUS_PER_NODE"
PREFIXES: Final = ("SLURM_", "SLURMD_")


def job_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return Slurm's variables in `environ` that are not empty, or an empty dict outside of a job."""
    return {key: value for key, value in environ.items() if key.startswith(PREFIXES) and value} if environ.get(JOB_ID) else {}


def fewest_cpus(counts: str) -> int | None:
    """Return the least number in `2(x3),1`, CPUs of a node and how many nodes have them, as in SLURM_JOB_CPUS_PER_NODE."""
    return min(map(int, re.findall(r"(?:^|,)([0-9]{1,9})", counts)), default=None)


# Time limits that only Slurm has.


SHORT_ANSWER_S: Final = 12.0
"""The time limit of one command for which somebody waits: Slurm's own commands give up after MessageTimeout, 10 s by default."""
REQUEUE_PATIENCE_S: Final = 30.0
"""How long a silent controller is asked repeatedly to requeue a job."""


# The partitions of a cluster and their nodes, from the answers of scontrol and sinfo.


SHOW: Final = ("scontrol", "--oneliner", "show", "partition")
SINFO: Final = ("sinfo", "--noheader", "--exact", "--format=%R|%D|%T|%c|%m|%G|%f")
MIB: Final = 1 << 20
DOWN: Final = ("down", "drain", "fail", "maint", "unknown", "error", "power", "reboot", "no_respond")
_GPU: Final = re.compile(r"(?:^|,)gpu(?::([A-Za-z][\w.-]*))?:([0-9]{1,9})(?![0-9])")
_NUMBER: Final = re.compile(r"([0-9]{1,9})(?![0-9])")
"""A number of at most 9 digits, because larger sizes do not exist."""

Partition = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """A group of equal nodes of a partition. `cpus` and `memory_bytes` are lower bounds if sinfo prints `64+`."""

    partition: str
    count: int
    state: str
    cpus: int
    memory_bytes: int
    gpus: int = 0
    gpu_model: str = ""

    @property
    def usable(self) -> bool:
        """Return True if a job can run there, now or later."""
        return not any(word in self.state for word in DOWN) and not self.state.endswith("*")


def parse_partitions(text: str) -> dict[str, Partition]:
    """Parse the answer of `SHOW` into partitions by name."""
    lines = [fields_of(line) for line in text.splitlines()]
    return {line["PartitionName"]: line for line in lines if "PartitionName" in line}


def parse_nodes(text: str) -> tuple[Nodes, ...]:
    """Parse the answer of `SINFO`. Lines that cannot be read are left out."""
    found = []
    for line in text.splitlines():
        words = line.strip().split("|")
        numbers = [_NUMBER.match(word) for word in words[1:2] + words[3:5]]
        if len(words) < 7 or not all(numbers):
            continue
        count, cpus, memory = (int(number[0]) for number in numbers if number)
        gpus = _GPU.findall(re.sub(r"\([^)]*\)", "", words[5]))
        found.append(
            Nodes(
                partition=words[0],
                count=count,
                state=words[2].lower(),
                cpus=cpus,
                memory_bytes=memory * MIB,
                gpus=sum(int(number) for _, number in gpus),
                gpu_model=gpus[0][0] if gpus else "",
            )
        )
    return tuple(found)


def default_partition(partitions: Mapping[str, Partition]) -> str | None:
    """Return the partition of jobs that name none."""
    return next((name for name, line in partitions.items() if line.get("Default") == "YES"), None)


# Queries to slurmctld about jobs. Times are queried as seconds since 1970 (SLURM_TIME_FORMAT=%s), so that the time zone does not matter.


SILENCE: Final = (
    "Unable to contact slurm controller",
    "Socket timed out on send/recv operation",
    "Connection refused",
    "Connection timed out",
    "Zero Bytes were transmitted or received",
    "Slurm backup controller in standby mode",
    "Slurm temporarily unable to accept",
    "Transport endpoint is not connected",
    "Unexpected message received",
)
"""Messages of Slurm's commands while slurmctld is silent: it is being restarted, busy, or cut off."""
NO_CLUSTER: Final = ("Could not establish a configuration source", "DNS SRV lookup failed", "Unable to process configuration file")
"""Messages of Slurm's commands where there is neither a slurm.conf nor a controller to get it from."""
UNKNOWN_JOB: Final = ("Invalid job id", "already completing or completed")
"""Complaints about jobs that are over: nobody is to be told."""


def slurm_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a command of Slurm: times as numbers, and English messages."""
    return {**in_english(environ), "SLURM_TIME_FORMAT": "%s"}


SLURM: Final = Server(
    title="Slurm",
    name="Slurm's controller",
    submit=("sbatch", "--parsable"),
    job_id=r"^(\d+)(?:;\S*)?$",
    list="squeue --me",
    show="squeue -j",
    cancel="scancel",
    enter="srun --jobid={job} --overlap -N1 -n1 -w {node} --pty",
    silence=SILENCE,
    nowhere=NO_CLUSTER,
    cluster="belongs to no Slurm cluster",
    advice="do this on a login node of the cluster",
    harmless=UNKNOWN_JOB,
    environment=slurm_environment,
)


def query_jobs(options: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> tuple[QueuedJob, ...]:
    """Query jobs in any state that slurmctld still knows, which it does for MinJobAge after their end.

    Raises SchedulerOutputError if a line cannot be read, because that line may be the requested job, which would be submitted twice.
    """
    answer = ask(SLURM, (*QUESTION, "--states=all", *options), patience_s, timeout_s)
    jobs = parse_queue(answer)
    if len(jobs) < sum(bool(line.strip()) for line in answer.split("\n")):
        raise SchedulerOutputError(f"a line of squeue cannot be read: {shown(answer, 400)}")
    return jobs


def job_info(job_id: str, patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> QueuedJob | None:
    """Query one job. Returns None for an unknown job."""
    return next((job for job in query_jobs((f"--jobs={job_id}",), patience_s, timeout_s) if job.job_id == job_id), None)


def node_names(names: str) -> tuple[str, ...]:
    """Expand the short form of a list of nodes, in order, by scontrol, which asks no controller for that."""
    return tuple(ask(SLURM, ("scontrol", "show", "hostnames", names), 0.0).split())


def node_addresses(names: Sequence[str], patience_s: float = PATIENCE_S) -> dict[str, str]:
    """Return the NodeAddr of each node, by one query for all. The result is empty while slurmctld is silent."""
    if not names:
        return {}
    try:
        answer = ask(SLURM, ("scontrol", "-o", "show", "node", ",".join(names)), patience_s)
    except SchedulerOutputError:
        return {}
    return parse_node_addresses(answer)


# The meaning of Slurm's words for the state of a job and for the reason of its wait.


WAITS: Final = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
"""States in which a job has no nodes yet, or no longer."""
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
}
NODE_DOWN: Final = "NodeDown"
"""The reason of a job that Slurm has ended because one of its nodes does not answer."""
HELD: Final = frozenset({"JobHeldUser", "JobHeldAdmin", "JobHoldMaxRequeue", "job requeued in held state"})
"""Reasons that hold until somebody releases the job."""
NEVER_STARTS: Final = frozenset({"PartitionNodeLimit", "PartitionTimeLimit"})
"""Reasons of a job that no node of its partition ever gets: many clusters accept it and let it wait (EnforcePartLimits=NO)."""
FAILED: Final = "failed requeued held"
"""The end of Slurm's reason for a job that it could not start: a prolog failed, or a directory is missing on the node."""


def stage_of(state: str) -> Stage:
    if state in WAITS:
        return "waits"
    return "over" if state in OVER else "ends" if state == "COMPLETING" else "runs"


def ended_by_of(state: str, reason: str, is_late: bool) -> str | None:
    """Derive the reason why a job ends. `is_late`: its time is over.

    While a job is COMPLETING, Slurm hides its last state: then a node that is down, or the time, shows the reason.
    """
    if state != "COMPLETING":
        return ENDED_BY.get(state)
    return "node_lost" if reason == NODE_DOWN else "timeout" if is_late else "cancelled"


def hold_of(reason: str) -> Hold:
    """Return the kind of hold that this reason of a waiting job means."""
    word = _word(reason)
    return "failed" if word.endswith(FAILED) else "held" if word in HELD else ""


def plain_reason(reason: str) -> str:
    """Explain why a job waits, by Slurm's own word, which people can search for."""
    hold = hold_of(reason)
    if hold:
        return f"{'held' if hold == 'held' else 'Slurm could not start it on its nodes'} ({reason})"
    if reason in NEVER_STARTS:
        return f"{reason}: it never starts; end it, and ask for fewer nodes, a shorter walltime or another queue"
    return reason or "Slurm has not looked at it yet"


def _word(reason: str) -> str:
    """Return the reason as one word: squeue and scontrol differ in brackets and, in sentences, in blanks."""
    word = reason.strip("()")
    spaced = word.replace("_", " ")
    return spaced if spaced in HELD or spaced.endswith(FAILED) else word
