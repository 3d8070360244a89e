"""`slipway submit`: one batch job for the whole study. All that `snakemake -n` would refuse is refused before anything is submitted."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from base.errors import ConfigError, SchedulerSilent, SubmitError, UnsupportedRequest
from base.logs import private_umask
from base.units import counted
from cluster.installation import FILES
from cluster.schedulers.slurm.acceptance import partition_problem_now
from cluster.schedulers.slurm.batch_script import BatchJob, batch_script, clock
from cluster.schedulers.slurm.carried import carried_names
from cluster.schedulers.slurm.submissions import Submission, submissions_of
from cluster.schedulers.slurm.submit import submit
from workflow.commands import show
from workflow.commands.pin_images import pin_here
from workflow.commands.told_study import tell_site
from workflow.dag.execution import SLURM
from workflow.dag.graph import Graph
from workflow.dag.loading import load_graph
from workflow.dag.submission import Width as Width
from workflow.dag.submission import plan_submission
from workflow.study.next_command import command


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How: on how many nodes; failed runs again; only show the script; wait for the end."""

    width: Width = Width()
    retry: str | None = None
    adopt: bool = False
    only_print: bool = False
    wait: bool = False


def main(path: Path, site: str | None, how: Wanted) -> None:
    """Submit, or say that nothing is left to do. Raises ConfigError, SubmitError, and with `wait` what `follow` raises."""
    graph = load_graph(_config(site, how), [path], FILES, os.environ, tell=tell_site)
    runs = graph.runs_to_make
    if graph.study.site.scheduler != SLURM:
        raise UnsupportedRequest(
            f"slipway submit writes a job for Slurm, and the site {graph.study.site.name!r} says scheduler: {graph.study.site.scheduler}; "
            f"there, `{command(graph.study)}` runs the study, or choose another site with --site"
        )
    if not runs:
        show.line(f"nothing is left to do: {graph.closing_line()}")
        return
    token = secrets.token_hex(4)
    job = plan_submission(graph.study, runs, how.width, token, _options(graph), built=_built(graph))
    if how.only_print:
        for text in batch_script(replace(job, export=carried_names(os.environ))).splitlines():
            show.line(text)
        return
    _refuse_second(graph)
    _refuse_what_never_starts(job)
    private_umask(group=graph.shared_by_group)
    if pin_here(graph):  # which takes a while: another may have submitted, and less is left to do in the job
        _refuse_second(graph)
        job = plan_submission(graph.study, runs, how.width, token, _options(graph), built=_built(graph))
    Path(job.output).parent.mkdir(parents=True, exist_ok=True)
    job_id = submit(batch_script(job), job.name)
    show.line(_said(graph, job, job_id))
    if how.wait:
        from workflow.commands.follow import follow

        follow(graph.study, Submission(job_id=job_id, name=job.name, state="PENDING"), [Path(receipt).name for receipt in graph.receipts])


def _refuse_what_never_starts(job: BatchJob) -> None:
    try:
        problem = partition_problem_now(job.queue, job.nodes, job.minutes)
    except SchedulerSilent:  # sbatch is tried for a while, and says so
        return
    if problem:
        raise ConfigError(problem)


def _refuse_second(graph: Graph) -> None:
    """Two would run the same runs: the leases keep results whole, and the second job's hours would be for nothing."""
    found = submissions_of(graph.study.name)
    if found:
        first = found[0]
        raise SubmitError(
            f"the study {graph.study.name!r} is submitted already: job {first.job_id} ({first.name}) is {first.state.lower()}; "
            f"`squeue -j {first.job_id}` shows it, `scancel {first.job_id}` ends it, and `slipway submit --wait` waits for one it submits"
        )


def _config(site: str | None, how: Wanted) -> dict[str, Any]:
    chosen: dict[str, Any] = ({} if site is None else {"site": site}) | ({"adopt": "yes"} if how.adopt else {})
    return chosen if how.retry is None else {**chosen, "retry": how.retry}


def _options(graph: Graph) -> list[str]:
    """Snakemake's --config of the job: the site as it is chosen here, failed runs if asked."""
    chosen = graph.study.chosen_site
    pairs = [f"site={chosen}"] if chosen else []
    pairs += ["retry=failed"] if graph.retry_failed else []
    pairs += ["adopt=yes"] if graph.adopt else []
    return ["--config", *pairs] if pairs else []


def _built(graph: Graph) -> bool:
    names = {run.cell.dataset for run in graph.runs_to_make}
    pinned = graph.images_file is None or Path(graph.images_file).exists()
    return pinned and all((graph.study.build_dir(name) / "dataset.json").exists() for name in names)


def _said(graph: Graph, job: BatchJob, job_id: str) -> str:
    runs = graph.runs_to_make
    words = f"job {job_id} ({job.name}): {counted(len(runs), 'run')} on {counted(job.nodes, 'node')}, at most {clock(job.minutes)}"
    walltime = graph.study.site.walltime_s
    if walltime is not None and job.minutes * 60 >= walltime:
        words += f"; what does not fit is continued by the next `{command(graph.study, 'submit')}`"
    return f"{words}\nlog: {job.output.replace('%j', job_id)}\nend it: scancel {job_id}; follow it: {command(graph.study, 'status')}"
