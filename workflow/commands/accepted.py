"""Whether the site's scheduler would take the jobs of a study, before any is submitted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from base.errors import ConfigError, SchedulerSilent, SubmitError
from workflow.commands.job_plan import job_of_run
from workflow.dag.execution import jobs_at
from workflow.study.cell import Run
from workflow.study.study import Study

MOST_KINDS: Final = 4


def problem_of_runs(study: Study, runs: Sequence[Run]) -> str | None:
    """Why the largest run can never start as a job of its own. Raises SchedulerSilent."""
    if not runs:
        return None
    largest = max(runs, key=lambda run: run.cell.nodes)
    return jobs_at(study.site).never_starts(job_of_run(study, largest.cell, largest.run_id).size)


def refuse_jobs(study: Study, runs: Sequence[Run]) -> None:
    """Raise ConfigError for jobs that never start, SubmitError for jobs that the scheduler would not take: of each size one is shown to
    it, the largest first. A scheduler that is silent is waited for later."""
    try:
        problem = problem_of_runs(study, runs)
    except SchedulerSilent:
        return
    if problem:
        raise ConfigError(problem)
    jobs = jobs_at(study.site)
    kinds = {(run.cell.nodes, run.cell.gpus_per_node): run for run in runs}
    for size in sorted(kinds, reverse=True)[:MOST_KINDS]:
        run = kinds[size]
        if said := jobs.refusal_of(job_of_run(study, run.cell, run.run_id)):
            raise SubmitError(
                f"{jobs.TITLE} would refuse the job of {run.run_id}: {said}; correct the site file {study.site.name!r} "
                f"(queue, account, qos, constraint, directives), or the study"
            )
