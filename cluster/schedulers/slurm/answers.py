"""What Slurm's commands answer, read into frozen values. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from base.errors import SchedulerOutputError
from base.foreign import digits

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


def parse_node_reasons(text: str) -> tuple[str, ...]:
    """Return why nodes are drained or down, of the answer of `scontrol -o show node`."""
    return tuple(reason for line in text.splitlines() if (reason := fields_of(line).get("Reason")))


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
