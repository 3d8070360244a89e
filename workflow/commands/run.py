"""`slipway run STUDY`: Snakemake with our Snakefile and profile, from any directory, and what it does in words."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from base.account import refuse_without_home
from base.errors import SchedulerOutputError, StorageError
from base.limited import call_limited
from base.logs import private_umask
from base.rooms import rooms_environ
from base.units import counted
from cluster.detection import scheduler_of
from cluster.installation import FILES
from cluster.limits import STORAGE_WAIT_SHOWN_S
from cluster.machine import usable_cores
from cluster.processes import age_s
from cluster.schedulers import jobs_of
from cluster.schedulers.jobs import Jobs, QueuedJob
from cluster.schedulers.local import NAME as LOCAL
from workflow.commands.accepted import refuse_jobs
from workflow.commands.child import Child
from workflow.commands.ending import SHOWN, WOULD_RUN
from workflow.commands.run_end import end, log_text, refuse
from workflow.commands.run_words import Words, sort_words
from workflow.commands.snakemake_words import child_argv, is_usage, profile_name, profile_path, profile_way, what_it_said
from workflow.commands.told_study import tell_site
from workflow.commands.watching import show
from workflow.commands.watching.refresher import Refresher
from workflow.commands.watching.shown import DRAW_S, Shown, shown
from workflow.commands.watching.watch import Watch
from workflow.dag.execution import refuse_wrong_way
from workflow.dag.graph import Graph
from workflow.dag.loading import load_graph
from workflow.dag.queue_view import QUEUE_S, asked_queue, cancelled_words
from workflow.dag.refusals import refuse_unreachable
from workflow.dag.storage_place import LOOK_S
from workflow.run.record.login import with_login
from workflow.study.cell_words import words_of
from workflow.study.next_command import command
from workflow.study.study import Study

DRY_S: Final = 600.0
CHANGE_JOBS: Final = frozenset(("--set-resources", "--default-resources", "--resources"))
"""Options of Snakemake that say what a job asks for."""


def main(words: Sequence[str], ours: Mapping[str, str | None], profile: str | None, default: Path, *, table: bool = True) -> None:
    """`ours`: our options by the keys of --config that they mean; `table`: whether it ends with the speed-up table. Raises what the study,
    or its end, is at fault with."""
    refuse_without_home(os.environ)
    sorted_words = sort_words(words, ours)
    study = Path(sorted_words.study) if sorted_words.study is not None else default
    starts = not (sorted_words.dry or sorted_words.looks or profile)
    graph = load_graph(sorted_words.config, [study], FILES, os.environ, tell=tell_site, ask_scheduler=starts)
    site = graph.study.site
    private_umask(group=graph.shared_by_group)
    path = profile_path(profile or profile_name(site, os.environ))
    if (way := profile_way(path)) is not None:
        refuse_wrong_way(site, way, os.environ)
    if graph.study.chosen_site is not None:
        sorted_words = Words(study=None, config={**sorted_words.config, "site": graph.study.chosen_site}, rest=sorted_words.rest)
    if sorted_words.dry and not sorted_words.looks:
        with tempfile.TemporaryDirectory(prefix="slipway-") as place:
            _dry(graph, child_argv(path, study, Path(place), sorted_words, os.environ), Path(place, "snakemake.log"))
        return
    argv = child_argv(path, study, graph.study.results_dir, sorted_words, os.environ)
    if sorted_words.looks:
        os.execve(argv[0], argv, {**os.environ, **rooms_environ(os.environ)})
    if profile is not None:  # only now is it known to fit the site
        refuse_unreachable(site, os.environ)
    other_jobs = profile is not None or any(word.partition("=")[0] in CHANGE_JOBS for word in sorted_words.rest)
    _run(graph, argv, other_jobs, table=table)


def _run(graph: Graph, argv: Sequence[str], other_jobs: bool, *, table: bool) -> None:
    """`other_jobs`: they may be others than those of the site file, so that the scheduler alone can tell whether it takes them."""
    study = graph.study
    name = study.site.scheduler
    own_jobs = jobs_of(name) if scheduler_of(os.environ) != name else None
    if own_jobs is not None and not other_jobs:
        refuse_jobs(study, graph.runs_to_make)
    log = study.results_dir / "logs" / f"snakemake-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
    call_limited(f"the results of {study.name}", _make_log, log, study, timeout_s=LOOK_S)
    queue = None if own_jobs is None else asked_queue(name, own_jobs)
    watch = Watch(study=study, asked=[Path(receipt).name for receipt in graph.receipts], queue=queue)
    sys.stdout.flush()
    with shown() as view:
        view.say(f"{study.name}: {counted(len(watch.asked), 'run')} to do of {len(study.runs)}; snakemake's log: {log}")
        if told_nodes := local_nodes(study, len(usable_cores())):
            view.say(told_nodes)
        login = with_login(os.environ, age_s(os.getpid()))
        with Child(argv, log, {**os.environ, **rooms_environ(os.environ), **login, SHOWN: "1"}) as child:
            code, jobs = _follow(child, Refresher(watch.look), view, watch)
            told = list(child.told)
        view.clear()
        if queue is not None:
            queue.stop()
        if own_jobs is not None and jobs and (set(told) != {signal.SIGTERM} or len(told) > 1):
            view.say(cancelled_words(own_jobs, jobs, _queue_now(own_jobs)))
        if table and not is_usage(log_text(log)):
            view.say("snakemake has ended; the table is made from the records")
    end(graph, watch.asked, code, told, log, table=table)


def _make_log(log: Path, study: Study) -> None:
    """Create the log file. It is called in a child with a time limit. Raises StorageError."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.open("xb").close()
    except OSError as error:
        raise StorageError(
            f"the results of {study.name} cannot be written: {error.filename}: {error.strerror}; site {study.site.name}"
        ) from error


def local_nodes(study: Study, cores: int) -> str:
    """What the nodes are, where this machine stands for them; "" elsewhere. Pure."""
    if study.site.scheduler != LOCAL:
        return ""
    count = max((run.cell.nodes for run in study.runs), default=1)
    if count == 1:
        return f"node {LOCAL}-0: this machine"
    nodes = f"nodes {LOCAL}-0 {'and' if count == 2 else 'to'} {LOCAL}-{count - 1}"
    if count > cores:
        return f"{nodes}: shares of this machine's {counted(cores, 'core')}; runs whose nodes share one are marked oversubscribed"
    return f"{nodes}: equal shares of this machine's cores, in runs of several nodes"


def _queue_now(offered: Jobs) -> tuple[QueuedJob, ...] | None:
    try:
        return offered.our_jobs(0.0, QUEUE_S)
    except SchedulerOutputError:
        return None


def _follow(child: Child, refresher: Refresher, view: Shown, watch: Watch) -> tuple[int, tuple[QueuedJob, ...]]:
    """Show it until it ends; its exit code, and the jobs that it had in the queue when it was told to end. Raises StorageError where it
    was told to end, and waits for storage."""
    said = 0
    jobs: tuple[QueuedJob, ...] = ()
    waits = False
    while (code := child.wait(DRAW_S)) is None:
        if child.storage_wait_s >= STORAGE_WAIT_SHOWN_S and not waits:
            view.say(f"snakemake or a job of it waits for storage, which has not answered for {STORAGE_WAIT_SHOWN_S:.0f} s", "yellow")
        waits = child.storage_wait_s >= STORAGE_WAIT_SHOWN_S
        if child.is_stuck():
            refresher.stop(view)
            child.abandon()
        for number in child.told[said:]:
            jobs = jobs or watch.jobs()
            view.say(_passed_on(number, again=number in child.told[:said]))
            said += 1
        refresher.draw(view, ending=bool(child.told))
    refresher.stop(view)
    return code, jobs


def _passed_on(number: int, *, again: bool) -> str:
    if number == signal.SIGTERM and not again:
        return "told to end: runs at work are finished, no more are started; a second SIGTERM, or Ctrl-C, ends the runs too"
    return f"{signal.Signals(number).name}: the runs are ended, which may take half a minute"


def _dry(graph: Graph, argv: Sequence[str], log: Path) -> None:
    """What Snakemake would run, with the targets and options that it was given, in words."""
    chosen = log.with_name("would-run")
    with Child(argv, log, {**os.environ, **rooms_environ(os.environ), WOULD_RUN: str(chosen)}) as child:
        code = child.wait(DRY_S)
    if code != 0:
        text = log_text(log)
        refuse(text, code or 0, what_it_said(text) or f"it did not end within {DRY_S:.0f} s, or failed: exit code {code}", "")
    study, names = graph.study, set(chosen.read_text().splitlines())
    runs = [run for run in study.runs if run.run_id in names]
    words = words_of(study.cells, study.site, study.repeats)
    show.line(f"{study.name}: {counted(len(runs), 'run')} of {len(study.runs)} would run")
    for run in runs:
        show.line(f"  {words(run)}  ({run.run_id})")
    show.line(f"{command(study, 'plan')} says what they need and cost")
