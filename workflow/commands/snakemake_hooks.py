"""Open a study for Snakemake, and act where it calls: at its start, after success or failure, and when its process ends.

At the end the speed-up table is printed, how many runs failed, where the report is, and what to type to go on."""

import atexit
import contextlib
import gc
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from base import calls, errors, logs, process, sanitize, system
from base.humanize import counted, some
from cluster.processes import age_s
from workflow.commands.chosen_study import print_site
from workflow.commands.watching import output
from workflow.dag import execution, refusals
from workflow.dag.graph import Graph
from workflow.run.record.step_clock import planned
from workflow.run.storage.prepare import held_runs
from workflow.run.storage.results import waiting_runs
from workflow.study.next_command import command

PYTHON: Final = f"exec {shlex.quote(sys.executable)} -P -m"
"""The beginning of the rules' commands, which are exec'd: a signal to the job reaches our program, and a run sees at once when Snakemake is
gone. -P: see base.process."""
SHOWN: Final = "SLIPWAY_RUN"
"""The variable that is set for a Snakemake whose end is reported by its parent."""
REMAKES_ALL: Final = re.compile(r"--forceall$|-[a-zA-Z]*F[a-zA-Z]*$|--delete-all")
"""Words of Snakemake's command line, whose settings are not there yet when rules are read: -F, also among other options of a letter."""


class SnakemakeHooks:
    """The actions at Snakemake's start and at its end, which is printed once. `workflow` is Snakemake's own object."""

    def __init__(self, workflow: Any, graph: Graph) -> None:
        self._workflow = workflow
        self.graph = graph
        self._ended = SHOWN in os.environ
        self._notified = False

    @classmethod
    def of(cls, workflow: Any) -> "SnakemakeHooks":
        """Read the study that Snakemake was started with, and prepare its process."""
        # The graph of a large study is millions of small objects that live to the end: looking for garbage among them is a quarter of
        # `snakemake -n` of 10,000 runs (benchmarks/dry_run.py). The collector is back before the first job starts.
        gc.disable()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see workflow.commands.run.Child
        os.environ.update(system.account_environ(os.environ))
        graph = _load(workflow)
        logs.private_umask(group=graph.shared_by_group)
        with contextlib.suppress(OSError):
            # Snakemake's directory in /tmp, in which it puts nothing where storage is shared: a job that is killed would leave it.
            workflow.snakemake_tmp_dir.rmdir()
        os.environ.update(graph.environment(os.environ))
        os.environ.update(planned(os.environ, age_s(os.getpid())))
        hooks = cls(workflow, graph)
        atexit.register(hooks.at_exit)  # where there was nothing to do, Snakemake calls no other hook
        return hooks

    @property
    def dataset_pattern(self) -> str:
        """Return the pattern of the datasets that rules may build. Where all is to be made anew or deleted, those that are built are
        left out: results are meant, and a source may be terabytes."""
        return self.graph.dataset_pattern(without_built=any(REMAKES_ALL.match(word) for word in sys.argv))

    def start(self) -> None:
        gc.enable()
        scheduler = self._workflow.scheduler
        limiter = scheduler.job_rate_limiter
        if limiter is not None and (limiter.max_jobs, limiter.timespan) == (100, 1):
            scheduler.job_rate_limiter = None  # Snakemake's default: each job that ends adds a thread that wakes the scheduler every second
        self.graph.start(self._workflow.executor_plugin.name)

    def succeed(self) -> None:
        """Print the end after success or failure."""
        self._notified = True
        notify_of(self.graph)
        if not self._ended:
            self._ended = True
            print_ending(self.graph)

    def fail(self) -> None:
        """Make tables as far as storage lets us, since they are worth most after a failure, and print the end."""
        problem = after_failure(self.graph)
        if problem:
            output.line(problem)
        self.succeed()

    def at_exit(self) -> None:
        """Finish what the other hooks leave: the end where no job was to start, the notice after an exception."""
        workflow = self._workflow
        ran = getattr(workflow, "scheduler", None) is not None and not workflow.dryrun and not workflow.touch
        if ran and not len(workflow.dag) and not self._ended:
            self._ended = True
            print_ending(self.graph)
        if ran and len(workflow.dag) and not self._notified:  # an exception or Ctrl-C has ended it, and no hook of ours was called
            self._notified = True
            notify_of(self.graph)


def _load(workflow: Any) -> Graph:
    """Read the study. An error ends the process here: Snakemake would exit with 1 and name a line of its rules, and this is the same
    sentence and exit code as that of `slipway plan`."""
    limits = workflow.resource_settings
    mode = execution.mode_of(limits.overwrite_resource_scopes, workflow.global_resources, os.environ)
    try:
        if limits.cores is not None and limits.cores < 1:
            raise errors.ConfigError(f"--cores {limits.cores}: no run could ever start; valid: 1 or more, or all (the default)")
        return refusals.load_graph(workflow.config_settings.config, workflow.configfiles, workflow.basedir, os.environ, mode, print_site)
    except errors.SlipwayError as error:
        sys.stderr.write(f"snakemake: {error}\n")
        sys.exit(error.exit_code)


def notify_of(graph: Graph) -> None:
    """Tell those who want to know that the study has ended; who could not be told stands on the terminal, and fails nothing."""
    notify = graph.study.notify
    if notify is not None and "end" in notify.when:
        from workflow.dag.notify import Notification, send_all

        first, *rest = closing_lines(graph)
        for problem in send_all(notify, Notification(subject=first, lines=tuple(rest)), os.environ):
            sys.stderr.write(f"slipway: {sanitize.printable(problem)}\n")


def print_ending(graph: Graph) -> None:
    """Print the end on standard output, in a child with a time limit, since it reads all records and storage may hang."""
    study = graph.study
    site = [] if study.chosen_site is None else ["--site", study.chosen_site]
    argv = [sys.executable, "-P", "-m", "workflow.commands.main", "tables", "--study", str(study.path.absolute()), *site, "--show"]
    sys.stdout.flush()
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env={**os.environ, **process.packages_environ(os.environ)})
    code = process.wait_or_end(child, REPORT_TIMEOUT_S)
    for line in advice_lines(graph) if code == 0 else closing_lines(graph):
        output.line(line)
    sys.stdout.flush()


# The end of a study: tables of what there is, how its runs stand, in words, and what to type to go on.


REPORT_TIMEOUT_S: Final = 1800.0
MAX_HELD: Final = 3
"""The most runs that are named."""


def after_failure(graph: Graph) -> str:
    """Make tables from whatever records exist, as far as storage lets us, and return in words what was in the way.

    After a failure they are worth most.
    """
    try:
        graph.publish_study()
        argv = [sys.executable, "-P", "-m", "workflow.report", "all", "--results", graph.results_dir]
        done = process.run(argv, timeout_s=REPORT_TIMEOUT_S, env=os.environ | process.packages_environ(os.environ))
        if done.returncode:
            raise errors.RecordError(f"the tables could not be made: {process.describe(done)}")
    except errors.SlipwayError as error:
        return str(error)
    return ""


def closing_lines(graph: Graph) -> list[str]:
    """Return lines on how many runs are done, how many of them are failed rows, and how to go on."""
    name, total = graph.study.name, len(graph.study.runs)
    try:
        ends, left = graph.counts()
        advice = _advice(graph, ends, left)
    except errors.SlipwayError as error:
        return _unknown(graph, error)
    line = f"{name}: {total - left} of {counted(total, 'run has', 'runs have')} a result"
    failed = {status: count for status, count in sorted(ends.items()) if status != "ok"}
    if failed:
        reasons = ", ".join(f"{count} {status}" for status, count in failed.items())
        line += f", {sum(failed.values())} of them failed ({reasons})"
    return [line, *([f"report: {graph.results_dir}/report.html"] if ends else []), *advice]


def advice_lines(graph: Graph) -> list[str]:
    """Return what to type to go on, whole, one line each."""
    try:
        return _advice(graph, *graph.counts())
    except errors.SlipwayError as error:
        return _unknown(graph, error)


def _unknown(graph: Graph, error: errors.SlipwayError) -> list[str]:
    return [f"{graph.study.name}: how its runs stand is not known: {error}"]


def held_by_others(graph: Graph, runs: Sequence[str]) -> dict[str, str]:
    """Return those of `runs` that another start has, and who that is, in words. Raises StorageError."""
    what = f"who has the runs of {graph.study.name}"
    found: dict[str, str] = calls.call_isolated(what, held_runs, graph.results_dir, runs, timeout_s=graph.storage_s) if runs else {}
    return found


def describe_held(held: Mapping[str, str]) -> str:
    """Describe the held runs: `1 run is at work in another start: RUN, attempt 1: process 7 on a; end it there (kill 7)`."""
    named = some([f"{run_id}, {who}" for run_id, who in held.items()], MAX_HELD, "; ")
    return f"{counted(len(held), 'run is', 'runs are')} at work in another start: {named}"


def _advice(graph: Graph, ends: Counter[str], left: int) -> list[str]:
    study, verb = graph.study, "submit" if graph.mode.way == "allocation" else "run"
    failed = sum(count for status, count in ends.items() if status != "ok")
    held = held_by_others(graph, graph.without_result())
    rest, again = left - len(held), command(study, verb)
    longer = "; a run that ended as timeout needs a longer limits.walltime" if ends["timeout"] else ""
    found = [f"{counted(failed, 'run')} failed, as the table says; again: {command(study, verb, '--retry', 'failed')}{longer}"]
    others = [f"{describe_held(held)}; when that has ended, go on: {again}"]
    more = [f"{counted(rest, 'run has', 'runs have')} no result; go on: {again}"]
    return _delivery(graph, left) + found * bool(failed) + others * bool(held) + more * bool(rest)


def _delivery(graph: Graph, left: int) -> list[str]:
    """Return what to type first where nodes may have results which storage did not take: a run that goes on would be measured again."""
    what, study = f"the logs of {graph.study.name}", graph.study
    waiting = calls.call_isolated(what, waiting_runs, graph.results_dir, graph.without_result(), timeout_s=graph.storage_s) if left else ()
    deliver = f"first deliver what nodes have of {counted(len(waiting), 'run')}, there: {study.command('reap', '--push')}"
    return [deliver] if waiting else []
