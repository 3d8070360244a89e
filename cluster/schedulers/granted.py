"""What a node of a job was granted, read from within: the machine's own word. What its scheduler says beside, its own room adds."""

from __future__ import annotations

import os
from collections.abc import Mapping

from cluster import addresses
from cluster.gpus.claims import claims_of
from cluster.gpus.decision import accepted, decide
from cluster.gpus.foreign import look
from cluster.gpus.listing import query_gpus, read_place
from cluster.machine import usable_cores
from cluster.types import Grant


def read_grant(
    environ: Mapping[str, str], device: str | None, peer: str, interface: str | None, node: str | None, gpu_count: int | None = None
) -> Grant:
    """For a program that a launcher started. `peer`: whom we must reach; `interface`: the site's, if it names one; `node`: the scheduler's
    name of this one. Where it hands out no GPUs, all that show: cluster/grants.py refuses that unless the node is the job's alone.

    Raises AllocationError."""
    address, found_interface = addresses.here(peer, interface)
    found = None if device == "cpu" else accepted(decide(query_gpus(), environ, gpu_count, everything=True, place=read_place(environ)))
    gpus = () if found is None else found.gpus
    hostname = os.uname().nodename
    return Grant(
        node=node or hostname,
        hostname=hostname,
        address=address,
        interface=found_interface,
        cores=usable_cores(),
        gpus=tuple(gpu.uuid for gpu in gpus),
        gpu_models=tuple(gpu.model for gpu in gpus),
        gpu_rule=None if found is None else found.rule,
        foreign=look([gpu.uuid for gpu in gpus]),
    )


def claimed(environ: Mapping[str, str], scheduler: str) -> tuple[str, ...]:
    """The node's GPUs as that scheduler calls them; none where it names none."""
    claims = claims_of(environ, scheduler, read_place(environ))
    return claims[0].names if claims else ()
