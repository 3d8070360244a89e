"""Whether Slurm would take the jobs of a study, before any is submitted."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from base.errors import ConfigError, SchedulerSilent, SubmitError
from cluster.schedulers.slurm.acceptance import partition_problem_now, refusal_of
from workflow.commands.job_plan import DEFAULT_QUEUE, job_of_run
from workflow.dag.job_size import job_minutes
from workflow.study.cell import Run
from workflow.study.study import Study

MOST_KINDS: Final = 4


def problem_of_runs(study: Study, runs: Sequence[Run]) -> str | None:
    """Why the largest run can never start as a job of its own. Raises SchedulerSilent."""
    if not runs:
        return None
    nodes = max(run.cell.nodes for run in runs)
    return partition_problem_now(study.site.queue, nodes, job_minutes(study.limits.walltime_s, study.site))


def refuse_jobs(study: Study, runs: Sequence[Run]) -> None:
    """Raise ConfigError for jobs that never start, SubmitError for jobs that sbatch would not take: of each size one is shown to it, the
    largest first. A controller that is silent is waited for later."""
    try:
        problem = problem_of_runs(study, runs)
    except SchedulerSilent:
        return
    if problem:
        raise ConfigError(problem)
    kinds = {(run.cell.nodes, run.cell.gpus_per_node): run for run in runs}
    for size in sorted(kinds, reverse=True)[:MOST_KINDS]:
        run = kinds[size]
        if said := refusal_of(_argv(study, run)):
            raise SubmitError(
                f"Slurm would refuse the job of {run.run_id}: {said}; correct the site file {study.site.name!r} "
                f"(queue, account, qos, constraint, directives), or the study"
            )


def _argv(study: Study, run: Run) -> list[str]:
    """As the plugin would submit it, but for a queue that nobody has chosen."""
    argv = shlex.split(job_of_run(study, run.cell, run.run_id))
    if DEFAULT_QUEUE in argv:
        place = argv.index(DEFAULT_QUEUE)
        del argv[place - 1 : place + 1]
    return argv
