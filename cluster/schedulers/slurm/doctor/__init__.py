"""What `slipway doctor` asks of Slurm: a handful of questions, none of them repeated for long."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from base.account import account_name
from base.command import run
from base.errors import SchedulerOutputError, SchedulerSilent, SlipwayError
from base.finding import Finding, worst
from cluster.doctor.asked import Asked
from cluster.schedulers.asking import ask
from cluster.schedulers.doctor import Value
from cluster.schedulers.limits import DOCTOR_PATIENCE_S, QUICK_ANSWER_S
from cluster.schedulers.limits import STEP_S as STEP_S
from cluster.schedulers.slurm.doctor import launcher
from cluster.schedulers.slurm.doctor.config import has_accounting, has_private_tmp, judge_config, parse_config
from cluster.schedulers.slurm.doctor.controller import (
    ASSOCIATIONS,
    FORMAT,
    SILENT,
    judge_activity,
    judge_associations,
    judge_ping,
    parse_associations,
)
from cluster.schedulers.slurm.doctor.partitions import judge_partitions
from cluster.schedulers.slurm.doctor.proposals import from_partitions
from cluster.schedulers.slurm.environ import NODE_LIST, job_environ
from cluster.schedulers.slurm.hostlist import expand
from cluster.schedulers.slurm.limits import SHORT_ANSWER_S
from cluster.schedulers.slurm.partitions import SHOW, SINFO, parse_nodes, parse_partitions
from cluster.schedulers.slurm.query import SLURM, slurm_environment, slurm_version

SUBJECT: Final = "scheduler"
CONFIG: Final = ("scontrol", "show", "config")


def question(*argv: str) -> str:
    """One question to the controller, with little patience. Raises SchedulerSilent, SchedulerOutputError."""
    return ask(SLURM, argv, patience_s=DOCTOR_PATIENCE_S, timeout_s=SHORT_ANSWER_S)


def check_slurm(asked: Asked) -> tuple[Finding, ...]:
    """Controller, configuration, partitions, accounts."""
    try:
        return _check(asked)
    except SchedulerSilent as error:
        advice = (
            "wait and ask again; runs that go on are not lost. On a login node: `scontrol ping`, and whether SLURM_CONF is the right one"
        )
        return (Finding(SUBJECT, "error", str(error), advice),)


def check_controller() -> tuple[Finding, ...]:
    """One ping; it says DOWN with exit code 1, after some seconds of its own (MessageTimeout), for which nobody waits."""
    start = time.monotonic()
    try:
        result = run(("scontrol", "ping"), timeout_s=QUICK_ANSWER_S, env=slurm_environment(os.environ))
    except SlipwayError as error:
        if not isinstance(error.__cause__, subprocess.TimeoutExpired):
            raise
        return tuple(judge_ping(f"no word within {QUICK_ANSWER_S:g} s", QUICK_ANSWER_S))
    said = result.stdout if "Slurmctld" in result.stdout else result.stderr
    return tuple(judge_ping(said, time.monotonic() - start))


def _check(asked: Asked) -> tuple[Finding, ...]:
    found = [*check_controller()]
    if worst(found) == "error":
        return tuple(found)
    config = parse_config(question(*CONFIG))
    user = account_name()
    found += judge_config(config, asked)
    found += _or_note("sdiag", lambda: tuple(judge_activity(question("sdiag"), user)))
    found += judge_partitions(parse_partitions(question(*SHOW)), parse_nodes(question(*SINFO)), asked)
    if has_accounting(config):
        argv = (*ASSOCIATIONS, f"user={user}", *FORMAT)
        found += _or_note("sacctmgr", lambda: tuple(judge_associations(parse_associations(question(*argv)), asked, user)))
    return tuple(found)


def _or_note(command: str, check: Callable[[], tuple[Finding, ...]]) -> tuple[Finding, ...]:
    try:
        return check()
    except SchedulerOutputError as error:
        return (Finding(SUBJECT, "note", f"{command} is not open to us here: {str(error).splitlines()[-1]}"),)


check, check_launcher, try_step, run_step = check_slurm, launcher.check_versions, launcher.try_step, launcher.run_step


def is_silent(found: Sequence[Finding]) -> bool:
    """Pure: by what a ping came to."""
    return any(finding.text.startswith(SILENT) for finding in found)


def is_here() -> bool:
    """Slurm's commands without a configuration, as a package leaves them, are no Slurm."""
    return slurm_version() is not None


def nodes_of_job(environ: Mapping[str, str]) -> tuple[str, ...]:
    """By the job's own list."""
    try:
        return expand(job_environ(environ)[NODE_LIST])
    except (KeyError, SchedulerOutputError):
        return ()


def private_tmp() -> bool:
    """Whether jobs get a /tmp of their own. False where the controller does not say."""
    try:
        return has_private_tmp(parse_config(ask(SLURM, CONFIG, patience_s=0, timeout_s=QUICK_ANSWER_S)))
    except SchedulerOutputError:
        return False


def node_names(queue: str | None, most: int) -> tuple[str, ...]:
    """Names of nodes of a partition (all partitions: None), at most so many; none where the controller does not say."""
    argv = ("sinfo", "--noheader", "--Node", "--format=%N", *((f"--partition={queue}",) if queue else ()))
    try:
        return tuple(dict.fromkeys(ask(SLURM, argv, patience_s=0, timeout_s=QUICK_ANSWER_S).split()))[:most]
    except SchedulerOutputError:
        return ()


def proposals(user: str) -> dict[str, Value]:
    """By partitions and accounts. Raises SchedulerOutputError."""
    found = from_partitions(parse_partitions(question(*SHOW)), parse_nodes(question(*SINFO)))
    try:
        if has_accounting(parse_config(question(*CONFIG))):
            mine = parse_associations(question(*ASSOCIATIONS, f"user={user}", *FORMAT))
            accounts = list(dict.fromkeys(association.account for association in mine))
            if accounts:
                why = "your account" if len(accounts) == 1 else f"one of yours: {', '.join(accounts)}"
                found["account"] = Value(value=accounts[0], why=why, sure=len(accounts) == 1)
    except SchedulerOutputError:
        return found
    return found


def allocation_argv(asked: Asked) -> tuple[str, ...]:
    """Pure: salloc, as the site's jobs ask."""
    keys = (("partition", asked.queue), ("account", asked.account), ("qos", asked.qos), ("constraint", asked.constraint))
    gres = [f"--gres=gpu:{asked.gpus_per_node}"] if asked.gpus_per_node else []
    return ("salloc", "--nodes=2", "--exclusive", "--time=10", *(f"--{name}={value}" for name, value in keys if value), *gres)
