"""What `slipway doctor` asks of Grid Engine: a handful of questions, none of them repeated for long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from base.command import CommandResult
from base.errors import SchedulerOutputError, SchedulerSilent
from base.finding import Finding
from base.names import choices
from cluster.doctor.checks import Asked
from cluster.schedulers import doctor
from cluster.schedulers.doctor import NodeLauncher, Value, is_configured
from cluster.schedulers.jobs import JobSize
from cluster.schedulers.queries import QUICK_ANSWER_S, ask
from cluster.schedulers.queries import STEP_S as STEP_S
from cluster.schedulers.sge.answers import SGE, parse_hosts, parse_settings
from cluster.schedulers.sge.job_end import SHORT_NOTICE_S, hosts_of_job, launch_argv, passed_on
from cluster.schedulers.sge.jobs import environment_problem

SUBJECT: Final = "scheduler"
SILENT: Final = "sge_qmaster does not answer"
LAUNCHER: Final = NodeLauncher(
    command="qrsh",
    advice="source the settings.sh of the cell",
    argv=launch_argv,
    environ=passed_on,
    probe=("/bin/true",),
    has_run=lambda result: result.returncode == 0,
    look="qstat -f -q '*@{node}'",
)


def question(*argv: str) -> str:
    """One question to qmaster, not repeated. Raises SchedulerSilent, SchedulerOutputError."""
    return ask(SGE, argv, 0.0, QUICK_ANSWER_S)


def is_here() -> bool:
    """Whether the commands know a cell that answers, or is silent only now."""
    return is_configured("SGE_ROOT", "qconf", lambda: question("qconf", "-sql"))


def nodes_of_job(environ: Mapping[str, str]) -> tuple[str, ...]:
    """By the file of the job's hosts."""
    return tuple(hosts_of_job(environ))


def check(asked: Asked) -> tuple[Finding, ...]:
    """qmaster, the queue, the parallel environment."""
    try:
        return (*_of_queue(asked, question("qconf", "-sql").split()), *_of_environment(asked, question("qconf", "-spl").split()))
    except SchedulerSilent as error:
        advice = "wait and ask again; runs that go on are not lost. On a login node: `qhost`, and whether SGE_ROOT and SGE_CELL are right"
        return (Finding(SUBJECT, "error", f"{SILENT}: {error}", advice),)
    except SchedulerOutputError as error:
        return (Finding(SUBJECT, "error", f"Grid Engine's commands do not work here: {error}", "source the settings.sh of the cell"),)


def _of_queue(asked: Asked, queues: Sequence[str]) -> tuple[Finding, ...]:
    if asked.queue is None:
        return (Finding(SUBJECT, "ok", f"sge_qmaster answers; queues: {', '.join(queues)}"),)
    if asked.queue.partition("@")[0] not in queues:
        return (Finding(SUBJECT, "error", f"queue {asked.queue!r} is none of this cell", choices(asked.queue, queues)),)
    settings = parse_settings(question("qconf", "-sq", asked.queue.partition("@")[0]))
    return tuple(judge_queue(asked, settings))


def judge_queue(asked: Asked, settings: Mapping[str, str]) -> list[Finding]:
    """Pure: of `qconf -sq`."""
    found = [Finding(SUBJECT, "ok", f"sge_qmaster answers; queue {asked.queue} has {settings.get('slots', '?')} slots per node")]
    notice = [int(part) for part in settings.get("notify", "").split(":") if part.isdecimal()]
    if len(notice) == 3 and notice[0] * 3600 + notice[1] * 60 + notice[2] < SHORT_NOTICE_S:
        advice = "runs that are cancelled may leave no record of it: ask the site for `notify 00:01:00` in the queue"
        found.append(Finding(SUBJECT, "warning", f"queue {asked.queue} kills {settings['notify']} after its warning", advice))
    return found


def _of_environment(asked: Asked, names: Sequence[str]) -> tuple[Finding, ...]:
    said = (asked.parallel_environment or "").split()
    if not said:
        text = "the site file names no parallel_environment, without which no programs start on nodes"
        return (Finding(SUBJECT, "error", text, f"`parallel_environment: NAME SLOTS`; here are: {', '.join(names) or 'none'}"),)
    if said[0] not in names:
        return (Finding(SUBJECT, "error", f"parallel_environment {said[0]!r} is none of this cell", choices(said[0], names)),)
    settings = parse_settings(question("qconf", "-sp", said[0]))
    size = JobSize(nodes=2, minutes=1, cores=asked.cpus_per_node, parallel_environment=asked.parallel_environment)
    problem = environment_problem(said[0], settings, size)
    if problem:
        return (Finding(SUBJECT, "error", problem),)
    rule = settings.get("allocation_rule", "?")
    if not rule.isdecimal():
        text = f"parallel_environment {said[0]!r} has allocation_rule {rule}: the same slots may come from fewer nodes than are asked"
        return (Finding(SUBJECT, "warning", text, "one with a fixed number of slots per node, where the site has it"),)
    return (Finding(SUBJECT, "ok", f"parallel_environment {said[0]} starts programs on nodes, {rule} slots each"),)


def is_silent(found: Sequence[Finding]) -> bool:
    """Pure: by what the first question came to."""
    return any(finding.text.startswith(SILENT) for finding in found)


def check_launcher() -> tuple[Finding, ...]:
    """Whether qrsh is here."""
    return doctor.check_launcher(LAUNCHER)


def try_step(job_id: str, nodes: Sequence[str]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:  # noqa: ARG001 - the environment names it
    """One program on each of these nodes of our job, one after the other."""
    return doctor.try_step(LAUNCHER, nodes)


def run_step(job_id: str, nodes: Sequence[str], argv: Sequence[str], timeout_s: float, more: Mapping[str, str]) -> CommandResult:  # noqa: ARG001
    """On one node after the other; the environment names the job. Raises SlipwayError."""
    return doctor.run_step(LAUNCHER, nodes, argv, timeout_s, more)


def node_names(queue: str | None, most: int) -> tuple[str, ...]:  # noqa: ARG001 - hosts of all queues
    """Execution hosts, as qhost lists them."""
    try:
        return tuple(parse_hosts(question("qhost")))[:most]
    except SchedulerOutputError:
        return ()


def private_tmp() -> bool:
    """Grid Engine gives a job a TMPDIR of its own, and no /tmp."""
    return False


def proposals(user: str) -> dict[str, Value]:  # noqa: ARG001 - the same for all users
    """The first queue, and a parallel environment that fits. Raises SchedulerOutputError."""
    found: dict[str, Value] = {}
    queues = question("qconf", "-sql").split()
    if queues:
        found["queue"] = Value(value=queues[0], why=f"of {', '.join(queues)}", sure=len(queues) == 1)
    for name in question("qconf", "-spl").split():
        settings = parse_settings(question("qconf", "-sp", name))
        rule = settings.get("allocation_rule", "")
        if rule.isdecimal() and settings.get("control_slaves", "").upper() == "TRUE":
            found["parallel_environment"] = Value(value=f"{name} {rule}", why=f"{rule} slots of it are a node", sure=False)
            break
    return found


def allocation_argv(asked: Asked) -> tuple[str, ...]:
    """Pure: qrsh, as the site's jobs ask, with two nodes; what follows runs on the first."""
    name, slots, *_ = [*(asked.parallel_environment or "PARALLEL_ENVIRONMENT").split(), str(asked.cpus_per_node or 1)]
    keys = (("-q", asked.queue), ("-P", asked.account))
    words = (word for key, value in keys if value for word in (key, value))
    return ("qrsh", "-now", "no", "-cwd", "-V", "-pe", name, str(2 * int(slots)), "-l", "h_rt=600", *words)
