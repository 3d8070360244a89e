"""What a site file could say, found by looking: partition, sizes, storage, cache. Every value says where it comes from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from base.errors import SchedulerOutputError, SlipwayError
from base.limited import call_limited
from cluster.doctor.schedulers import find_scheduler
from cluster.installation import default_cache, default_storage, own_checkout
from cluster.machine import memory_bytes, usable_cores
from cluster.schedulers.slurm.doctor import CONFIG, question
from cluster.schedulers.slurm.doctor.config import has_accounting, parse_config
from cluster.schedulers.slurm.doctor.controller import ASSOCIATIONS, FORMAT, parse_associations
from cluster.schedulers.slurm.doctor.partitions import (
    SHOW,
    SINFO,
    Nodes,
    Partition,
    default_partition,
    parse_nodes,
    parse_partitions,
    parse_time,
)
from data_prep.doctor.places import local_places, shared_places
from workflow.doctor.nodes import ask_nodes
from workflow.doctor.surroundings import Surroundings, orders_of
from workflow.study.site import local_site

LOOK_S: Final = 20.0
STEP_S: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Value:
    """A value for a key. `why` becomes its comment; `sure` is False where it is a guess."""

    value: str | int | None
    why: str
    sure: bool = True


Draft = Mapping[str, Value]


def gather(where: Surroundings, user: str) -> dict[str, Value]:
    """Look everywhere; the nodes too, inside an allocation."""
    found: dict[str, Value] = {"scheduler": Value(value=where.scheduler, why=why_scheduler(where))}
    facts = _facts_of_nodes(where)
    if where.scheduler == "slurm":
        found |= _from_slurm(user)
    elif where.scheduler == "local":
        found["cpus_per_node"] = Value(value=len(usable_cores()), why="cores of this machine that we may use")
        found["memory_per_node"] = Value(value=mib(memory_bytes() or 0), why="memory of this machine")
    found |= _device(found, facts, where)
    found["storage"] = _storage(user, where)
    found["cache"] = _cache(user, where, facts)
    interface = _common([fact["interface"] for fact in facts])
    if interface:
        found["network_interface"] = Value(value=interface, why="the fastest of several interfaces on the nodes")
    return found


def choose_partition(partitions: Mapping[str, Partition], nodes: Sequence[Nodes]) -> str | None:
    """Pure: the default partition; where only others have GPUs, the one of these with the most usable nodes."""
    default = default_partition(partitions)
    usable = [group for group in nodes if group.usable and partitions.get(group.partition, {}).get("State") == "UP"]
    with_gpus: dict[str, int] = {}
    for group in usable:
        if group.gpus:
            with_gpus[group.partition] = with_gpus.get(group.partition, 0) + group.count
    if with_gpus and default not in with_gpus:
        return max(with_gpus, key=lambda name: with_gpus[name])
    return default or next((group.partition for group in usable), next(iter(partitions), None))


def from_partitions(partitions: Mapping[str, Partition], nodes: Sequence[Nodes]) -> dict[str, Value]:
    """Pure: queue, sizes and walltime."""
    name = choose_partition(partitions, nodes)
    if name is None:
        return {}
    own = [group for group in nodes if group.partition == name]
    own = [group for group in own if group.usable] or own
    others = ", ".join(other for other in partitions if other != name)
    why = "the default partition" if name == default_partition(partitions) else "the largest with GPUs"
    found = {"queue": Value(value=name, why=why + (f"; others: {others}" if others else ""))}
    if own:
        smallest = "" if len({(group.cpus, group.memory_bytes, group.gpus) for group in own}) == 1 else ", the smallest of its nodes"
        found["cpus_per_node"] = Value(value=min(group.cpus for group in own), why=f"as sinfo says of {name}{smallest}")
        found["memory_per_node"] = Value(value=mib(min(group.memory_bytes for group in own)), why=f"as sinfo says of {name}{smallest}")
        gpus = [group for group in own if group.gpus]
        if gpus:
            models = ", ".join(sorted({group.gpu_model for group in gpus if group.gpu_model})) or "gres"
            found["gpus_per_node"] = Value(value=min(group.gpus for group in gpus), why=f"as sinfo says of {name}: {models}")
    longest = parse_time(partitions[name].get("MaxTime", ""))
    if longest is not None:
        found["walltime"] = Value(value=duration(longest), why=f"MaxTime of {name}")
    return found


def duration(seconds: float) -> str:
    """Pure: as a site file writes it."""
    whole = int(seconds)
    parts = ((whole // 86400, "d"), (whole % 86400 // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "1s"


def mib(num_bytes: int) -> str:
    """Pure: as a site file writes it."""
    return f"{max(1, num_bytes >> 20)}MiB"


def why_scheduler(where: Surroundings) -> str:
    """The comment of the key: by what it was chosen."""
    if where.scheduler != "local":
        return "its commands are on PATH"
    there = find_scheduler()
    if there == "local":
        return "no scheduler's commands are on PATH"
    return f"the commands of {there} are on PATH, and there is no cluster that they know"


def _from_slurm(user: str) -> dict[str, Value]:
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


def _facts_of_nodes(where: Surroundings) -> list[dict[str, Any]]:
    """What the nodes of this allocation say; nothing outside of one, or where no step can be started."""
    if where.job_id is None or not where.nodes:
        return []
    from dataclasses import replace

    try:
        orders = replace(orders_of(local_site(False)), facts_only=True)
        return [answer.facts for answer in ask_nodes(where.job_id, where.nodes, orders, STEP_S)[1]]
    except SlipwayError:
        return []


def _device(found: Draft, facts: Sequence[Mapping[str, Any]], where: Surroundings) -> dict[str, Value]:
    if where.scheduler == "local":
        return {}
    if facts:
        there = all(fact["nvidia"] for fact in facts)
        why = "nvidia-smi is there on the nodes" if there else "the nodes of this allocation have no nvidia-smi"
        return {"device": Value(value="cuda" if there else "cpu", why=why)}
    if "gpus_per_node" in found:
        return {"device": Value(value="cuda", why="the scheduler grants GPUs", sure=False)}
    return {"device": Value(value="cpu", why="the scheduler shows no GPUs in this partition", sure=False)}


def _storage(user: str, where: Surroundings) -> Value:
    if where.scheduler == "local":
        return Value(value=str(default_storage()), why=_whose())
    try:
        places = call_limited("network storage", _shared, timeout_s=LOOK_S)
    except SlipwayError:
        places = []
    if places:
        path, why = places[0]
        others = ", ".join(other for other, _ in places[1:6])
        own = "slipway" if why.startswith(("$", "your")) else f"slipway-{user}"
        return Value(value=str(Path(path) / own), why=why + (f"; others: {others}" if others else ""), sure=False)
    return Value(value=str(default_storage()), why="no network storage was found; do all nodes see this?", sure=False)


def _whose() -> str:
    return "under the checkout" if own_checkout() else "where this platform keeps what is yours"


def _shared() -> list[tuple[str, str]]:
    return [(str(path), why) for path, why in shared_places(os.environ)]


def _cache(user: str, where: Surroundings, facts: Sequence[Mapping[str, Any]]) -> Value:
    if where.scheduler == "local":
        return Value(value=str(default_cache()), why=_whose())
    if facts:
        common = [place for place in facts[0]["places"] if all(place in fact["places"] for fact in facts)]
        said = "a local disk on all nodes of this allocation"
    else:
        try:
            common = call_limited("local disks", lambda: [str(place) for place in local_places()], timeout_s=LOOK_S)
        except SlipwayError:
            common = []
        said = "a local disk of this machine; do the compute nodes have it too?"
    if common:
        others = f"; others: {', '.join(common[1:6])}" if common[1:] else ""
        return Value(value=f"{common[0]}/slipway-{user}", why=said + others, sure=bool(facts))
    return Value(value=f"/var/tmp/slipway-{user}", why="no local disk was found; ask where the nodes have one", sure=False)  # noqa: S108


def _common(values: Sequence[str | None]) -> str | None:
    return values[0] if values and len(set(values)) == 1 else None
