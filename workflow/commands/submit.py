"""Submit one batch job for the whole study, for `slipway submit`, after refusing all that `snakemake -n` would refuse."""

import os
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from base import errors, logs
from base.humanize import counted, format_duration
from base.lock import LockFile
from cluster.installation import FILES
from cluster.processes import age_s
from cluster.runtime import runtime_directory
from cluster.schedulers import Jobs, jobs_of
from cluster.schedulers.jobs import JOB_ID_PLACEHOLDER, BatchJob, QueuedJob, job_name, jobs_of_submissions, mark_of
from containers.images.commands import why_silent
from workflow.commands import chosen_study, snakemake_hooks
from workflow.commands.options import DEFAULT_STUDY, AdoptOption, RetryOption, SiteOption, StudyArgument, snakemake_config
from workflow.commands.watching import live_table, output
from workflow.commands.watching.watch import Watch
from workflow.dag import cell_needs, execution, job_plans, queue_view, refusals
from workflow.dag.graph import Graph
from workflow.report.files import PAGE_FILE
from workflow.run.record.step_clock import with_login
from workflow.study import publishing
from workflow.study.next_command import command
from workflow.study.study import Study

# The images, pinned on the login node before the job is submitted.


def pin_here(graph: Graph) -> bool:
    """Pin the study's images where this machine's engine answers, and return True if it was done. Raises SlipwayError.

    Else the first node of the job does it. Here nobody waits in a queue to learn of a wrong name.
    """
    file, engine = graph.images_file, graph.study.site.engine
    if file is None or Path(file).exists():
        return False
    if why := why_silent(engine):
        output.line(f"{why}; the first node of the job pins the images")
        return False
    from workflow.run.images import pin_study

    publishing.publish_resolved(graph.study, adopt=graph.adopt)
    output.line("pinning the study's images, once; a new one is archived on storage, which takes a while")
    with output.waiting("images: pinning and archiving"):
        pin_study(Path(graph.results_dir), Path(file))
    return True


# The submission.


NOTICE_AFTER_S: Final = 10.0
PATIENCE_S: Final = 600.0
ANSWER_S: Final = 20.0


def _token(text: str) -> str:
    if len(text) != 8 or set(text) - set("0123456789abcdef"):
        raise typer.BadParameter(f"{text!r}: 8 hex digits")
    return text


def main(  # noqa: PLR0913 - its options
    study: StudyArgument = DEFAULT_STUDY,
    site: SiteOption = None,
    nodes: Annotated[
        int | None, typer.Option("--nodes", min=1, help="Nodes of the job; default: those of the largest run left.", show_default=False)
    ] = None,
    spread: Annotated[
        bool, typer.Option("--spread", help="Repeats of a cell on different nodes; default then: nodes of the largest run x repeats.")
    ] = False,
    retry: RetryOption = None,
    adopt: AdoptOption = False,
    only_print: Annotated[bool, typer.Option("--print", help="Print the batch script; write and submit nothing.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow the job to its end; exit 0 when all runs have a result.")] = False,
    token: Annotated[str | None, typer.Option("--token", hidden=True, parser=_token)] = None,
) -> None:
    """Submit one job for the whole study, whose runs go side by side on the job's nodes.

    Everything that would stop the runs is refused first, as by `slipway plan`. A job is refused (exit 12) while another submission
    of the study waits or runs, or jobs of `slipway run` are in your queue, or other starts have all runs that are left. With nothing
    left to do, the command submits nothing.

    The job's time is that of all runs left, each with its whole walltime, at most the site's `walltime`. When too little time is
    left for another run, the job makes the tables and ends; the next `slipway submit` continues. Images are pinned before the job
    is submitted. Missing datasets are built by the cores of the job's first node; build large ones before with `slipway dataset
    build`.
    """
    config = snakemake_config(site, retry, adopt)
    graph = refusals.load_graph(config, [study], FILES, os.environ, tell=chosen_study.print_site, ask_scheduler=not only_print)
    _submit(graph, config, job_plans.Width(nodes=nodes, spread=spread), token, only_print=only_print, wait=wait)


def _submit(graph: Graph, config: Mapping[str, str], width: job_plans.Width, token: str | None, *, only_print: bool, wait: bool) -> None:
    """Submit what is left to do, or say that nothing is.

    `token`: the submission, which becomes the name of its job, is done once, however often it is asked for.
    """
    graph.mode = execution.Mode(way="allocation")  # `slipway submit` continues what is left
    config = config if graph.study.chosen_site is None else {**config, "site": graph.study.chosen_site}
    options = ["--config", *(f"{key}={word}" for key, word in config.items())] if config else []
    jobs = _jobs_of(graph.study)
    plan = partial(job_plans.plan_submission, graph.study, graph.runs_to_make, width, token or secrets.token_hex(4), options)
    if graph.runs_to_make and only_print:
        for text in jobs.script(plan(built=cell_needs.is_prepared(graph.study, graph.runs_to_make))).splitlines():
            output.line(text)
        return
    with LockFile(runtime_directory() / f"submit-{graph.study.name}.lock") as lock:
        if not lock.try_take():  # another process of the same submission, whose answer was lost, may be at work
            output.notice(f"another command of yours submits the study {graph.study.name!r} on this machine; this one waits for its end")
            lock.take()
        earlier = jobs.jobs_named(job_name(graph.study.name, token), PATIENCE_S) if token is not None else ()
        if earlier:
            job: QueuedJob | None = earlier[-1]
            output.line(f"job {earlier[-1].job_id} ({earlier[-1].name}) was submitted by this command before, and is {earlier[-1].state}")
        else:
            job = _submit_now(graph, jobs, plan) if graph.runs_to_make else None
    if wait and job is not None:
        follow(graph, jobs, job)
    elif job is None and wait:
        snakemake_hooks.print_ending(graph)
    elif job is None:
        output.line("nothing is left to do: " + "\n".join(snakemake_hooks.closing_lines(graph)))


def _jobs_of(study: Study) -> Jobs:
    """Return the jobs of the site's scheduler. Raises UnsupportedRequest for a site without one."""
    jobs = jobs_of(study.site.scheduler)
    if jobs is None:
        raise errors.UnsupportedRequest(
            f"slipway submit writes a job for a scheduler, and the site {study.site_words!r} says scheduler: "
            f"{study.site.scheduler}; "
            f"there, `{command(study)}` runs the study, or choose another site with --site"
        )
    return jobs


def _submit_now(graph: Graph, jobs: Jobs, plan: Callable[..., BatchJob]) -> QueuedJob:
    """Submit the job, after all checks. Raises ConfigError, SubmitError."""
    job = plan(built=cell_needs.is_prepared(graph.study, graph.runs_to_make))
    _refuse_second(jobs, graph)
    logs.private_umask(group=graph.shared_by_group)
    if pin_here(graph):  # which takes a while: another may have submitted, and less is left to do in the job
        _refuse_second(jobs, graph)
        job = plan(built=cell_needs.is_prepared(graph.study, graph.runs_to_make))
    job = replace(job, environ=(*job.environ, *with_login(os.environ, age_s(os.getpid())).items()))
    Path(job.output).parent.mkdir(parents=True, exist_ok=True)
    job_id = jobs.submit(job, PATIENCE_S)
    output.line(_submitted_text(jobs, graph, job, job_id))
    return QueuedJob(job_id=job_id, name=job.name, stage="waits", state="submitted")


def _refuse_second(jobs: Jobs, graph: Graph) -> None:
    """Raise SubmitError where another submission, or `slipway run`, makes the runs of the study: leases keep the results whole, and the
    second job's hours would be for nothing."""
    study, queue = graph.study.name, _queue(jobs)
    mark = mark_of(study, graph.results_dir)
    ours = [*jobs_of_submissions(queue, study), *(job for job in queue if job.mark == mark)]
    if ours:
        raise errors.SubmitError(
            f"the study {study!r} has {counted(len(ours), 'job')} of slipway submit or slipway run in the queue already, the first "
            f"{ours[0].job_id} ({ours[0].name}), which is {ours[0].state}; `{command(graph.study, 'status')}` shows them; wait until that "
            f"has ended, or end it: `{jobs.SERVER.cancel} {' '.join(job.job_id for job in ours)}`"
        )
    held = snakemake_hooks.held_by_others(graph, [run.run_id for run in graph.runs_to_make])
    if held and len(held) == len(graph.runs_to_make):
        raise errors.SubmitError(f"{snakemake_hooks.describe_held(held)}; no other run is left to do, so nothing is submitted")
    if held:
        output.notice(f"{snakemake_hooks.describe_held(held)}; the job leaves {'it' if len(held) == 1 else 'them'} to that start")


def _queue(jobs: Jobs) -> tuple[QueuedJob, ...]:
    """Return our jobs in the queue, with a note where a silent scheduler is asked again. Raises SchedulerSilent in the end."""
    try:
        return jobs.our_jobs(NOTICE_AFTER_S, ANSWER_S)
    except errors.SchedulerSilent:
        output.notice(f"{jobs.SERVER.name} does not answer; it is asked again for {PATIENCE_S / 60:.0f} minutes")
        return jobs.our_jobs(PATIENCE_S, ANSWER_S)


def _submitted_text(jobs: Jobs, graph: Graph, job: BatchJob, job_id: str) -> str:
    runs = graph.runs_to_make
    size = f"{counted(job.size.nodes, 'node')}, at most {format_duration(job.size.minutes * 60)}"
    words = f"job {job_id} ({job.name}): {counted(len(runs), 'run')} on {size}"
    walltime = graph.study.site.walltime_s
    if walltime is not None and job.size.minutes * 60 >= walltime:
        words += f"; what does not fit is continued by the next `{command(graph.study, 'submit')}`"
    ends, log = f"{jobs.SERVER.cancel} {job_id}", job.output.replace(JOB_ID_PLACEHOLDER, job_id)
    return f"{words}\nresults: {graph.study.results_dir}\nlog: {log}\nend it: {ends}; follow it: {command(graph.study, 'status')}"


# Follow a job to its end on the same screen as `slipway run`, for `slipway submit --wait`. A silent controller ends nothing.


FOLLOW_PATIENCE_S = 10.0


def follow(graph: Graph, jobs: Jobs, job: QueuedJob) -> None:
    """Return when all runs have a result. Raises Cancelled or RecordError when the job ended before that."""
    sys.stdout.flush()
    study = graph.study
    queue = queue_view.poll_queue(study.site.scheduler, jobs)
    watch = Watch(study=study, requested=graph.requested, queue=queue, submission=job.name)
    try:
        with live_table.open_view() as view:
            last = _watch(watch, jobs, job, queue, view)
    except KeyboardInterrupt:
        output.line(f"job {job.job_id} goes on; `{jobs.SERVER.cancel} {job.job_id}` ends it")
        raise
    finally:
        queue.stop()
    runs, results = counted(len(study.runs), "run"), num_results(study)
    output.line(f"job {job.job_id} has ended ({_state(last)}); {results} of {runs} {'has' if len(study.runs) == 1 else 'have'} a result")
    # A job that was ended may not have come to its report.
    incomplete = results < len(study.runs) or not (study.results_dir / PAGE_FILE).exists()
    if incomplete and results and (problem := snakemake_hooks.after_failure(graph)):
        output.line(problem)
    snakemake_hooks.print_ending(graph)
    _raise_end(study, job, last)


def _watch(watch: Watch, jobs: Jobs, job: QueuedJob, queue: queue_view.PolledQueue, view: live_table.View) -> QueuedJob | None:
    """Return what the scheduler said of the job last, when it is over; None if it has forgotten it."""
    refresher, seen = live_table.Refresher(watch.look), None
    while True:
        time.sleep(live_table.DRAW_S)
        refresher.draw(view)
        answer = queue.view()
        if answer.began in (None, seen) or any(one.job_id == job.job_id for one in answer.jobs):
            continue
        seen = answer.began
        try:
            found = jobs.jobs_named(job.name, FOLLOW_PATIENCE_S)
        except errors.SchedulerOutputError:
            continue
        if not found or found[-1].stage == "over":
            refresher.stop(view)
            return found[-1] if found else None


def _raise_end(study: Study, job: QueuedJob, last: QueuedJob | None) -> None:
    if left := len(study.runs) - num_results(study):
        words = f"{counted(left, 'run has', 'runs have')} no result; `{command(study, 'submit')}` continues with them"
        kind = errors.Cancelled if last is not None and last.ended_by == "cancelled" else errors.RecordError
        raise kind(f"job {job.job_id} ended ({_state(last)}): {words}; `{command(study, 'status')}` says why")


def _state(last: QueuedJob | None) -> str:
    return last.state if last is not None else "gone"


def num_results(study: Study) -> int:
    """Count the runs that have a record. Storage alone is read."""
    return sum(study.record_path(run.run_id).exists() for run in study.runs)
