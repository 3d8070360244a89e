"""What a node of a job was granted, read from within: PBS's variables, its cgroup hook's, the machine's own word."""

from __future__ import annotations

import os
from collections.abc import Mapping

from base.foreign import digits
from cluster import addresses
from cluster.gpus.claims import names_in
from cluster.gpus.decision import accepted, decide
from cluster.gpus.foreign import look
from cluster.gpus.listing import query_gpus, read_place
from cluster.machine import usable_cores
from cluster.pbs_tasks.remote import NODE_NAME
from cluster.types import Grant


def read_grant(environ: Mapping[str, str], device: str | None, peer: str, interface: str | None) -> Grant:
    """For a program that our launcher started. `peer`: whom we must reach; `interface`: the site's, if it names one. Where PBS hands out
    no GPUs, all that show: cluster/grants.py refuses that unless the node is the job's alone. Raises AllocationError."""
    address, found_interface = addresses.here(peer, interface)
    found = None if device == "cpu" else accepted(decide(query_gpus(), environ, None, everything=True, place=read_place(environ)))
    gpus = () if found is None else found.gpus
    hostname = os.uname().nodename
    return Grant(
        node=environ.get(NODE_NAME) or hostname,
        hostname=hostname,
        address=address,
        interface=found_interface,
        cores=usable_cores(),
        cpus=digits(environ.get("NCPUS", "")),
        gpus=tuple(gpu.uuid for gpu in gpus),
        gpu_models=tuple(gpu.model for gpu in gpus),
        gpu_indices=names_in(environ.get("CUDA_VISIBLE_DEVICES", "")),
        gpu_rule=None if found is None else found.rule,
        foreign=look([gpu.uuid for gpu in gpus]),
    )
