"""Find out where the command runs (a login node, inside an allocation, or a machine of its own), and what the checks are to look at."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields

from cluster.detection import SIGNS, scheduler_of
from cluster.doctor.checks import Asked, find_scheduler
from cluster.schedulers import doctor_of
from extras.doctor.node import Orders
from workflow.study.site import Site


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The place where the command runs.

    `job_id` and `nodes` are set inside an allocation; `scheduler` is the one that is here.
    """

    hostname: str
    scheduler: str
    job_id: str | None = None
    nodes: tuple[str, ...] = ()

    def describe(self, site: Site) -> str:
        """Describe the place in one line for people."""
        if self.job_id is not None:
            nodes = f" on {', '.join(self.nodes[:8])}{' ...' if len(self.nodes) > 8 else ''}" if self.nodes else ""
            return f"on {self.hostname}, inside job {self.job_id} of {self.scheduler}{nodes}"
        if site.scheduler != "local":
            return f"on {self.hostname}, outside of any allocation of {site.scheduler}"
        return f"on {self.hostname}, where runs are started"


def look(environ: Mapping[str, str], said: str | None = None) -> Surroundings:
    """Read from the environment and PATH. Commands that know no cluster are no scheduler. `said`: the site's scheduler."""
    inside = scheduler_of(environ)
    hostname = os.uname().nodename
    if inside is None:
        here = find_scheduler(said)
        doctor = doctor_of(here)
        works = doctor is None or doctor.is_here()
        return Surroundings(hostname=hostname, scheduler=here if works else "local")
    job_id = environ[SIGNS[inside].variables[0]]
    doctor = doctor_of(inside)
    nodes = () if doctor is None else doctor.nodes_of_job(environ)
    return Surroundings(hostname=hostname, scheduler=inside, job_id=job_id, nodes=nodes)


def asked_of(site: Site) -> Asked:
    """Return the part of the site that machines can be compared with."""
    return Asked(**{field.name: getattr(site, field.name) for field in fields(Asked)})


def orders_of(site: Site, nodes: tuple[str, ...] = (), private_tmp: bool = False) -> Orders:
    """Return the orders for a machine on which runs are started."""
    return Orders(
        cache=str(site.cache.path),
        max_bytes=site.cache.max_bytes,
        private_tmp=private_tmp,
        device=site.device,
        gpus_per_node=site.gpus_per_node,
        engine=site.engine,
        interface=site.network_interface,
        nodes=nodes,
        group=site.shared == "group",
    )


def try_inside(site: Site, choice: str) -> str:
    """Return the command that makes the checks that need compute nodes. `choice`: what --site takes."""
    own = sys.argv[0] if "/" in sys.argv[0] else "slipway"
    doctor = doctor_of(site.scheduler)
    if doctor is None:
        return f"{own} doctor --site {choice}   (as a job of {site.scheduler})"
    return shlex.join([*doctor.allocation_argv(asked_of(site)), own, "doctor", "--site", choice])
