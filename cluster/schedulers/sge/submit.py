"""Hand a job to Grid Engine once, however qsub is answered: see cluster/schedulers/submission.py."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import Final

from base.command import CommandResult, describe
from base.errors import SchedulerOutputError, SchedulerSilent, SlipwayError, SubmitError, SubmitUnsure
from base.names import choices
from cluster.schedulers.asking import ask, in_english, last_words, one_try
from cluster.schedulers.carried import carried
from cluster.schedulers.jobs import BatchJob, JobSize
from cluster.schedulers.limits import QUICK_ANSWER_S, SUBMIT_S
from cluster.schedulers.sge.answers import parse_settings
from cluster.schedulers.sge.batch_script import batch_script, slots_per_node
from cluster.schedulers.sge.query import SGE
from cluster.schedulers.sge.queue import jobs_named
from cluster.schedulers.submission import Words, by_name, submit_once

QSUB: Final = ("qsub", "-terse")
CELL: Final = ("SGE_ROOT", "SGE_CELL", "SGE_QMASTER_PORT", "SGE_EXECD_PORT", "SGE_CLUSTER_NAME")
"""What the commands need to find their cell."""


def submit(job: BatchJob, patience_s: float) -> str:
    """The id that `job` has got. Its name is found in the queue where qsub did not say it. Raises SubmitError."""
    script = batch_script(job)
    words = Words(command="qsub", server="sge_qmaster", look="qstat", end="qdel", job=f"qsub -N {job.name}")
    attempt = partial(one_try, SGE, QSUB, SUBMIT_S, script, SubmitError, submitting_environ())
    return submit_once(attempt, by_name(jobs_named, job.name), parse_job_id, patience_s, words)


def submitting_environ() -> dict[str, str]:
    """Of our environment what a job inherits, and what qsub needs."""
    return in_english({**carried(os.environ), **{name: os.environ[name] for name in CELL if name in os.environ}})


def parse_job_id(result: CommandResult) -> str:
    """Pure: of `qsub -terse`. Raises SubmitError for a refusal, and for an answer without an id."""
    if result.returncode:
        raise SubmitError(f"Grid Engine refused the job: {last_words(SGE, result)}\n{describe(result)}")
    match = re.fullmatch(r"(\d+)(\.\S+)?", result.stdout.strip().splitlines()[-1] if result.stdout.strip() else "")
    if match is None:
        raise SubmitUnsure(f"qsub ended well and named no job: {result.stdout[-400:]!r}; {describe(result)}")
    return match[1]


def refusal_of(job: BatchJob) -> str | None:
    """What qsub would refuse of `job`, in its words, without submitting it; None if nothing, or nobody answers."""
    try:
        result, silence = one_try(SGE, (*QSUB, "-w", "v"), QUICK_ANSWER_S, batch_script(job), SubmitError, submitting_environ())
    except SlipwayError:
        return None
    return None if result is None or silence or result.returncode == 0 else last_words(SGE, result)


def never_starts(size: JobSize) -> str | None:
    """Why such a job never starts here: its parallel environment is none, or gives other nodes than asked. Raises SchedulerSilent."""
    name = (size.parallel_environment or "").split(None, 1)[:1]
    if not name:
        return None
    try:
        names = ask(SGE, ("qconf", "-spl"), 0.0, QUICK_ANSWER_S).split()
        if name[0] not in names:
            return f"parallel_environment: {name[0]!r} is none of this cell; {choices(name[0], names)}"
        return environment_problem(name[0], parse_settings(ask(SGE, ("qconf", "-sp", name[0]), 0.0, QUICK_ANSWER_S)), size)
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        return None


def environment_problem(name: str, settings: dict[str, str], size: JobSize) -> str | None:
    """Pure: why a job of that size cannot use a parallel environment; None if it can."""
    if settings.get("control_slaves", "").upper() != "TRUE":
        return (
            f"parallel_environment: {name!r} has control_slaves FALSE: no programs can be started on its nodes; name another (qconf -spl)"
        )
    rule, slots = settings.get("allocation_rule", ""), slots_per_node(size)
    if rule.isdecimal() and int(rule) != slots:
        return (
            f"parallel_environment: {name!r} gives {rule} slots of each node (allocation_rule), and {slots} were asked as one node: "
            f"`parallel_environment: {name} {rule}` in the site file"
        )
    if rule == "$pe_slots" and size.nodes > 1:
        return f"parallel_environment: {name!r} gives slots of one node only (allocation_rule $pe_slots), and {size.nodes} nodes were asked"
    return None
