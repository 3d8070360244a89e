"""What `slipway doctor` asks of LSF: a handful of questions, none of them repeated for long."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from base.command import CommandResult
from base.errors import SchedulerOutputError, SchedulerSilent
from base.finding import Finding
from base.names import choices
from cluster.doctor.checks import Asked
from cluster.schedulers import doctor
from cluster.schedulers.doctor import NodeLauncher, Value, is_configured
from cluster.schedulers.lsf.answers import LSF, parse_hosts, parse_queues
from cluster.schedulers.lsf.job_end import hosts_of_job, launch_argv, passed_on
from cluster.schedulers.queries import QUICK_ANSWER_S, ask
from cluster.schedulers.queries import STEP_S as STEP_S

SUBJECT: Final = "scheduler"
SILENT: Final = "mbatchd does not answer"
BAD: Final = ("unavail", "unreach", "unlicensed")
"""What bhosts says of a host on which no job starts."""
LAUNCHER: Final = NodeLauncher(
    command="blaunch",
    advice="source the cluster's profile.lsf",
    argv=launch_argv,
    environ=passed_on,
    probe=("uname", "-n"),
    has_run=lambda result: bool(result.stdout.strip()),
    look="bhosts -l {node}",
    tries=3,  # see launcher.py
)


def question(*argv: str) -> str:
    """One question, not repeated. Raises SchedulerSilent, SchedulerOutputError."""
    return ask(LSF, argv, 0.0, QUICK_ANSWER_S)


def is_here() -> bool:
    """Whether the commands know a cluster that answers, or is silent only now."""
    return is_configured("LSF_ENVDIR", "bqueues", lambda: question("bqueues", "-w"))


def nodes_of_job(environ: Mapping[str, str]) -> tuple[str, ...]:
    """By the hosts in its environment."""
    return tuple(hosts_of_job(environ))


def check(asked: Asked) -> tuple[Finding, ...]:
    """mbatchd, the queue, the hosts."""
    try:
        queues = parse_queues(question("bqueues", "-w"))
        if asked.queue is not None and asked.queue not in queues:
            return (Finding(SUBJECT, "error", f"queue {asked.queue!r} is none of this cluster", choices(asked.queue, queues)),)
        found = [Finding(SUBJECT, "ok", f"mbatchd answers; queues: {', '.join(queues)}")]
        if asked.queue is not None:
            found += judge_queue(asked.queue, question("bqueues", "-l", asked.queue), asked.share_nodes)
        return (*found, *judge_hosts(parse_hosts(question("bhosts", "-w")), asked.cpus_per_node))
    except SchedulerSilent as error:
        advice = "wait and ask again; runs that go on are not lost. On a login node: `bhosts`, and whether profile.lsf was sourced"
        return (Finding(SUBJECT, "error", f"{SILENT}: {error}", advice),)
    except SchedulerOutputError as error:
        return (Finding(SUBJECT, "error", f"LSF's commands do not work here: {error}", "source the cluster's profile.lsf"),)


def judge_queue(name: str, said: str, share_nodes: bool) -> list[Finding]:
    """Pure: of `bqueues -l`."""
    if share_nodes or re.search(r"^SCHEDULING POLICIES:.*\bEXCLUSIVE\b", said, re.MULTILINE):
        return []
    advice = "another queue, EXCLUSIVE = Y in lsb.queues, or `share_nodes: true` in the site file"
    return [Finding(SUBJECT, "error", f"queue {name} does not take exclusive jobs, and runs get nodes of their own", advice)]


def judge_hosts(hosts: Mapping[str, tuple[str, int | None]], cores: int | None) -> list[Finding]:
    """Pure: hosts that are away, and such as have fewer slots than a run asks of a node."""
    found = []
    away = tuple(name for name, (status, _) in hosts.items() if status.startswith(BAD))
    if away:
        found.append(Finding(SUBJECT, "warning", f"{len(away)} of {len(hosts)} hosts are away", "`bhosts -w` shows them", away))
    big = [name for name, (_, slots) in hosts.items() if slots is None or slots >= (cores or 1)]
    if not big:
        text = f"no host has the {cores} slots that a node of a run asks for (cpus_per_node)"
        found.append(Finding(SUBJECT, "error", text, "`bhosts -w` shows the most of each (MAX)"))
    return found


def is_silent(found: Sequence[Finding]) -> bool:
    """Pure: by what the first question came to."""
    return any(finding.text.startswith(SILENT) for finding in found)


def check_launcher() -> tuple[Finding, ...]:
    """Whether blaunch is here."""
    return doctor.check_launcher(LAUNCHER)


def try_step(job_id: str, nodes: Sequence[str]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:  # noqa: ARG001 - the environment names it
    """One program on each of these nodes of our job, one after the other. It has run if it has said its word: exit codes are lost."""
    return doctor.try_step(LAUNCHER, nodes)


def run_step(job_id: str, nodes: Sequence[str], argv: Sequence[str], timeout_s: float, more: Mapping[str, str]) -> CommandResult:  # noqa: ARG001
    """On one node after the other; the environment names the job. Raises SlipwayError."""
    return doctor.run_step(LAUNCHER, nodes, argv, timeout_s, more)


def node_names(queue: str | None, most: int) -> tuple[str, ...]:  # noqa: ARG001 - hosts of all queues
    """Hosts that take jobs, as bhosts lists them."""
    try:
        hosts = parse_hosts(question("bhosts", "-w"))
    except SchedulerOutputError:
        return ()
    return tuple(name for name, (_, slots) in hosts.items() if slots != 0)[:most]


def private_tmp() -> bool:
    """LSF gives a job a directory of its own at most, and no /tmp."""
    return False


def proposals(user: str) -> dict[str, Value]:  # noqa: ARG001 - the same for all users
    """The first queue, and the slots of the hosts. Raises SchedulerOutputError."""
    found: dict[str, Value] = {}
    queues = parse_queues(question("bqueues", "-w"))
    if queues:
        found["queue"] = Value(value=queues[0], why=f"of {', '.join(queues)}", sure=len(queues) == 1)
    sizes = {slots for _, slots in parse_hosts(question("bhosts", "-w")).values() if slots}
    if sizes:
        found["cpus_per_node"] = Value(value=min(sizes), why="slots of a host, the least (bhosts)", sure=len(sizes) == 1)
    return found


def allocation_argv(asked: Asked) -> tuple[str, ...]:
    """Pure: bsub, as the site's jobs ask, with two nodes; what follows runs on the first."""
    slots = asked.cpus_per_node or 1
    keys = (("-q", asked.queue), ("-P", asked.account))
    words = (word for key, value in keys if value for word in (key, value))
    return ("bsub", "-Is", "-n", str(2 * slots), "-R", f"span[ptile={slots}]", "-W", "10", *words)
