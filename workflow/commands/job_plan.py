"""What the site's scheduler would be asked, word for word, in both ways: for a job per run, and for one job for all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from cluster.schedulers.jobs import JobSize, RunJob
from workflow.dag.execution import jobs_at
from workflow.dag.job_size import run_size
from workflow.dag.requirements import is_prepared
from workflow.dag.submission import Width, plan_submission
from workflow.study.cell import Cell, Run
from workflow.study.study import Study

TOKEN: Final = "0" * 8


def job_of_run(study: Study, cell: Cell, run_id: str) -> RunJob:
    """The job that `slipway run` submits for a run."""
    return RunJob(run_id=run_id, size=run_size(cell, study.site, study.limits.walltime_s), directory=str(study.results_dir))


def jobs_of_study(study: Study, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """For each kind of job that `slipway run` submits: how many, and the command of the first."""
    jobs = jobs_at(study.site)
    kinds: dict[JobSize, list[RunJob]] = defaultdict(list)
    for run in runs:
        job = job_of_run(study, run.cell, run.run_id)
        kinds[job.size].append(job)
    return [{"jobs": len(found), jobs.SUBMIT: jobs.run_words(found[0])} for found in kinds.values()]


def submission_of(study: Study, runs: Sequence[Run]) -> dict[str, Any]:
    """What `slipway submit` would ask and execute now; its name ends in 8 digits that are drawn then."""
    jobs = jobs_at(study.site)
    job = plan_submission(study, runs, Width(), TOKEN, built=is_prepared(study, runs))
    return {jobs.SUBMIT: [option.replace(TOKEN, "<token>") for option in jobs.options(job)], "executes": list(job.argv)}
