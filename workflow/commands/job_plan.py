"""What the site's scheduler would be asked, word for word, in both ways: for a job per run, and for one job for all."""

from __future__ import annotations

import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from cluster.schedulers.jobs import RUN, BatchJob, Jobs, JobSize, Work, mark_of
from workflow.dag.execution import jobs_at
from workflow.dag.image_file import images_file
from workflow.dag.job_size import run_size
from workflow.dag.requirements import is_prepared
from workflow.dag.run_job import run_job
from workflow.dag.submission import Width, plan_submission
from workflow.run.plan import supervisor_argv
from workflow.run.storage.failed_nodes import nodes_to_avoid
from workflow.study.cell import Cell, Run
from workflow.study.paths import run_dir
from workflow.study.study import Study

TOKEN: Final = "0" * 8


def job_of_run(study: Study, cell: Cell, run_id: str) -> BatchJob:
    """The job that `slipway run` submits for a run; its name ends in 8 digits that are drawn then."""
    results = str(study.results_dir)
    work = Work(mark=mark_of(study.name, results), rule=RUN, wildcards=run_id)
    command = shlex.join(supervisor_argv(sys.executable, results, run_id, images=images_file(study)))
    size = replace(
        run_size(cell, study.site, study.limits.walltime_s), exclude=nodes_to_avoid(run_dir(study.results_dir, run_id), time.time())
    )
    return run_job(work, size, f"exec {command}", results, TOKEN)


def run_words(jobs: Jobs, job: BatchJob) -> str:
    """The command that submits the job of a run."""
    return " ".join([jobs.SUBMIT, *(option.replace(TOKEN, "<token>") for option in jobs.options(job))])


def jobs_of_study(study: Study, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """For each kind of job that `slipway run` submits: how many, and the command of the first."""
    jobs = jobs_at(study.site)
    kinds: dict[JobSize, list[BatchJob]] = defaultdict(list)
    for run in runs:
        job = job_of_run(study, run.cell, run.run_id)
        kinds[job.size].append(job)
    return [{"jobs": len(found), jobs.SUBMIT: run_words(jobs, found[0])} for found in kinds.values()]


def submission_of(study: Study, runs: Sequence[Run]) -> dict[str, Any]:
    """What `slipway submit` would ask and execute now; its name ends in 8 digits that are drawn then."""
    jobs = jobs_at(study.site)
    job = plan_submission(study, runs, Width(), TOKEN, built=is_prepared(study, runs))
    return {jobs.SUBMIT: [option.replace(TOKEN, "<token>") for option in jobs.options(job)], "executes": list(job.argv)}
