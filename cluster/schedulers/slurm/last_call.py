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
from cluster.schedulers.slurm.query import job_info

logger = logging.getLogger(__name__)
PATIENCE_S = 3600.0


def watch_deadline(environ: Mapping[str, str], least_s: float) -> threading.Thread | None:
    """Send this process SIGTERM, by which Snakemake starts no more runs, when its job ends in `least_s`. None outside of a job.

    A run that starts later is refused by its supervisor; one by one, that would take long where many are left.
    """
    job_id = environ.get("SLURM_JOB_ID")
    if not job_id:
        return None
    thread = threading.Thread(target=_watch, args=(job_id, least_s), name="deadline", daemon=True)
    thread.start()
    return thread


def _watch(job_id: str, least_s: float) -> None:
    try:
        info = job_info(job_id, PATIENCE_S)
    except SchedulerOutputError as error:
        logger.warning("nobody knows when the job ends, so that runs may be started until it does: %s", error)
        return
    if info is None or info.end_time is None:
        return
    left = info.end_time - least_s - time.time()
    if left > 0:
        threading.Event().wait(left)
    logger.warning("the job ends in %.0f s: no more runs are started in it", info.end_time - time.time())
    os.kill(os.getpid(), signal.SIGTERM)
