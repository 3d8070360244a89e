"""Ask LSF about jobs and nodes, and parse its answers into frozen values.

A list has fields of our own choice (`bjobs -o`), which LSF since 9.1.1 and OpenLava both know. What no field of both holds (seconds of
times, why a job waits, why it has ended) stands in the long form, `bjobs -l`, whose lines are broken at 80 characters.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from base.sanitize import text
from cluster.schedulers.jobs import QueuedJob, Stage, parse_work
from cluster.schedulers.queries import ANSWER_S, PATIENCE_S, Server, ask, in_english, inherited_environ

DELIMITER: Final = "^"
FIELDS: Final = ("jobid", "stat", "submit_time", "start_time", "exec_host", "sub_cwd", "job_name")
"""The last may hold anything."""
FORMAT: Final = f"{' '.join(FIELDS)} delimiter='{DELIMITER}'"
HELD: Final = "PSUSP"
STAGES: Final[dict[str, Stage]] = {
    **dict.fromkeys(("PEND", "PSUSP", "WAIT"), "waits"),
    **dict.fromkeys(("RUN", "USUSP", "SSUSP", "PROV", "UNKWN"), "runs"),
    "ZOMBI": "ends",
    **dict.fromkeys(("DONE", "EXIT"), "over"),
}
ENDED_BY: Final = {
    **dict.fromkeys(("RUNLIMIT", "DEADLINE", "WINDOW"), "timeout"),
    **dict.fromkeys(("OWNER", "ADMIN", "FORCE_OWNER", "FORCE_ADMIN", "BUCKET_KILL"), "cancelled"),
    **dict.fromkeys(("PRE_EXEC_FAIL", "CWD_NOTEXIST"), "not_started"),
    **dict.fromkeys(("REQUEUE_OWNER", "REQUEUE_ADMIN", "REQUEUE_RC"), "requeued"),
    **dict.fromkeys(("PREEMPT", "LOAD", "RC"), "preempted"),
    **dict.fromkeys(("ZOMBIE", "REMOVE_HUNG_JOB", "UNKNOWN"), "node_lost"),
}
"""The reason for the word behind TERM_ of a job that LSF has ended."""
KILLED: Final = frozenset({130, 137, 143})
"""Exit codes by bkill's signals, INT, KILL and TERM: the only trace of the reason with OpenLava."""
EARLY_S: Final = 5.0
"""How long before its end a job that is ended counts as one whose time is over: LSF looks at run limits every few seconds."""
_MARGIN: Final = " " * 21
_BLOCK: Final = re.compile(r"^Job (?:Id )?<(?P<job>\d+)(?:\[\d+\])?>,", re.MULTILINE)
_EVENT: Final = re.compile(r"(?P<time>\w{3} \w{3} +\d+ \d\d:\d\d:\d\d(?: \d{4})?): (?P<words>.*)")
_LIMIT: Final = re.compile(r"^ RUNLIMIT\s*\n\s*(?P<minutes>\d+(?:\.\d+)?) min", re.MULTILINE)
_REASONS: Final = re.compile(r"^ PENDING REASONS:\s*\n(?P<lines>(?: .*\S.*\n)+)", re.MULTILINE)
_TERM: Final = re.compile(r"\bTERM_([A-Z_]+)")
_EXIT: Final = re.compile(r"Exited (?:with exit code|by signal) (\d+)")


@dataclass(frozen=True, kw_only=True)
class Details:
    """The long form of one job. Times are unix seconds; `started` is its last start."""

    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    how: str = ""
    """The end of the job, in LSF's words."""
    limit_s: float | None = None
    reasons: str = ""
    """The reason why the job waits."""

    @property
    def end(self) -> float | None:
        """Return the time when LSF ends the job, or None without a limit."""
        return None if self.started is None or self.limit_s is None else self.started + self.limit_s


def parse_list(answer: str, now: float, home: str) -> tuple[QueuedJob, ...]:
    """Parse the answer of `bjobs -noheader -o FORMAT`, oldest job first. The tasks of an array are one job.

    LSF's times have no year, which `now` completes, and whole minutes; directories below `home` are printed without it.
    """
    found: dict[str, QueuedJob] = {}
    for line in answer.split("\n"):  # a directory may hold other ends of lines
        words = line.split(DELIMITER, len(FIELDS) - 1)
        if len(words) != len(FIELDS) or not words[0].isdecimal():
            continue
        job_id, state, submitted, started, hosts, directory, title = (word.strip() for word in words)
        name, _, work = title.partition(" ")
        job = QueuedJob(
            job_id=job_id,
            stage=STAGES.get(state.upper(), "runs"),  # a job in an unknown state may run
            state=state.upper(),
            hold="held" if state.upper() == HELD else "",
            submitted=time_of(submitted, now),
            expected=time_of(started, now),
            name=name,
            nodes=_hosts(hosts),
            directory=_directory(directory, home),
            **parse_work(work),
        )
        found.setdefault(job_id, job)
    return tuple(sorted(found.values(), key=lambda job: (len(job.job_id), job.job_id)))


def with_details(job: QueuedJob, details: Details | None) -> QueuedJob:
    """Add what only the long form tells. None: LSF has forgotten the job."""
    known = details or Details()
    return replace(
        job,
        why=why_waiting(job, known) if job.waits else "",
        ended_by=None if details is None else ended_by_of(job.state, details),
        submitted=known.submitted or job.submitted,
        expected=known.started or job.expected,
        end=known.end,
    )


def parse_details(answer: str, now: float) -> dict[str, Details]:
    """Parse the answer of `bjobs -l ID ID`."""
    unfolded = answer.replace(f"\n{_MARGIN}", "")
    parts = _BLOCK.split(unfolded)[1:]
    return {job_id: _details(block, now) for job_id, block in zip(parts[::2], parts[1::2], strict=True)}


def _details(block: str, now: float) -> Details:
    submitted = started = ended = None
    how = ""
    for line in block.splitlines():
        event = _EVENT.match(line)
        if event is None:
            continue
        when, words = time_of(event["time"], now), event["words"]
        if words.startswith("Submitted"):
            submitted = when
        elif re.match(r"(\[\d+\] )?started\b|Starting\b", words, re.IGNORECASE):
            started, ended, how = when, None, ""
        elif words.startswith(("Done", "Exited", "Completed", "Termination")):
            ended, how = ended or when, f"{how}; {words}".strip("; ")
    limit, reasons = _LIMIT.search(block), _REASONS.search(block)
    return Details(
        submitted=submitted,
        started=started,
        ended=ended,
        how=how,
        limit_s=None if limit is None else float(limit["minutes"]) * 60,
        reasons="" if reasons is None else text(" ".join(reasons["lines"].split()).rstrip(";")),
    )


def ended_by_of(state: str, details: Details) -> str | None:
    """Derive from its long form why LSF has ended a job. Returns None if it has not, or if that is unknown."""
    if state != "EXIT":
        return None
    term = _TERM.search(details.how)
    if term is not None:
        return ENDED_BY.get(term[1])
    if details.started is None:
        return "cancelled"
    if details.ended is not None and details.end is not None and details.ended >= details.end:
        return "timeout"
    code = _EXIT.search(details.how)
    if code is None:
        return "node_lost" if "CPU time used is unknown" in details.how else None
    number = int(code[1])
    return "cancelled" if number in KILLED or (" by signal " in code[0] and number + 128 in KILLED) else None


def why_waiting(job: QueuedJob, details: Details) -> str:
    """Explain why a job waits, with LSF's own words, which people can search for."""
    if job.hold:
        return f"held ({details.reasons})" if details.reasons else "held"
    return details.reasons or "LSF has not looked at it yet, or does not say why"


def signal_of(history: str) -> str | None:
    """Find in the answer of `bhist -l` what somebody has requested since the last start of the job: `cancelled`, `requeued` or None."""
    since = re.split(r"^.*: Starting \(Pid.*$", history.replace(f"\n{_MARGIN}", ""), flags=re.MULTILINE)[-1]
    asked = re.findall(r": Signal <(\w+)> requested by user or administrator", since)
    if any(word.startswith("REQUEUE") for word in asked):
        return "requeued"
    return "cancelled" if {"KILL", "TERM", "INT"} & set(asked) else None


def time_of(words: str, now: float) -> float | None:
    """Convert LSF's local times, `Nov 22 05:58` (the last one) and `Sun Nov 22 05:58:40 2026`, to unix seconds."""
    parts = words.split()
    if parts and parts[0][:3].title() in ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"):
        parts = parts[1:]
    year = parts.pop() if len(parts) == 4 and parts[3].isdecimal() else str(datetime.fromtimestamp(now + 86400).year)
    if len(parts) != 3:
        return None
    form = "%b %d %H:%M:%S %Y" if parts[2].count(":") == 2 else "%b %d %H:%M %Y"
    try:
        found = datetime.strptime(f"{' '.join(parts)} {year}", form)  # noqa: DTZ007 - LSF says local time, without its zone
        if found > datetime.fromtimestamp(now) + timedelta(days=1):
            found = found.replace(year=found.year - 1)
        return found.timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _hosts(words: str) -> str:
    """Format `8*n1 8*n2` and `8*n1:8*n2` for people."""
    return "" if words == "-" else ",".join(word.partition("*")[2] or word for word in re.split(r"[\s:]+", words))


def _directory(words: str, home: str) -> str:
    below = words.removeprefix("$HOME").lstrip("/") if words.startswith("$HOME") else words
    if below in ("-", ""):
        return home
    return below if below.startswith("/") else f"{home}/{below}"


def parse_queues(answer: str) -> tuple[str, ...]:
    """Parse the names in the answer of `bqueues -w`."""
    return tuple(words[0] for line in answer.splitlines()[1:] if (words := line.split()))


# Queries to mbatchd about jobs.


SILENCE: Final = (
    "daemon not responding",
    "LSF is down",
    "Cannot connect to LSF",
    "LIM is down",
    "LIM is not responding",
    "Communication time out",
    "Connection reset by peer",
    "Connection refused",
    "Failed in sending/receiving a message",
    "Server host is not responding",
)
"""Messages of LSF's commands while mbatchd or lim is silent. Most of the commands wait until it is back."""
NO_CLUSTER: Final = ("LSF_ENVDIR", "lsf.conf", "LSF_CONFDIR", "ls_initdebug", "Unable to open file")
"""Messages of LSF's commands where no cluster is configured."""
NO_SUCH_JOB: Final = (
    *("is not found", "No matching job found", "No job found", "No unfinished job found", "No pending job found"),
    *("Job has already finished", "Job has finished", "No such job", "Operation has already been", "is being terminated"),
)
CLUSTER: Final = ("LSF_ENVDIR", "LSF_SERVERDIR", "LSF_BINDIR", "LSF_LIBDIR", "XLSF_UIDDIR", "EGO_TOP", "EGO_CONFDIR")
"""Variables by which the commands find their cluster."""
NOT_INHERITED: Final = ("SLURM_", "SBATCH_", "LSB_")


def submit_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a job inherits, and those that bsub needs."""
    inherited = {name: value for name, value in inherited_environ(environ).items() if not name.startswith(NOT_INHERITED)}
    return in_english({**inherited, **{name: environ[name] for name in CLUSTER if name in environ}})


LSF: Final = Server(
    title="LSF",
    name="LSF's mbatchd",
    submit=("bsub",),
    job_id=r"^Job <(\d+)> is submitted",
    list="bjobs -w",
    show="bjobs -l",
    cancel="bkill",
    silence=SILENCE,
    nowhere=NO_CLUSTER,
    cluster="belongs to no cluster of LSF",
    advice="source the cluster's profile.lsf",
    harmless=NO_SUCH_JOB,
    on_both=True,
    submission=submit_environ,
)


def listed_jobs(patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S, *more: str) -> tuple[QueuedJob, ...]:
    """Query this user's jobs that are not over. `more` are options and ids of bjobs, such as `-a` for jobs that are over too."""
    answer = ask(LSF, ("bjobs", "-noheader", *more[:1], "-o", FORMAT, *more[1:]), patience_s, timeout_s)
    return parse_list(answer, time.time(), str(Path.home()))


def job_details(job_ids: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> dict[str, Details]:
    """Query the long form of jobs, by one query. A job that LSF has forgotten is not among them."""
    return parse_details(ask(LSF, ("bjobs", "-l", *job_ids), patience_s, timeout_s), time.time()) if job_ids else {}
