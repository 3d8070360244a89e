"""What PBS's commands answer, read into frozen values; nothing is asked here.

`qstat -f -F json` is read job by job: other users' jobs stand in it too, and one that cannot be read (OpenPBS writes numbers that are none,
and bytes that are no text) must not hide ours. Times are in the time zone of the asking process, which asks with TZ=UTC.
"""

from __future__ import annotations

import calendar
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from base.foreign import digits

WORK: Final = "SLIPWAY_WORK"
"""The variable of a job of ours that says what it makes; `qstat -f` shows the variables of a job to everybody."""
_BEGIN: Final = re.compile(r'\t\t("(?:[^"\\]|\\.)*"):\t\{')
_END: Final = re.compile(r"\t\t\},?")
_CLOCK: Final = re.compile(r"([0-9]{1,9}):([0-9]{2}):([0-9]{2})")
_UNITS: Final = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40}


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    """A job as the server sees it. Times are unix seconds; None where PBS does not know them (yet)."""

    job_id: str
    name: str
    owner: str
    """The user's name."""
    state: str
    """One letter: Q, H, W, T, R, E, S, U, B, F, X, M."""
    comment: str = ""
    holds: str = ""
    """Who holds it: `u`ser, `o`perator, `s`ystem; `n`obody."""
    restarts: int = 0
    exit_status: int | None = None
    hosts: tuple[str, ...] = ()
    submitted: float | None = None
    started: float | None = None
    """Of its current start; of a job that waits, of none."""
    walltime_s: float | None = None
    """None: no limit."""
    work: str = ""
    directory: str = ""


def parse_jobs(answer: str) -> Iterator[JobInfo]:
    """The jobs in an answer of `qstat -f -F json`; one that cannot be read is of nobody we know."""
    for job_id, block in blocks(answer):
        try:
            job = json.loads(block, strict=False)
        except (ValueError, RecursionError):  # RecursionError: brackets in brackets
            continue
        if isinstance(job, dict):
            yield read_job(job_id, job)


def blocks(answer: str) -> Iterator[tuple[str, str]]:
    """The entries of the second level of an answer in JSON, with their names: jobs, nodes, queues. No value holds the end of a line."""
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


def read_job(job_id: str, job: Mapping[str, Any]) -> JobInfo:
    """Pure: of one entry. What is not there, or is not what it should be, is not known."""
    asked, variables = _mapping(job.get("Resource_List")), _mapping(job.get("Variable_List"))
    state = _word(job.get("job_state"))
    runs = whole(job.get("run_count")) or 0
    has_nodes = state in ("R", "E", "S", "U", "F")
    return JobInfo(
        job_id=job_id,
        name=_word(job.get("Job_Name")),
        owner=_word(job.get("Job_Owner")).rpartition("@")[0],
        state=state,
        comment=_word(job.get("comment")).strip(),
        holds=_word(job.get("Hold_Types")),
        restarts=max(0, runs - 1) if has_nodes else runs,
        exit_status=whole(job.get("Exit_status")),
        hosts=hosts_of(_word(job.get("exec_host"))),
        submitted=time_of(job.get("ctime")),
        started=time_of(job.get("stime")) if has_nodes else None,
        walltime_s=parse_clock(_word(asked.get("walltime"))),
        work=_word(variables.get(WORK)),
        directory=_word(variables.get("PBS_O_WORKDIR")),
    )


def hosts_of(exec_host: str) -> tuple[str, ...]:
    """The names in `n1/0*8+n2/0`, each once, in order."""
    return tuple(dict.fromkeys(part.partition("/")[0] for part in exec_host.split("+") if part))


def parse_size(text: str) -> int | None:
    """Bytes of `8gb`, `1048576kb` or `100`; None for what is no size."""
    match = re.fullmatch(r"([0-9]{1,15})([kmgt]?b?)", text.lower())
    unit = None if match is None else _UNITS.get(match[2])
    return None if match is None or unit is None else int(match[1]) * unit


def parse_clock(text: str) -> float | None:
    """Seconds of `26:03:00`; None for what is none."""
    match = _CLOCK.fullmatch(text)
    return None if match is None else float(int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3]))


def time_of(value: object) -> float | None:
    """Unix seconds of `Sun Nov 22 05:54:44 2026` in UTC; None for what is no such time."""
    try:
        return float(calendar.timegm(time.strptime(_word(value), "%a %b %d %H:%M:%S %Y")))
    except (ValueError, OverflowError):
        return None


def whole(value: object) -> int | None:
    """A whole number; PBS writes some as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    number = digits(value.removeprefix("-"))
    return None if number is None else -number if value.startswith("-") else number


def parse_version(text: str) -> str | None:
    """The number in `pbs_version = 23.06.06`."""
    match = re.search(r"pbs_version\s*=\s*(\S+)", text)
    return match[1] if match else None


def _word(value: object) -> str:
    """Text; PBS writes what looks like a number as a number."""
    return str(value) if isinstance(value, str | int | float) else ""


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
