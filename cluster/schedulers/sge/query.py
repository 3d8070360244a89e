"""What qmaster knows of jobs: short questions, asked again while it is silent.

Everything here may wait up to `patience_s`: processes that must not, call it in a child with a time limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from base.account import account_name
from cluster.schedulers.asking import Server, ask, asked, refusal
from cluster.schedulers.limits import ANSWER_S, PATIENCE_S
from cluster.schedulers.sge.answers import Listed, parse_details, parse_list

SILENCE: Final = (
    "unable to send message to qmaster",
    "unable to contact qmaster",
    "got select error",
    "got send error",
    "got read error",
    "got no connection",
    "can't connect to service",
    "failed receiving gdi request",
    "communication error",
)
"""What Grid Engine's commands say when qmaster does not answer: it is restarted, busy, or cut off."""
NO_CELL: Final = ("SGE_ROOT", "cell directory", "act_qmaster")
"""What they say where no cell is configured."""
NO_SUCH_JOB: Final = ("do not exist", "does not exist", "not found")
SGE: Final = Server(
    title="Grid Engine",
    name="sge_qmaster",
    silence=SILENCE,
    nowhere=NO_CELL,
    cluster="belongs to no cell of Grid Engine",
    advice="source the cell's settings.sh, do this on a submit host",
    refusals=(("neither submit nor admin host", "do this on a submit host, or ask the site for `qconf -as` of this one"),),
    on_both=True,
    dull=("Exiting.",),
)


def listed_jobs(
    patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S, states: str = "prs", queues: Sequence[str] = ()
) -> tuple[Listed, ...]:
    """All of this user in the queue; with `z` among the states also those that have just ended. `queues`: words that choose by the queue
    of a job's first node."""
    return parse_list(ask(SGE, ("qstat", "-xml", "-r", *queues, "-s", states, "-u", account_name()), patience_s, timeout_s))


def job_details(job_ids: Sequence[str], patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> dict[str, dict[str, str]]:
    """Fields by job, by one question; a job that is over is not among them."""
    if not job_ids:
        return {}
    result = asked(SGE, ("qstat", "-j", ",".join(job_ids)), patience_s, timeout_s)
    if result.returncode and not any(words in result.stdout + result.stderr for words in NO_SUCH_JOB):
        raise refusal(SGE, result)
    return parse_details(result.stdout)


def listed_job(job_id: str, patience_s: float = PATIENCE_S) -> Listed | None:
    """The job of that id, if it is in the queue."""
    return next((job for job in listed_jobs(patience_s) if job.job_id == job_id), None)
