"""Plan the jobs that the site's scheduler would be asked for, and refuse those that it would never start."""

from __future__ import annotations

import shlex
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cluster import schedulers
from cluster.schedulers.jobs import RUN, BatchJob, JobSize, Work, mark_of
from workflow.dag import execution, job_size, requirements, submission, watched_jobs
from workflow.run import plan as run_plan
from workflow.run.storage.results import nodes_to_avoid
from workflow.study import paths
from workflow.study.cell import Cell, Run
from workflow.study.study import Study

JOB_TOKEN: Final = "0" * 8


def job_of_run(study: Study, cell: Cell, run_id: str) -> BatchJob:
    """Return the job that `slipway run` submits for a run; its name ends in 8 digits that are drawn at the submission."""
    results = str(study.results_dir)
    work = Work(mark=mark_of(study.name, results), rule=RUN, wildcards=run_id)
    command = shlex.join(run_plan.supervisor_argv(sys.executable, results, run_id, images=requirements.images_file(study)))
    size = replace(
        job_size.run_size(cell, study.site, study.limits.walltime_s),
        exclude=nodes_to_avoid(paths.run_dir(study.results_dir, run_id), time.time()),
    )
    return watched_jobs.run_job(work, size, f"exec {command}", results, JOB_TOKEN)


def run_words(jobs: schedulers.Jobs, job: BatchJob) -> str:
    """Return the command that submits the job of a run."""
    return " ".join([jobs.SERVER.submit[0], *(option.replace(JOB_TOKEN, "<token>") for option in jobs.options(job))])


def jobs_of_study(study: Study, runs: Sequence[Run]) -> list[dict[str, object]]:
    """Count each kind of job that `slipway run` submits, and add the command of the first."""
    jobs = execution.jobs_at(study.site)
    kinds: dict[JobSize, list[BatchJob]] = defaultdict(list)
    for run in runs:
        job = job_of_run(study, run.cell, run.run_id)
        kinds[job.size].append(job)
    return [{"jobs": len(found), jobs.SERVER.submit[0]: run_words(jobs, found[0])} for found in kinds.values()]


def submission_of(study: Study, runs: Sequence[Run]) -> dict[str, object]:
    """Return what `slipway submit` would request and execute now."""
    jobs = execution.jobs_at(study.site)
    job = submission.plan_submission(study, runs, submission.Width(), JOB_TOKEN, built=requirements.is_prepared(study, runs))
    return {jobs.SERVER.submit[0]: [option.replace(JOB_TOKEN, "<token>") for option in jobs.options(job)], "executes": list(job.argv)}


def largest_job(study: Study, runs: Sequence[Run]) -> JobSize:
    """Return the size of the largest run's job."""
    largest = max(runs, key=lambda run: run.cell.nodes)
    return job_of_run(study, largest.cell, largest.run_id).size


def refuse_jobs(study: Study, runs: Sequence[Run]) -> None:
    """Raise ConfigError for jobs that never start. A scheduler that is silent is waited for later."""
    if runs:
        schedulers.refuse_what_never_starts(study.site.scheduler, largest_job(study, runs))
