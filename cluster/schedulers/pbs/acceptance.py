"""Whether PBS would ever run a job, asked before it is submitted: it takes jobs that no node can hold, and lets them wait for ever."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from base.errors import SchedulerOutputError, SchedulerSilent
from base.names import choices
from base.units import counted, format_duration
from cluster.schedulers.asking import ask
from cluster.schedulers.jobs import BatchJob, JobSize
from cluster.schedulers.limits import QUICK_ANSWER_S
from cluster.schedulers.pbs.answers import blocks, parse_clock, parse_size, whole
from cluster.schedulers.pbs.query import PBS

Entries = Mapping[str, Mapping[str, Any]]
QUEUES = ("qstat", "-Q", "-f", "-F", "json")
NODES = ("pbsnodes", "-a", "-F", "json")
UNUSABLE: Final = ("down", "offline", "state-unknown", "unresolvable")
"""Of the state of a node that takes no jobs."""


def parse_entries(answer: str) -> dict[str, Mapping[str, Any]]:
    """Pure: queues or nodes by name, of QUEUES or NODES; one that cannot be read is left out."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, block in blocks(answer):
        try:
            value = json.loads(block, strict=False)
        except ValueError:
            continue
        if isinstance(value, dict):
            found[name] = value
    return found


def queue_problem(queues: Entries, size: JobSize) -> str | None:
    """Pure: why the queue of such a job never starts it, and what to change."""
    name = size.queue
    if name is None or not queues:
        return None
    if name not in queues:
        return f"queue {name!r} of the site file is no queue of this cluster; {choices(name, queues)}"
    most = _resources(queues[name], "resources_max")
    longest = parse_clock(str(most.get("walltime", "")))
    if longest is not None and size.minutes * 60 > longest:
        return (
            f"a job of {format_duration(size.minutes * 60)} never starts: queue {name} allows {format_duration(longest)} "
            f"(resources_max.walltime); `walltime: {int(longest)}s` or less in the site file, a shorter `limits: {{walltime: ...}}` in the "
            f"study, or another queue"
        )
    allowed = whole(most.get("nodect"))
    if allowed is not None and size.nodes > allowed:
        return f"a job of {counted(size.nodes, 'node')} never starts: queue {name} allows {allowed} (resources_max.nodect); fewer nodes"
    return None


def others(nodes: Entries, size: JobSize) -> tuple[str, ...]:
    """Pure: as many nodes as the job wants, without those that it is to leave out, free ones first; none where there are too few."""
    fitting = {
        name: node
        for name, node in nodes.items()
        if name not in size.exclude and _is_up(node) and nodes_problem({name: node}, replace(size, nodes=1)) is None
    }
    names = sorted(fitting, key=lambda name: fitting[name].get("state") != "free")  # in the server's order otherwise
    return tuple(names[: size.nodes]) if len(names) >= size.nodes else ()


def _is_up(node: Mapping[str, Any]) -> bool:
    return not any(word in str(node.get("state", "")) for word in UNUSABLE)


def instead_of_failed(size: JobSize) -> tuple[str, ...]:
    """The same of this cluster; none where nothing is to be left out, or the server does not say."""
    if not size.exclude:
        return ()
    try:
        return others(parse_entries(ask(PBS, NODES, 0.0, QUICK_ANSWER_S)), size)
    except SchedulerOutputError:
        return ()


def nodes_problem(nodes: Entries, size: JobSize) -> str | None:
    """Pure: the same of the machines: how many could ever give what each node of the job asks, those that are down now too."""
    if not nodes:
        return None
    hosts: dict[str, dict[str, int]] = {}
    for name, node in nodes.items():
        has = _resources(node, "resources_available")
        host = hosts.setdefault(str(has.get("host", name)), {"ncpus": 0, "ngpus": 0, "mem": 0})
        host["ncpus"] += whole(has.get("ncpus")) or 0
        host["ngpus"] += whole(has.get("ngpus")) or 0
        host["mem"] += parse_size(str(has.get("mem", ""))) or 0
    asked = {"ncpus": size.cores or 0, "ngpus": size.gpus or 0, "mem": (size.memory_mb or 0) << 20}
    fitting = sum(all(host[key] >= number for key, number in asked.items()) for host in hosts.values())
    if fitting >= size.nodes:
        return None
    each = [f"{number} {what}" for what, number in (("cores", asked["ncpus"]), ("GPUs", asked["ngpus"])) if number]
    each += [f"{size.memory_mb} MB"] if size.memory_mb else []
    what = f" with {', '.join(each)} each" if each else ""
    return (
        f"a job of {counted(size.nodes, 'node')}{what} never starts: {fitting} of the {len(hosts)} nodes of this cluster have that "
        f"(`pbsnodes -aSj`); fewer nodes in the study, or other sizes in the site file"
    )


def never_starts(size: JobSize) -> str | None:
    """The same of this cluster; None where no PBS is here, or it does not say. Raises SchedulerSilent."""
    try:
        return queue_problem(parse_entries(ask(PBS, QUEUES, 0.0, QUICK_ANSWER_S)), size) or nodes_problem(
            parse_entries(ask(PBS, NODES, 0.0, QUICK_ANSWER_S)), size
        )
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        return None


def refusal_of(job: BatchJob) -> str | None:  # noqa: ARG001 - the same for all
    """PBS has no way to ask that without submitting."""
    return None


def _resources(entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = entry.get(key)
    return value if isinstance(value, dict) else {}
