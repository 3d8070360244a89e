"""What `slipway doctor` asks of PBS: a handful of questions, none of them repeated for long. Judging is pure."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from base.command import CommandResult, last_lines, run
from base.errors import AllocationError, SchedulerOutputError, SchedulerSilent, SlipwayError
from base.finding import Finding
from base.names import choices
from base.units import format_duration
from cluster.doctor.checks import Asked
from cluster.pbs_tasks.launcher import command, launcher_argv
from cluster.schedulers.doctor import Value, mib
from cluster.schedulers.jobs import JobSize
from cluster.schedulers.pbs.answers import PBS, parse_clock, parse_size, pbs_version, whole
from cluster.schedulers.pbs.job_end import node_names as names_of_job
from cluster.schedulers.pbs.jobs import NODES, QUEUES, UNUSABLE, Entries, nodes_problem, parse_entries, queue_problem
from cluster.schedulers.queries import DOCTOR_PATIENCE_S, QUICK_ANSWER_S, ask
from cluster.schedulers.queries import STEP_S as STEP_S

SUBJECT: Final = "scheduler"
LAUNCHER: Final = "launcher"
SILENT: Final = "the server of PBS does not answer"
SERVER: Final = ("qstat", "-B", "-f", "-F", "json")


def is_here() -> bool:
    """Whether a server is configured here; its commands alone, as a package leaves them, are no PBS."""
    try:
        ask(PBS, SERVER, 0.0, QUICK_ANSWER_S)
    except SchedulerSilent:
        return True
    except SchedulerOutputError:
        return False
    return True


def nodes_of_job(environ: Mapping[str, str]) -> tuple[str, ...]:
    """By the job's own file."""
    try:
        return names_of_job(environ)
    except AllocationError:
        return ()


def check(asked: Asked) -> tuple[Finding, ...]:
    """The server, its queues and nodes, against the site file."""
    start = time.monotonic()
    try:
        server = parse_entries(ask(PBS, SERVER, DOCTOR_PATIENCE_S, QUICK_ANSWER_S))
        taken_s = time.monotonic() - start
        queues, nodes = (parse_entries(ask(PBS, argv, DOCTOR_PATIENCE_S, QUICK_ANSWER_S)) for argv in (QUEUES, NODES))
    except SchedulerSilent as error:
        advice = "wait and ask again; runs that go on are not lost. On a login node: `qstat -B`, and whether /etc/pbs.conf names the server"
        return (Finding(SUBJECT, "error", f"{SILENT}: {error}", advice),)
    except SchedulerOutputError as error:
        return (Finding(SUBJECT, "error", str(error), "a login node of the cluster"),)
    return (*judge_server(server, taken_s), *judge_size(queues, nodes, asked), *judge_nodes(nodes, asked))


def judge_server(server: Entries, taken_s: float) -> Iterator[Finding]:
    """Pure: what the server says of itself."""
    for name, said in server.items():
        state, version = said.get("server_state", "unknown"), said.get("pbs_version", "of unknown version")
        level = "ok" if state == "Active" else "warning"
        yield Finding(SUBJECT, "ok" if level == "ok" else "warning", f"the server {name} (PBS {version}) is {state}, {taken_s:.1f} s")
        if said.get("job_history_enable") != "True":
            text = (
                "PBS forgets jobs when they end (job_history_enable is not set): how a job ended is known by what it left on storage only"
            )
            yield Finding(SUBJECT, "note", text, "the site's administrators can set job_history_enable")
        requeue = whole(said.get("node_fail_requeue"))
        if requeue is not None and requeue > 0:
            text = f"a job whose first node is lost is started again after {format_duration(requeue)} (node_fail_requeue)"
            yield Finding(SUBJECT, "ok", text)


def judge_size(queues: Entries, nodes: Entries, asked: Asked) -> Iterator[Finding]:
    """Pure: the queue and the sizes of the site file."""
    memory = None if asked.memory_per_node_bytes is None or not asked.share_nodes else asked.memory_per_node_bytes >> 20
    size = JobSize(
        nodes=1,
        minutes=max(1, int((asked.walltime_s or 60) // 60)),
        cores=asked.cpus_per_node,
        memory_mb=memory,
        gpus=asked.gpus_per_node,
        queue=asked.queue,
    )
    if asked.qos is not None:
        yield Finding("queue", "error", f"qos {asked.qos!r} in the site file: PBS has none", "leave it out")
    if asked.queue is None:
        yield Finding("queue", "ok", f"the site names no queue: PBS takes its default; there are {', '.join(sorted(queues)) or 'none'}")
    elif asked.queue in queues and "False" in (queues[asked.queue].get("enabled"), queues[asked.queue].get("started")):
        yield Finding("queue", "warning", f"queue {asked.queue} takes or starts no jobs now", choices(asked.queue, queues))
    problem = queue_problem(queues, size) or nodes_problem(nodes, size)
    if problem:
        yield Finding("queue", "error", problem, "correct the site file")
    elif asked.queue is not None:
        yield Finding("queue", "ok", f"queue {asked.queue} is there")


def judge_nodes(nodes: Entries, asked: Asked) -> Iterator[Finding]:
    """Pure: how many nodes there are, and whether anything counts GPUs."""
    bad = [name for name, node in nodes.items() if any(word in str(node.get("state", "")) for word in UNUSABLE)]
    text = f"{len(nodes)} nodes, {len(bad)} of them down or offline"
    yield Finding("nodes", "warning" if nodes and len(bad) == len(nodes) else "ok", text, "`pbsnodes -l`" if bad else "")
    if asked.gpus_per_node and asked.share_nodes:
        text = (
            "runs share nodes: only PBS's cgroup hook says which GPUs are a job's (CUDA_VISIBLE_DEVICES); without it such runs are refused"
        )
        yield Finding("gpus", "note", text, "`slipway gpus --explain` in a job; or share_nodes: false")
    if asked.cpus_per_node is None:
        text = "the site file says no cpus_per_node: jobs ask for one core per node, which a site with the cgroup hook enforces"
        yield Finding("nodes", "warning", text, "cpus_per_node: N in the site file")


def is_silent(found: Sequence[Finding]) -> bool:
    """Pure: by what `check` came to."""
    return any(finding.text.startswith(SILENT) for finding in found)


def check_launcher() -> tuple[Finding, ...]:
    """Whether pbs_tmrsh is here; it can be tried in a job only."""
    try:
        result = run((command("pbs_tmrsh"), "--version"), timeout_s=10.0)
    except SlipwayError as error:
        return (Finding(LAUNCHER, "error", str(error), "a login node, or the module of the scheduler"),)
    said, version = (result.stdout or result.stderr).strip(), pbs_version()
    return (Finding(LAUNCHER, "ok" if version is not None and version in said else "warning", f"pbs_tmrsh: {said}"),)


def run_step(job_id: str, nodes: Sequence[str], argv: Sequence[str], timeout_s: float, more: Mapping[str, str]) -> CommandResult:  # noqa: ARG001
    """All at once, one launcher each. Raises SlipwayError."""
    env = {**os.environ, **more}
    with ThreadPoolExecutor(max_workers=32) as pool:
        results = list(pool.map(lambda node: run(launcher_argv(node, argv), timeout_s=timeout_s, env=env), nodes))
    return CommandResult(
        argv=tuple(argv),
        returncode=max((abs(result.returncode) for result in results), default=0),
        stdout="".join(result.stdout for result in results),
        stderr="".join(result.stderr for result in results),
    )


def try_step(job_id: str, nodes: Sequence[str]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """A program on each node: findings, and the nodes that answered."""
    from base.packages import rooms_environ

    found, good = [], []
    start = time.monotonic()
    for node in nodes:
        try:
            result = run_step(job_id, (node,), ("/bin/sh", "-c", "hostname"), STEP_S / max(1, len(nodes)) + 5.0, rooms_environ(os.environ))
        except SlipwayError as error:
            found.append(Finding(LAUNCHER, "error", f"pbs_tmrsh on {node}: {error}", f"`pbsnodes {node}`, and the log of its pbs_mom"))
            continue
        if result.returncode:
            words = last_lines(result.stderr, 2).replace("\n", "; ")
            advice = f"`pbsnodes {node}`, and the log of its pbs_mom"
            found.append(Finding(LAUNCHER, "error", f"pbs_tmrsh on {node} ends with {result.returncode}: {words}", advice))
        else:
            good.append(node)
    if good:
        text = f"pbs_tmrsh started a program on each of {len(good)} nodes in {format_duration(time.monotonic() - start)}"
        found.append(Finding(LAUNCHER, "ok", text))
    return tuple(found), tuple(good)


def node_names(queue: str | None, most: int) -> tuple[str, ...]:  # noqa: ARG001 - PBS ties few nodes to queues
    """Names of nodes, at most so many; none where the server does not say."""
    try:
        return tuple(parse_entries(ask(PBS, NODES, 0.0, QUICK_ANSWER_S)))[:most]
    except SchedulerOutputError:
        return ()


def private_tmp() -> bool:
    """PBS does not say it (a hook of the site may do so)."""
    return False


def proposals(user: str) -> dict[str, Value]:  # noqa: ARG001 - PBS has no accounts of its own
    """By the default queue and the smallest node that works. Raises SchedulerOutputError."""
    server = next(iter(parse_entries(ask(PBS, SERVER, DOCTOR_PATIENCE_S)).values()), {})
    queues, nodes = (parse_entries(ask(PBS, argv, DOCTOR_PATIENCE_S)) for argv in (QUEUES, NODES))
    found = {}
    name = server.get("default_queue")
    if name in queues:
        found["queue"] = Value(value=name, why="the default queue; there are " + ", ".join(sorted(queues)), sure=len(queues) == 1)
        most = queues[name].get("resources_max")
        longest = parse_clock(str(most.get("walltime", ""))) if isinstance(most, dict) else None
        if longest is not None:
            found["walltime"] = Value(value=f"{int(longest)}s", why=f"the longest that queue {name} allows")
    has = [node["resources_available"] for node in nodes.values() if isinstance(node.get("resources_available"), dict)]
    for key, resource in (("cpus_per_node", "ncpus"), ("gpus_per_node", "ngpus")):
        counts = [whole(one.get(resource)) or 0 for one in has]
        if any(counts):
            found[key] = Value(value=max(counts), why=f"{resource} of the largest node", sure=len(set(counts)) == 1)
    sizes = [size for one in has if (size := parse_size(str(one.get("mem", "")))) is not None]
    if sizes:
        found["memory_per_node"] = Value(value=mib(min(sizes)), why="mem of the smallest node")
    return found


def allocation_argv(asked: Asked) -> tuple[str, ...]:
    """Pure: `qsub -I` takes one program with `--`."""
    chunk = [f"ncpus={asked.cpus_per_node or 1}", "mpiprocs=1", *((f"ngpus={asked.gpus_per_node}",) if asked.gpus_per_node else ())]
    chunk += [asked.constraint] if asked.constraint else []
    keys = (("-q", asked.queue), ("-A", asked.account))
    more = [word for option, value in keys if value for word in (option, value)]
    return ("qsub", "-I", "-l", f"select=2:{':'.join(chunk)}", "-l", "place=scatter:exclhost", "-l", "walltime=00:10:00", *more, "--")
