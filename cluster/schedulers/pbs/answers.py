"""Ask PBS about jobs and nodes, and parse its answers into frozen values.

`qstat -f -F json` is read job by job: other users' jobs stand in it too, and one that cannot be read (OpenPBS writes numbers that are none,
and bytes that are no text) must not hide ours. Times are in the time zone of the asking process, which asks with TZ=UTC.
"""

import calendar
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from base.errors import SchedulerOutputError
from base.sanitize import ascii_int, text
from cluster.pbs_tasks.launcher import command
from cluster.schedulers.jobs import Hold, QueuedJob, Stage, parse_work
from cluster.schedulers.queries import ANSWER_S, PATIENCE_S, Server, ask, in_english

WORK: Final = "SLIPWAY_WORK"
"""The variable of a job of ours that says what it makes; `qstat -f` shows the variables of a job to everybody."""
_BEGIN: Final = re.compile(r'\t\t("(?:[^"\\]|\\.)*"):\t\{')
_END: Final = re.compile(r"\t\t\},?")
_CLOCK: Final = re.compile(r"([0-9]{1,9}):([0-9]{2}):([0-9]{2})")
_UNITS: Final = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}


def parse_jobs(answer: str) -> Iterator[QueuedJob]:
    """Yield the jobs in an answer of `qstat -f -F json`. Jobs that cannot be read are left out: they are of other users."""
    yield from (read_job(job_id, job) for job_id, job in parse_entries(answer).items())


def parse_entries(answer: str) -> dict[str, Mapping[str, object]]:
    """Parse an answer in JSON about jobs, nodes or queues into entries by name. Entries that cannot be read are left out."""
    found: dict[str, Mapping[str, object]] = {}
    for name, block in blocks(answer):
        try:
            value = json.loads(block, strict=False)
        except (ValueError, RecursionError):  # RecursionError: brackets in brackets
            continue
        if isinstance(value, dict):
            found[name] = value
    return found


def blocks(answer: str) -> Iterator[tuple[str, str]]:
    """Split an answer in JSON into its entries (jobs, nodes or queues) with their names. No value holds the end of a line."""
    name, lines = "", []
    for line in answer.split("\n"):
        begin = _BEGIN.fullmatch(line)
        if begin is not None:
            name, lines = json.loads(begin[1], strict=False), ["{"]
        elif lines and _END.fullmatch(line):
            yield name, "\n".join([*lines, "}"])
            lines = []
        elif lines:
            lines.append(line)


def read_job(job_id: str, job: Mapping[str, object]) -> QueuedJob:
    """Read one entry. A value that is missing, or is not what it should be, is unknown."""
    asked, variables = resources_of(job, "Resource_List"), resources_of(job, "Variable_List")
    letter, comment = _word(job.get("job_state")), _word(job.get("comment")).strip()
    stage, state = STATES.get(letter, ("runs", letter))  # a job with an unknown letter may run
    runs = whole(job.get("run_count")) or 0
    has_nodes = letter in ("R", "E", "S", "U", "F")
    hosts = tuple(dict.fromkeys(part.partition("/")[0] for part in _word(job.get("exec_host")).split("+") if part))
    started, walltime_s = time_of(job.get("stime")) if has_nodes else None, parse_clock(_word(asked.get("walltime")))
    ended_by = ended_by_of(letter, comment, whole(job.get("Exit_status")))
    return QueuedJob(
        job_id=job_id,
        stage=stage,
        state=state,
        why=plain_reason(letter, comment) if stage == "waits" else "",
        hold=hold_of(letter, comment),
        ended_by=ended_by,
        restarts=max(0, runs - 1) if has_nodes else runs,
        submitted=time_of(job.get("ctime")),
        expected=started,
        end=None if started is None or walltime_s is None else started + walltime_s,
        name=_word(job.get("Job_Name")),
        nodes=",".join(hosts),
        directory=_word(variables.get("PBS_O_WORKDIR")),
        lost=hosts[0] if ended_by == "not_started" and hosts else "",
        **parse_work(_word(variables.get(WORK))),
    )


def parse_size(text: str) -> int | None:
    """Convert `8gb`, `1048576kb` or `100` to bytes. Returns None for anything else."""
    match = re.fullmatch(r"([0-9]{1,15})([kmgt]?b?)", text.lower())
    unit = None if match is None else _UNITS.get(match[2])
    return None if match is None or unit is None else int(match[1]) * unit


def parse_clock(text: str) -> float | None:
    """Convert `26:03:00` to seconds. Returns None for anything else."""
    match = _CLOCK.fullmatch(text)
    return None if match is None else float(int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3]))


def time_of(value: object) -> float | None:
    """Convert `Sun Nov 22 05:54:44 2026` in UTC to unix seconds. Returns None for anything else."""
    try:
        return float(calendar.timegm(time.strptime(_word(value), "%a %b %d %H:%M:%S %Y")))
    except (ValueError, OverflowError):
        return None


def whole(value: object) -> int | None:
    """Return a whole number, which PBS may write as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    number = ascii_int(value.removeprefix("-"))
    return None if number is None else -number if value.startswith("-") else number


def _word(value: object) -> str:
    """Return a text. PBS writes a text that looks like a number as a number."""
    return str(value) if isinstance(value, str | int | float) else ""


def resources_of(entry: Mapping[str, object], key: str) -> Mapping[str, object]:
    """Return the resources, or variables, under a key of an entry; empty if there are none."""
    value = entry.get(key)
    return value if isinstance(value, dict) else {}


# Queries to the server of PBS about jobs.


SILENCE: Final = (
    "cannot connect to server",
    "Couldn't connect to cluster",
    "Connection refused",
    "Connection timed out",
    "Communication failure",
    "Premature end of message",
    "End of File",
    "Server shutting down",
    "No free connections",
    "Server connection table full",
)
"""Messages of PBS's commands while the server is silent: it is being restarted, busy, or cut off."""
NO_SERVER: Final = ("Unknown Host", "PBS_SERVER", "pbs.conf")
"""Messages of PBS's commands where no server is configured."""
GONE: Final = ("Unknown Job Id", "Job has finished")
"""Complaints about a job that is over: with job_history_enable the second, for a while."""
ROOT: Final = "Bad UID for job execution"


def pbs_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a command of PBS, which writes times in the zone of its caller."""
    return {**in_english(environ), "TZ": "UTC"}


PBS: Final = Server(
    title="PBS",
    name="the server of PBS",
    submit=("qsub",),
    job_id=r"^([0-9]+(?:\[\])?(?:\.\S+)?)$",
    list="qstat -u $USER",
    show="qstat -xf",
    cancel="qdel",
    silence=SILENCE,
    nowhere=NO_SERVER,
    nowhere_first=True,
    harmless=GONE,
    refusals=((ROOT, "PBS takes no jobs of root (or of a user that its nodes do not know): submit as an ordinary user"),),
    cluster="knows no server of PBS",
    advice="do this on a login node of the cluster",
    environment=pbs_environment,
    submission=pbs_environment,
    path=command,
)


def job_info(job_id: str, patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S, *, history: bool = False) -> QueuedJob | None:
    """Query the server for a job; with `history` also for one that is over, if PBS keeps those. Returns None for an unknown job."""
    answer = ask(PBS, ("qstat", *(("-x",) if history else ()), "-f", "-F", "json", job_id), patience_s, timeout_s)
    if not answer.strip():
        return None
    found = next((job for job in parse_jobs(answer) if job.job_id == job_id), None)
    if found is None:
        raise SchedulerOutputError(f"the answer of `qstat -f -F json {job_id}` holds no job that can be read: {text(answer, 400)!r}")
    return found


def query_jobs(
    job_ids: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S, *, history: bool = False
) -> tuple[QueuedJob, ...]:
    """Query each job, 0.1 s each: OpenPBS shows only the first of several in JSON, and the history of all users may span two weeks."""
    give_up = time.monotonic() + patience_s
    found = (job_info(job_id, max(0.0, give_up - time.monotonic()), timeout_s, history=history) for job_id in job_ids)
    return tuple(job for job in found if job is not None)


# The meaning of PBS's letters for the state of a job, of the ends of jobs, and of the reasons of their waits.


HELD: Final = "H"
STATES: Final[dict[str, tuple[Stage, str]]] = {
    "Q": ("waits", "queued"),
    HELD: ("waits", "held"),
    "W": ("waits", "waiting for its start time"),
    "T": ("waits", "in transit"),
    "R": ("runs", "running"),
    "B": ("runs", "begun"),
    "S": ("runs", "suspended"),
    "U": ("runs", "suspended"),
    "E": ("ends", "exiting"),
    "F": ("over", "finished"),
    "X": ("over", "expired"),
    "M": ("over", "moved to another server"),
}
OVER: Final = frozenset(letter for letter, (stage, _) in STATES.items() if stage == "over")
WALLTIME: Final = -29
NODE_LOST: Final = frozenset({-4, -5, -6, -20, -30})
"""Exit_status where a daemon of a node, or the way to it, was gone: it is negative where PBS says it, and not the job."""
NOT_STARTED: Final = frozenset({-1, -2})
"""Exit_status of a job that its first node could not start, and that PBS does not try again: a prologue has ended with 1."""
REQUEUED: Final = frozenset({-11, -12, -14, -15, -16, -18})
SIGNALLED: Final = 256
"""Exit_status of a job whose shell was ended by a signal: so much more than its number."""
TERM: Final = 15
TERMINATED: Final = "terminated by"
"""The words in the comment of a job that was deleted."""
FAILED: Final = "too many failed attempts to run"
"""The words in the comment of a job that PBS holds, since twenty starts failed."""


def ended_by_of(letter: str, comment: str, status: int | None) -> str | None:
    """Derive why PBS has ended a job, or ends it now. Returns None if its program ended by itself, or nobody ends it.

    A job that was deleted is `running` until its processes are gone.
    """
    if letter not in OVER:
        return "cancelled" if TERMINATED in comment else None
    if status == WALLTIME:
        return "timeout"
    if status in NODE_LOST:
        return "node_lost"
    if status in NOT_STARTED:
        return "not_started"
    if status in REQUEUED:
        return "requeued"
    if TERMINATED in comment or status == SIGNALLED + TERM or (status is None and letter == "F"):
        return "cancelled"
    return None


def hold_of(letter: str, comment: str) -> Hold:
    """Return the kind of hold of a job."""
    if letter != HELD:
        return ""
    return "failed" if FAILED in comment.lower() else "held"


def plain_reason(letter: str, comment: str) -> str:
    """Explain why a job waits, by PBS's own words."""
    if letter == HELD:
        words = "PBS could not start it" if hold_of(letter, comment) == "failed" else "held"
        return f"{words} ({comment})" if comment else words
    return comment or "PBS has not looked at it yet"
