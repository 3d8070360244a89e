"""End a study, whoever started Snakemake: show the speed-up table, how many runs failed, where the report is, what to type to go on."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from base.packages import rooms_environ
from base.sanitize import printable
from workflow.commands.watching import output
from workflow.dag.closing import REPORT_TIMEOUT_S, advice_lines, after_failure, closing_lines
from workflow.dag.graph import Graph
from workflow.run.storage.results import parse_asked
from workflow.study.next_command import command

SHOWN: Final = "SLIPWAY_RUN"
"""Set for a Snakemake whose end is told by who started it."""
WOULD_RUN: Final = "SLIPWAY_WOULD_RUN"
"""Set for a dry run: the file that is to hold the runs it would start, a line each."""


class Ending:
    """The end of a study, which is printed once: by `tell`, or when Snakemake ends without having had anything to do, where it calls no
    hook of ours."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._told = SHOWN in os.environ
        self._notified = False

    def tell(self) -> None:
        """Print the end after success or failure."""
        self._notified = True
        notify_of(self._graph)
        if not self._told:
            self._told = True
            print_ending(self._graph)

    def after_failure(self) -> None:
        """Make tables as far as storage lets us: they are worth most after a failure."""
        problem = after_failure(self._graph)
        if problem:
            output.line(problem)
        self.tell()

    def at_exit(self, workflow: Any) -> None:
        """Finish what Snakemake's hooks leave: the runs of a dry run, the end where no job was to start, the notice after an exception
        or Ctrl-C.

        `workflow` is Snakemake's.
        """
        if WOULD_RUN in os.environ and workflow.dryrun and workflow.dag is not None:
            jobs = [job for job in workflow.dag.needrun_jobs(exclude_finished=False) if job.rule.name == "stage_train_push"]
            Path(os.environ[WOULD_RUN]).write_text("".join(f"{parse_asked(job.wildcards.run)[0]}\n" for job in jobs))
        limits = workflow.resource_settings
        if limits.cores is None and limits.nodes is None and not self._told:
            mend = f"`{command(self._graph.study)}` takes the profile that fits the site"
            sys.stderr.write(f"snakemake: neither a profile nor --cores was given; {mend}\n")
        ran = getattr(workflow, "scheduler", None) is not None and not workflow.dryrun and not workflow.touch
        if ran and not len(workflow.dag) and not self._told:
            self._told = True
            print_ending(self._graph)
        if ran and len(workflow.dag) and not self._notified:  # an exception or Ctrl-C has ended it, and no hook of ours was called
            self._notified = True
            notify_of(self._graph)


def notify_of(graph: Graph) -> None:
    """Tell those who want to know that the study has ended; who could not be told stands on the terminal, and fails nothing."""
    notify = graph.study.notify
    if notify is not None and "end" in notify.when:
        from workflow.dag.notify import News, tell

        first, *rest = closing_lines(graph)
        for problem in tell(notify, News(subject=first, lines=tuple(rest)), os.environ):
            sys.stderr.write(f"slipway: {printable(problem)}\n")


def print_ending(graph: Graph) -> None:
    """Print the end on standard output, in a child with a time limit, since it reads all records and storage may hang."""
    study = graph.study
    site = [] if study.chosen_site is None else ["--site", study.chosen_site]
    argv = [sys.executable, "-P", "-m", "workflow.commands.main", "tables", "--study", str(study.path.absolute()), *site, "--show"]
    sys.stdout.flush()
    child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, env={**os.environ, **rooms_environ(os.environ)})
    try:
        code = child.wait(REPORT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        code = -1
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
    for line in advice_lines(graph) if code == 0 else closing_lines(graph):
        output.line(line)
    sys.stdout.flush()
