"""End a study: make tables of what there is, and say in words how its runs stand and what to type to go on."""

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from base import calls, process
from base.errors import RecordError, SlipwayError
from base.humanize import counted, some
from workflow.dag.graph import Graph
from workflow.run.storage.prepare import held_runs
from workflow.run.storage.results import waiting_runs
from workflow.study.next_command import command

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
            raise RecordError(f"the tables could not be made: {process.describe(done)}")
    except SlipwayError as error:
        return str(error)
    return ""


def closing_lines(graph: Graph) -> list[str]:
    """Return lines on how many runs are done, how many of them are failed rows, and how to go on."""
    name, total = graph.study.name, len(graph.study.runs)
    try:
        ends, left = graph.counts()
        advice = _advice(graph, ends, left)
    except SlipwayError as error:
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
    except SlipwayError as error:
        return _unknown(graph, error)


def _unknown(graph: Graph, error: SlipwayError) -> list[str]:
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
