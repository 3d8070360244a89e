"""All checks in their order, for where the command runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from base.finding import Finding, merged
from base.userpath import has_variables
from cluster.doctor.asked import Asked
from cluster.doctor.names import check_nodes
from cluster.doctor.schedulers import check_choice, find_scheduler
from cluster.schedulers import SCHEDULERS, doctor_of
from cluster.schedulers.doctor import Doctor
from data_prep.doctor.cache import check_cache_path
from data_prep.doctor.storage import check_storage
from workflow.doctor.guard import Check, guarded
from workflow.doctor.node import local_checks, machine_checks
from workflow.doctor.nodes import TIMEOUT_S, check_on_nodes
from workflow.doctor.software import check_software
from workflow.doctor.surroundings import Surroundings, asked_of, orders_of
from workflow.study.site import Site

MOST_NAMES: Final = 32


def run_checks(site: Site, where: Surroundings, say: Callable[[str], None]) -> tuple[Finding, ...]:
    """Every check, one after the other, so that they do not slow each other down; `say` is told what is being looked at."""
    found: list[Finding] = []
    for check in checks(site, where, found):
        say(f"{check.subject}: {check.function.__name__.removeprefix('check_').replace('_', ' ')}")
        found += guarded(check)
    return merged(found)


def checks(site: Site, where: Surroundings, found: Sequence[Finding] = ()) -> Iterator[Check]:
    """What is looked at: the cluster, storage, and the machines on which runs are started, as far as they can be reached from here.
    `found`: grows meanwhile; a controller that did not answer is asked no more."""
    asked = asked_of(site)
    alone = site.scheduler == "local"
    asks = bool(where.job_id and where.nodes)
    yield Check(subject="scheduler", function=check_choice, arguments=(site.scheduler, frozenset(SCHEDULERS)), timeout_s=15)
    doctor = doctor_of(site.scheduler)
    if doctor is not None and find_scheduler(site.scheduler) == site.scheduler:
        yield Check(subject="scheduler", function=doctor.check, arguments=(asked,), timeout_s=90)
        yield Check(subject="launcher", function=doctor.check_launcher, timeout_s=25)
    yield Check(subject="storage", function=check_storage, arguments=(site.storage, site.shared, alone, asks), timeout_s=40)
    yield Check(subject="software", function=check_software, arguments=(alone or asks,))
    if alone or where.job_id is not None:
        yield from _where_runs_are(site, where, alone)
    else:
        yield from _outside(site, where, asked, silent=doctor is not None and doctor.is_silent(found))
    if not alone:
        yield Check(subject="network", function=say_open)


def _where_runs_are(site: Site, where: Surroundings, alone: bool) -> Iterator[Check]:
    doctor = doctor_of(where.scheduler)
    if alone or doctor is None:
        yield from local_checks(orders_of(site), where.hostname, alone)
        return
    arguments = (doctor, where, site)
    yield Check(subject="launcher", function=check_nodes_of_job, arguments=arguments, timeout_s=doctor.STEP_S * 2 + TIMEOUT_S + 20)


def _outside(site: Site, where: Surroundings, asked: Asked, silent: bool) -> Iterator[Check]:
    doctor = None if silent else doctor_of(where.scheduler)
    yield Check(subject="cache", function=check_path_of_cache, arguments=(site.cache.path, site.storage, doctor), timeout_s=40)
    yield from machine_checks(orders_of(site), alone=False, starts=False)
    if doctor is not None:
        yield Check(subject="names", function=check_names_of_nodes, arguments=(doctor, asked.queue), timeout_s=60)


def check_nodes_of_job(doctor: Doctor, where: Surroundings, site: Site) -> tuple[Finding, ...]:
    """A first step, then the node program on every node of this job that answers."""
    assert where.job_id is not None
    found, good = doctor.try_step(where.job_id, where.nodes)
    orders = orders_of(site, good, doctor.private_tmp())
    return (*found, *(check_on_nodes(where.scheduler, where.job_id, good, orders, site.storage) if good else ()))


def check_path_of_cache(path: Path, storage: Path, doctor: Doctor | None) -> tuple[Finding, ...]:
    """What can be said of the cache without a compute node."""
    if has_variables(str(path)):
        text = f"{path} holds variables, which have their values on the nodes"
        return (Finding("cache", "note", text, "inside an allocation this command looks at the path that they make"),)
    return check_cache_path(path, storage, doctor is not None and doctor.private_tmp())


def check_names_of_nodes(doctor: Doctor, queue: str | None) -> tuple[Finding, ...]:
    """The names that the scheduler gives its nodes, from here."""
    return check_nodes(doctor.node_names(queue, MOST_NAMES))


def say_open() -> tuple[Finding, ...]:
    """What no check can find out."""
    text = (
        "the rendezvous of the ranks (torch's TCPStore), NCCL and gloo have no password: whoever reaches a node's ports can join or disturb"
    )
    return (Finding("network", "note", text, "an isolated network between the nodes is assumed; Slipway's own sockets are authenticated"),)
