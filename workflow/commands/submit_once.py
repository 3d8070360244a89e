"""A submission that is asked for again, since nobody heard its answer, is done once.

Its job has a name that is made of a token, by which the scheduler finds it; a note on storage, made after the submission, says it when the
scheduler has forgotten. Whoever submits has claimed the token, so that two who ask at once, on two login nodes, do not both submit.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Final

from base.errors import RecordError, SubmitError, SubmitUnsure
from base.jsonfile import json_line, publish_json, read_json
from base.publish import publish_new
from cluster.holding import holder_of
from cluster.schedulers import get_scheduler
from cluster.schedulers.jobs import BatchJob, Jobs, QueuedJob, job_name
from cluster.schedulers.local import NAME as LOCAL
from cluster.types import Holder
from workflow.commands.watching import show
from workflow.study.study import Study

LOOK_S: Final = 600.0
SETTLE_S: Final = 3.0
"""How long a job may be on its way into the queue when its submitter died."""
CLAIM_S: Final = 900.0
"""How long somebody submits at the most, who cannot be asked since he is on another machine."""
PAUSE_S: Final = 2.0


def submitted_as(study: Study, jobs: Jobs, token: str) -> QueuedJob | None:
    """The job of this token, also where the scheduler has forgotten it; None where there is none. Raises SchedulerSilent."""
    name = job_name(study.name, token)
    noted = _noted(study, token)
    if noted is None and not _claim(study, token, 1).exists():
        return None  # nobody has begun
    found = jobs.jobs_named(name, LOOK_S)
    if found:
        return found[-1]
    return None if noted is None else QueuedJob(job_id=noted, name=name, stage="over", state="gone")


def submit_once(study: Study, jobs: Jobs, job: BatchJob, token: str) -> str:
    """The id of the one job of this token. Raises SubmitError, SchedulerSilent."""
    number, told = 1, False
    while not publish_new(_claim(study, token, number), json_line(holder_of(os.getpid(), LOCAL, "submit", 0).to_json())):
        if not told:
            show.aside("the same submission is at work in another process; it is waited for")
            told = True
        noted = _await_end(study, token, number)
        if noted is not None:
            return noted
        number += 1
    if number > 1:  # whoever began has died, perhaps after sbatch
        time.sleep(SETTLE_S)
        if found := jobs.jobs_named(job.name, LOOK_S):
            return _note(study, token, found[-1].job_id)
    try:
        return _note(study, token, jobs.submit(job, LOOK_S))
    except SubmitUnsure:  # it may be in the queue: who asks again looks there first
        raise
    except SubmitError:
        _claim(study, token, number).unlink(missing_ok=True)  # refused: the next try is a new one
        raise


def _await_end(study: Study, token: str, number: int) -> str | None:
    """Until that claim's process has noted the job, which is told, or has died."""
    path, give_up = _claim(study, token, number), time.monotonic() + CLAIM_S
    while True:
        alive = _alive(path)
        noted = _noted(study, token)
        if noted is not None or alive is False or not path.exists() or time.monotonic() > give_up:
            return noted
        time.sleep(PAUSE_S)


def _alive(claim: Path) -> bool | None:
    try:
        holder = Holder(**read_json(claim))
    except (RecordError, TypeError):
        return None  # not whole yet
    return get_scheduler(LOCAL).holder_alive(holder)


def _noted(study: Study, token: str) -> str | None:
    """Raises RecordError for a note that is none."""
    path = _file(study, token)
    if not path.exists():
        return None
    found: Any = read_json(path)
    if not isinstance(found, dict) or not isinstance(found.get("job_id"), str):
        raise RecordError(f"{path}: found {found!r}, and no job_id")
    job_id: str = found["job_id"]
    return job_id


def _note(study: Study, token: str, job_id: str) -> str:
    publish_json(_file(study, token), {"job_id": job_id})
    return job_id


def _file(study: Study, token: str) -> Path:
    return study.results_dir / "logs" / f"submission-{token}.json"


def _claim(study: Study, token: str, number: int) -> Path:
    return study.results_dir / "logs" / f".submission-{token}.{number}"
