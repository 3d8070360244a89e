"""End a study in time: when the job has too little time left for another run, Snakemake starts no more, waits for those that run, and
makes the tables."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Mapping

from base.errors import SchedulerOutputError
from cluster.schedulers.jobs import Jobs

logger = logging.getLogger(__name__)
PATIENCE_S = 3600.0


def watch_deadline(jobs: Jobs, environ: Mapping[str, str], least_s: float) -> threading.Thread:
    """Send this process SIGTERM, by which Snakemake starts no more runs, when the job that `environ` is of ends in `least_s`.

    A run that starts later is refused by its supervisor; one by one, that would take long where many are left.
    """
    thread = threading.Thread(target=_watch, args=(jobs, dict(environ), least_s), name="deadline", daemon=True)
    thread.start()
    return thread


def _watch(jobs: Jobs, environ: Mapping[str, str], least_s: float) -> None:
    try:
        end = jobs.end_of_job(environ, PATIENCE_S)
    except SchedulerOutputError as error:
        logger.warning("nobody knows when the job ends, so that runs may be started until it does: %s", error)
        return
    if end is None:
        return
    left = end - least_s - time.time()
    if left > 0:
        threading.Event().wait(left)
    logger.warning("the job ends in %.0f s: no more runs are started in it", end - time.time())
    os.kill(os.getpid(), signal.SIGTERM)
