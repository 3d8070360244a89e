"""Read what Slurm's commands answer into frozen values."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from base.errors import SchedulerOutputError, SchedulerSilent, SlipwayError
from base.machine_files import machine_text
from base.sanitize import digits
from cluster.schedulers.jobs import Hold
from cluster.schedulers.queries import ANSWER_S, PATIENCE_S, Server, ask, in_english, one_try

NEVER: Final = ("Unknown", "None", "N/A", "NONE", "(null)", "")
LATEST: Final = 2**33
"""Unix seconds: the year 2242. Of later times the C library makes no date everywhere."""
NO_LIMIT: Final = ("UNLIMITED", "infinite", "Partition_Limit", "NOT_SET", "INVALID")
_DURATION: Final = re.compile(r"(?:([0-9]{1,9})-)?([0-9]{1,9})(?::([0-9]{1,9}))?(?::([0-9]{1,9}))?")
_FIELD: Final = re.compile(r"(?:^|\s)([A-Za-z][\w:/]*)=(.*?)(?=\s[A-Za-z][\w:/]*=|\s*$)")


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    """A job as slurmctld sees it. Times are unix seconds; None where Slurm does not know them (yet)."""

    job_id: str
    name: str
    state: str
    """PENDING, RUNNING, COMPLETING, COMPLETED, CANCELLED, FAILED, TIMEOUT, NODE_FAIL, PREEMPTED, REQUEUED, SUSPENDED ..."""
    reason: str | None
    restarts: int
    node_list: str
    """In Slurm's short form; empty while the job has no nodes."""
    submit_time: float | None
    start_time: float | None
    """For a pending job: when Slurm expects to start it."""
    end_time: float | None
    time_limit_s: float | None
    """None: no limit."""
    preempt_time: float | None = None
    requeue: bool
    """Whether Slurm may put it back into the queue."""


def parse_version(text: str) -> str | None:
    """The number in `slurm-wlm 22.05.8` or `slurm 24.05.3`."""
    match = re.search(r"\b(\d+\.\d+\.\d+\S*)", text)
    return match[1] if match else None


def parse_job(text: str, job_id: str) -> JobInfo | None:
    """The answer of `scontrol -o show job ID`: one line per job, of which arrays and heterogeneous jobs have several."""
    lines = [line for line in text.splitlines() if line.startswith("JobId=")]
    if not lines:
        return None
    line = next((line for line in lines if line.split(None, 1)[0] == f"JobId={job_id}"), lines[0])
    head, owner, tail = _split_name(line)
    fields = fields_of(f"{owner} {tail}")
    try:
        return JobInfo(
            job_id=line.split(None, 1)[0].partition("=")[2],
            name=head.partition("JobName=")[2],
            state=state_word(fields["JobState"]),
            reason=_text(fields.get("Reason", "")),
            restarts=_count(fields.get("Restarts") or "0"),
            node_list=_text(fields.get("NodeList", "")) or "",
            submit_time=_time(fields.get("SubmitTime", "")),
            start_time=_time(fields.get("StartTime", "")),
            end_time=_time(fields.get("EndTime", "")),
            preempt_time=_time(fields.get("PreemptTime", "")),
            time_limit_s=parse_duration(fields.get("TimeLimit", "")),
            requeue=fields.get("Requeue", "0") == "1",
        )
    except (KeyError, ValueError) as error:
        raise SchedulerOutputError(f"the answer of `scontrol -o show job {job_id}` cannot be read ({error}): {line[:400]!r}") from error


def parse_node_addresses(text: str) -> dict[str, str]:
    """NodeAddr by NodeName, of the answer of `scontrol -o show node`."""
    lines = [fields_of(line) for line in text.splitlines()]
    return {line["NodeName"]: line["NodeAddr"] for line in lines if line.get("NodeName") and line.get("NodeAddr")}


def parse_failed_starts(text: str) -> frozenset[str]:
    """Return the names of the nodes that Slurm has drained because they could not start a job, from the answer to NODE_REASONS. Raises
    SchedulerOutputError."""
    lines = (line.partition("|") for line in text.splitlines())
    return frozenset(name for nodes, _, reason in lines if reason.startswith(NOT_STARTED) for name in expand(nodes))


def fields_of(line: str) -> dict[str, str]:
    """The fields of one line of `scontrol -o show`: words before `=`, and what stands up to the next such word."""
    return dict(_FIELD.findall(line))


def parse_duration(text: str) -> float | None:
    """Seconds of `1-02:03:04`, `1-02`, `02:03:04`, `03:04` or `3` (minutes); None for UNLIMITED and what is not set. Raises ValueError."""
    if text in NEVER or text in NO_LIMIT:
        return None
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a duration")
    days, *clock = (int(part or "0") for part in match.groups())
    if match[1] is None and match[4] is None:
        clock = [0, *clock[:2]]
    hours, minutes, seconds = clock
    return float(days * 86400 + hours * 3600 + minutes * 60 + seconds)


def _count(word: str) -> int:
    found = digits(word)
    if found is None:
        raise ValueError(f"{word[:40]!r} is not a number")
    return found


def _split_name(line: str) -> tuple[str, str, str]:
    """The part with the job's name, which may hold anything, and what follows."""
    match = re.search(r" UserId=\S*\(\d+\)(?= )", line)
    if match is None:
        raise SchedulerOutputError(f"scontrol answered {line[:200]!r}, which names no UserId=: not the line of a job")
    return line[: match.start()], match[0], line[match.end() :]


def state_word(text: str) -> str:
    """The first of the states that Slurm tells at once."""
    return re.split(r"[,+ ]", text)[0]


def _text(text: str) -> str | None:
    return None if text in NEVER else text


def time_of(text: str) -> float | None:
    """Unix seconds; None for what is none, or later than LATEST."""
    found = digits(text)
    return None if not found or found > LATEST else float(found)


def _time(text: str) -> float | None:
    """The same. Raises ValueError for what is neither a time nor unknown."""
    found = time_of(text)
    if found is None and text not in (*NEVER, "0"):
        raise ValueError(f"{text[:40]!r} is no time")
    return found


# The variables that Slurm gives a job, also where somebody has taken them away: Snakemake's jobstep removes all but the job's id.
#
# They stand in the initial environment of the batch script and of the tasks of steps, which /proc keeps: first our ancestors are read, then
# our other processes of the same job on this node. Nothing is asked of the controller.


JOB_ID: Final = "SLURM_JOB_ID"
RESTART_COUNT: Final = "SLURM_RESTART_COUNT"
NODE_LIST: Final = "SLURM_JOB_NODELIST"
PREFIXES: Final = ("SLURM_", "SLURMD_")
STEP_PREFIXES: Final = ("SLURM_STEP", "SLURM_TASK", "SLURM_SRUN_", "SLURM_LAUNCH_", "SLURM_CPU_BIND", "SLURM_MPI")
STEP_VARIABLES: Final = frozenset(
    {"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_STEPID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_DISTRIBUTION"}
)
"""What belongs to one task or step, and says nothing of the job."""
ANCESTORS: Final = 64


def job_environ(environ: Mapping[str, str], proc: Path = Path("/proc"), pid: int | None = None) -> dict[str, str]:
    """Slurm's variables of the job that `environ` belongs to; what `environ` itself says comes first. Empty outside of a job.

    `pid`: the process whose ancestors are looked at; ours if left out.
    """
    own = slurm_variables(environ)
    job_id = own.get(JOB_ID)
    if not job_id:
        return {}
    found = dict(own)
    if is_whole(found):
        return found
    for other in _environments(proc, os.getpid() if pid is None else pid, job_id):
        found = {**{key: value for key, value in other.items() if not is_of_step(key)}, **found}
        if is_whole(found):
            break
    return found


def is_whole(variables: Mapping[str, str]) -> bool:
    """Whether these come from the batch script or salloc: a step that was started without their variables has no such counts, and then no
    restart count either (which the batch script lacks only while it is 0)."""
    return NODE_LIST in variables and "SLURM_JOB_CPUS_PER_NODE" in variables


def slurm_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Of `environ`, what Slurm sets, but for what is empty."""
    return {key: value for key, value in environ.items() if key.startswith(PREFIXES) and value}


def is_of_step(name: str) -> bool:
    """Whether a variable tells of one step or task only."""
    return name in STEP_VARIABLES or name.startswith(STEP_PREFIXES)


def _environments(proc: Path, pid: int, job_id: str) -> Iterator[dict[str, str]]:
    """Slurm's variables in the initial environments of our ancestors, nearest first, then of our other processes of this job."""
    seen = set()
    for ancestor in _ancestors(proc, pid):
        seen.add(ancestor)
        variables = _read(proc, ancestor)
        if variables.get(JOB_ID) == job_id:
            yield variables
    for entry in sorted((entry.name for entry in proc.iterdir() if entry.name.isdigit()), key=int):
        if int(entry) not in seen and int(entry) != pid:
            variables = _read(proc, int(entry))
            if variables.get(JOB_ID) == job_id:
                yield variables


def _ancestors(proc: Path, pid: int) -> Iterator[int]:
    for _ in range(ANCESTORS):
        tail = machine_text(proc / str(pid) / "stat").rpartition(")")[2].split()
        pid = (digits(tail[1]) if len(tail) > 1 else None) or 0
        if pid <= 1:
            return
        yield pid


def _read(proc: Path, pid: int) -> dict[str, str]:
    """Slurm's variables of another process; none if it is not ours to read."""
    try:
        raw = (proc / str(pid) / "environ").read_bytes()
    except OSError:
        return {}
    pairs = (entry.partition("=") for entry in raw.decode(errors="replace").split("\0"))
    return slurm_variables({key: value for key, _, value in pairs})


# Slurm's short form of lists: `rack[1-2]n[01-04,7],x1-ib` of names, `2(x3),1` of counts. Pure.


LONGEST: Final = 100_000
MAX_GROUPS: Final = 64
MAX_TEXT: Final = 1 << 20
_GROUP: Final = re.compile(r"\[([^\[\]]*)\]")
_RANGE: Final = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_COUNT: Final = re.compile(r"([0-9]{1,18})(?:\(x([0-9]{1,9})\))?")


def expand(text: str) -> tuple[str, ...]:
    """The names in their order: any number of bracket groups and suffixes, zeros in front kept. Raises SchedulerOutputError."""
    if len(text) > MAX_TEXT:
        raise SchedulerOutputError(f"{text[:80]!r} and {len(text) - 80} more characters: that is not a node list of a job")
    names: list[str] = []
    for word in _words(text):
        names += _expand_word(word, text)
        if len(names) > LONGEST:
            raise SchedulerOutputError(f"{text[:80]!r} stands for more than {LONGEST} nodes: that is not a node list of a job")
    return tuple(names)


def expand_counts(text: str) -> tuple[int, ...]:
    """One number per node, as in SLURM_JOB_CPUS_PER_NODE. Raises SchedulerOutputError."""
    counts: list[int] = []
    for word in text.split(","):
        match = _COUNT.fullmatch(word.strip())
        times = int(match[2] or 1) if match else 0
        if match is None or times + len(counts) > LONGEST:
            raise SchedulerOutputError(f"{text[:200]!r} is not a list of counts such as '2(x3),1': {word[:80]!r} cannot be read")
        counts += [int(match[1])] * times
    return tuple(counts)


def _words(text: str) -> list[str]:
    """Split at the commas outside of brackets."""
    words, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise SchedulerOutputError(f"{text[:200]!r} is not a node list: its brackets do not match")
        if letter == "," and depth == 0:
            words.append(text[start:position])
            start = position + 1
    words.append(text[start:])
    if depth or not all(word.strip() for word in words):
        raise SchedulerOutputError(f"{text[:200]!r} is not a node list such as 'rack[1-2]n[01-04,7],x1'")
    return [word.strip() for word in words]


def _expand_word(word: str, text: str) -> list[str]:
    parts = _GROUP.split(word)
    choices, total = [], 1
    for index, part in enumerate(parts):
        choices.append(_expand_group(part, text) if index % 2 else [part])
        total *= len(choices[-1])
        if total > LONGEST or len(choices) > MAX_GROUPS:
            raise SchedulerOutputError(f"{text[:80]!r} stands for more than {LONGEST} nodes: that is not a node list of a job")
    return ["".join(pieces) for pieces in itertools.product(*choices)]


def _expand_group(group: str, text: str) -> list[str]:
    found: list[str] = []
    for part in group.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise SchedulerOutputError(f"{text[:200]!r} is not a node list: {part[:80]!r} is not a number or a range")
        first, last = match[1], match[2] or match[1]
        if not 0 <= int(last) - int(first) < LONGEST:
            raise SchedulerOutputError(f"{text[:200]!r} is not a node list: the range {part[:80]!r} runs backwards, or is very long")
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
        if len(found) > LONGEST:
            raise SchedulerOutputError(f"{text[:80]!r} stands for more than {LONGEST} nodes: that is not a node list of a job")
    return found


# Time limits that only Slurm has.


SHORT_ANSWER_S: Final = 12.0
"""How long one command may take where somebody waits: Slurm's own commands give up after MessageTimeout, 10 s where the site
has not changed it."""
REQUEUE_PATIENCE_S: Final = 30.0
"""How long a controller that is silent is asked again to put a job back into the queue."""

ASKED_WITHIN_S: Final = 60.0
"""Slurm is asked within this time why a job has ended."""
SLOW_STEP_S: Final = 10.0
"""A step that takes longer is called slow."""
SLOW_CONTROLLER_S: Final = 2.0
"""A controller that takes longer to answer is called busy."""
NODE_STOP_S: Final = 10.0
"""A node program needs at most this long to stop all that it started: KillWait should be longer."""


# The partitions of a cluster and their nodes, from the answers of scontrol and sinfo. Pure.


SHOW: Final = ("scontrol", "--oneliner", "show", "partition")
SINFO: Final = ("sinfo", "--noheader", "--exact", "--format=%R|%D|%T|%c|%m|%G|%f")
MIB: Final = 1 << 20
DOWN: Final = ("down", "drain", "fail", "maint", "unknown", "error", "power", "reboot", "no_respond")
_GPU: Final = re.compile(r"(?:^|,)gpu(?::([A-Za-z][\w.-]*))?:([0-9]{1,9})(?![0-9])")
_NUMBER: Final = re.compile(r"([0-9]{1,9})(?![0-9])")
"""At most 9 digits: larger sizes do not exist."""

Partition = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Nodes:
    """So many nodes of a partition that are alike. `cpus` and `memory_bytes` are lower bounds where sinfo says `64+`."""

    partition: str
    count: int
    state: str
    cpus: int
    memory_bytes: int
    gpus: int = 0
    gpu_model: str = ""

    @property
    def usable(self) -> bool:
        """Whether a job can run there, now or later."""
        return not any(word in self.state for word in DOWN) and not self.state.endswith("*")


def parse_partitions(text: str) -> dict[str, Partition]:
    """The lines of `SHOW`, by name."""
    lines = [fields_of(line) for line in text.splitlines()]
    return {line["PartitionName"]: line for line in lines if "PartitionName" in line}


def parse_nodes(text: str) -> tuple[Nodes, ...]:
    """The lines of `SINFO`; one that cannot be read is left out."""
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


def whole_number(text: str) -> int | None:
    """A number of at most 9 digits; None for words and what is no such number."""
    return int(text) if _NUMBER.fullmatch(text) else None


def longest_s(partition: Partition) -> float | None:
    """How long a job of the partition may take; None: for ever, or it cannot be read."""
    try:
        return parse_duration(partition.get("MaxTime", ""))
    except ValueError:
        return None


def default_partition(partitions: Mapping[str, Partition]) -> str | None:
    """The one that jobs go to that name none."""
    return next((name for name, line in partitions.items() if line.get("Default") == "YES"), None)


# What slurmctld knows of jobs: short questions, asked again while it is silent, with answers read into frozen values.
#
# Times are asked for as seconds since 1970 (SLURM_TIME_FORMAT=%s), so that no time zone has a part in them. Everything here may wait up to
# `patience_s`: processes that must not, call it in a child with a time limit.


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
"""What Slurm's commands say when slurmctld does not answer: it is restarted, busy, or cut off."""
NO_CLUSTER: Final = ("Could not establish a configuration source", "DNS SRV lookup failed", "Unable to process configuration file")
"""What they say where there is no slurm.conf, and no controller to ask for one."""
UNKNOWN_JOB: Final = ("Invalid job id specified", "Invalid job id")


def slurm_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for a command of Slurm: times as numbers, English, and the configuration of our job's cluster where it was taken away."""
    env = {**in_english(environ), "SLURM_TIME_FORMAT": "%s"}
    if "SLURM_CONF" not in env:
        configuration = job_environ(environ).get("SLURM_CONF")
        if configuration is not None:
            env["SLURM_CONF"] = configuration
    return env


SLURM: Final = Server(
    title="Slurm",
    name="slurmctld",
    silence=SILENCE,
    nowhere=NO_CLUSTER,
    cluster="belongs to no Slurm cluster",
    advice="do this on a login node of the cluster",
    environment=slurm_environment,
)


def job_info(job_id: str, patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> JobInfo | None:
    """What slurmctld knows of a job; None when it does not know it: it has ended, longer ago than MinJobAge, or never was."""
    try:
        answer = ask(SLURM, ("scontrol", "-o", "show", "job", job_id), patience_s, timeout_s)
    except SchedulerSilent:
        raise
    except SchedulerOutputError as error:
        if any(words in str(error) for words in UNKNOWN_JOB):
            return None
        raise
    return parse_job(answer, job_id)


def node_addresses(names: Sequence[str], patience_s: float = PATIENCE_S) -> dict[str, str]:
    """NodeAddr of each node, as far as slurmctld says it now; one question for all. Empty while it is silent."""
    if not names:
        return {}
    try:
        answer = ask(SLURM, ("scontrol", "-o", "show", "node", ",".join(names)), patience_s)
    except SchedulerOutputError:
        return {}
    return parse_node_addresses(answer)


def slurm_version() -> str | None:
    """Such as `22.05.8`; None where there is no Slurm that can be used."""
    try:
        result, _ = one_try(SLURM, ("scontrol", "--version"), ANSWER_S)
    except SlipwayError:
        return None
    return parse_version(result.stdout) if result is not None and result.returncode == 0 else None


# What Slurm's words for the state of a job mean, and why a job waits, in plain words. Pure.


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
NODE_REASONS: Final = ("sinfo", "--noheader", "--list-reasons", "--format=%N|%E")
"""Ask for the nodes that are drained or down, and why: few lines on a cluster of any size."""
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
    """Return the reason as one word: squeue and scontrol differ in brackets and, in sentences, in blanks."""
    word = reason.strip("()")
    spaced = word.replace("_", " ")
    return spaced if spaced in HELD or spaced.endswith(FAILED) else word
