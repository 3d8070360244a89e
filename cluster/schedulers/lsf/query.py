"""What mbatchd knows of jobs: short questions, asked again while it is silent.

Everything here may wait up to `patience_s`: processes that must not, call it in a child with a time limit.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cluster.schedulers.asking import Server, ask
from cluster.schedulers.limits import ANSWER_S, PATIENCE_S
from cluster.schedulers.lsf.answers import FORMAT, Details, Listed, parse_details, parse_list

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
"""What LSF's commands say when mbatchd or lim does not answer: it is restarted, busy, or cut off. Most of them wait until it is back."""
NO_CLUSTER: Final = ("LSF_ENVDIR", "lsf.conf", "LSF_CONFDIR", "ls_initdebug", "Unable to open file")
"""What they say where no cluster is configured."""
NO_SUCH_JOB: Final = (
    *("is not found", "No matching job found", "No job found", "No unfinished job found", "No pending job found"),
    *("Job has already finished", "Job has finished", "No such job", "Operation has already been", "is being terminated"),
)
LSF: Final = Server(
    title="LSF",
    name="mbatchd",
    silence=SILENCE,
    nowhere=NO_CLUSTER,
    cluster="belongs to no cluster of LSF",
    advice="source the cluster's profile.lsf",
    harmless=NO_SUCH_JOB,
    on_both=True,
)


def listed_jobs(patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S, *more: str) -> tuple[Listed, ...]:
    """All of this user that are not over; `more`: options and ids of bjobs, such as `-a` for those that are over too."""
    answer = ask(LSF, ("bjobs", "-noheader", *more[:1], "-o", FORMAT, *more[1:]), patience_s, timeout_s)
    return parse_list(answer, time.time(), str(Path.home()))


def job_details(job_ids: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> dict[str, Details]:
    """The long form of these jobs, by one question; a job that LSF has forgotten is not among them."""
    return parse_details(ask(LSF, ("bjobs", "-l", *job_ids), patience_s, timeout_s), time.time()) if job_ids else {}
