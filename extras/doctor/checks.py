"""List all checks in their order, for where the command runs."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final

from base import VERSION
from base.finding import Finding, merged
from base.packages import ROOMS
from base.userpath import has_variables
from cluster.doctor.checks import Asked, check_choice, check_nodes, find_scheduler
from cluster.installation import DISTRIBUTION, FROM_CHECKOUT
from cluster.schedulers import SCHEDULERS, doctor_of
from cluster.schedulers.doctor import Doctor
from data_prep.doctor.trial import check_cache_path, check_storage
from data_prep.mounts import Mount, place_of
from extras.doctor.guard import Check, guarded
from extras.doctor.node import local_checks, machine_checks
from extras.doctor.nodes import TIMEOUT_S, check_on_nodes
from extras.doctor.surroundings import Surroundings, asked_of, orders_of
from workflow.study.site import Site

# The checkout's own software: its Python, its place, and its pinned versions.


SUBJECT: Final = "software"
_PIN: Final = re.compile(r"([A-Za-z0-9_.-]+)==([\w.]+)")


def pins(requirements: Iterable[str]) -> dict[str, str]:
    """Return the requirements that ask for one version, whatever extra they belong to."""
    return {match[1]: match[2] for match in (_PIN.fullmatch(text.partition(";")[0].strip()) for text in requirements) if match}


def requirements() -> list[str]:
    """Return what this installation requires, extras too: by the checkout's pyproject.toml, or by what pip was told of the wheel."""
    if not FROM_CHECKOUT:
        return metadata.requires(DISTRIBUTION) or []
    file = ROOMS / "pyproject.toml"
    project = tomllib.loads(file.read_text())["project"] if file.is_file() else {}
    extras = [text for texts in project.get("optional-dependencies", {}).values() for text in texts]
    return [*project.get("dependencies", []), *extras]


def judge_versions(wanted: Mapping[str, str], found: Mapping[str, str | None]) -> Iterator[Finding]:
    """Compare pinned versions with installed ones; None: not installed."""
    wrong = [f"{name} {found[name] or 'not installed'} (wanted {version})" for name, version in wanted.items() if found[name] != version]
    if wrong:
        text = f"not the versions that Slipway was tested with: {', '.join(wrong)}"
        yield Finding(SUBJECT, "warning", text, "`make demo` installs them; or pip install the wanted ones")
    else:
        yield Finding(SUBJECT, "ok", ", ".join(f"{name} {version}" for name, version in found.items() if version))


def judge_place(what: str, path: Path, mount: Mount | None, told: bool) -> Iterator[Finding]:
    """Judge whether compute nodes can reach a path. `told`: they need not, or are asked themselves."""
    if told or mount is None:
        yield Finding(SUBJECT, "ok", f"{what} {path}")
    elif mount.kind == "network":
        yield Finding(SUBJECT, "ok", f"{what} {path} is on {mount.describe()}")
    else:
        text = f"{what} {path} is on {mount.describe()}: looks like a disk of this machine"
        yield Finding(SUBJECT, "note", text, "compute nodes start the same Python: inside an allocation this command tries it")


def check_software(told: bool) -> tuple[Finding, ...]:
    """Check versions, the place of interpreter and checkout, and torch.

    `told`: other machines need not reach them, or are asked themselves.
    """
    wanted = {name: version for name, version in pins(requirements()).items() if name != "torch"}
    found = {name: _version(name) for name in wanted}
    python = f"Python {'.'.join(map(str, sys.version_info[:3]))}"
    findings = [*judge_versions(wanted, found), *judge_place(f"Slipway {VERSION}, in", ROOMS, place_of(ROOMS)[1], told)]
    own = Path(sys.prefix)
    findings += judge_place(f"{python}, in", own, place_of(own)[1], told)
    if importlib.util.find_spec("torch") is None:
        text = "torch is not installed: framework pytorch with engine: bare cannot run"
        findings.append(Finding(SUBJECT, "note", text, "install it there (docs/installing.md), or choose an engine with containers"))
    return tuple(findings)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


MOST_NAMES: Final = 32


def run_checks(site: Site, where: Surroundings, say: Callable[[str], None]) -> tuple[Finding, ...]:
    """Run every check, one after the other, so that they do not slow each other down; `say` is told what is being looked at."""
    found: list[Finding] = []
    for check in checks(site, where, found):
        say(f"{check.subject}: {check.function.__name__.removeprefix('check_').replace('_', ' ')}")
        found += guarded(check)
    return merged(found)


def checks(site: Site, where: Surroundings, found: Sequence[Finding] = ()) -> Iterator[Check]:
    """Yield the checks of the cluster, of storage, and of the machines on which runs are started, as far as they can be reached from
    here.

    `found`: grows meanwhile; a controller that did not answer is asked no more.
    """
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
    """Run a first step, then the node program on every node of this job that answers."""
    assert where.job_id is not None
    found, good = doctor.try_step(where.job_id, where.nodes)
    orders = orders_of(site, good, doctor.private_tmp())
    return (*found, *(check_on_nodes(where.scheduler, where.job_id, good, orders, site.storage) if good else ()))


def check_path_of_cache(path: Path, storage: Path, doctor: Doctor | None) -> tuple[Finding, ...]:
    """Check what can be known of the cache without a compute node."""
    if has_variables(str(path)):
        text = f"{path} holds variables, which have their values on the nodes"
        return (Finding("cache", "note", text, "inside an allocation this command looks at the path that they make"),)
    return check_cache_path(path, storage, doctor is not None and doctor.private_tmp())


def check_names_of_nodes(doctor: Doctor, queue: str | None) -> tuple[Finding, ...]:
    """Check the names that the scheduler gives its nodes, from here."""
    return check_nodes(doctor.node_names(queue, MOST_NAMES))


def say_open() -> tuple[Finding, ...]:
    """Say what no check can find out."""
    text = (
        "the rendezvous of the ranks (torch's TCPStore), NCCL and gloo have no password: whoever reaches a node's ports can join or disturb"
    )
    return (Finding("network", "note", text, "an isolated network between the nodes is assumed; Slipway's own sockets are authenticated"),)
