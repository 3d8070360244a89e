"""What a step was granted on its node, read from within: Slurm's variables, the machine's own word."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from base.foreign import digits
from cluster import addresses
from cluster.gpus.claims import said_count
from cluster.gpus.decision import Decision, accepted, decide
from cluster.gpus.foreign import look
from cluster.gpus.listing import query_gpus, read_place
from cluster.machine import usable_cores
from cluster.schedulers.slurm.environ import RESTART_COUNT
from cluster.types import Grant

INDICES: Final = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES")
"""SLURM_JOB_GPUS is of the job's first node only, but stands here for the step that has no list of its own: --gres was not asked."""


def read_grant(environ: Mapping[str, str], device: str | None, peer: str, interface: str | None) -> Grant:
    """For a task of srun. `peer`: whom we must reach; `interface`: the site's, if it names one. Raises AllocationError."""
    address, found_interface = addresses.here(peer, interface)
    found = None if device == "cpu" else _gpus(environ)
    gpus = () if found is None else found.gpus
    return Grant(
        node=environ.get("SLURMD_NODENAME") or os.uname().nodename,
        hostname=os.uname().nodename,
        address=address,
        interface=found_interface,
        cores=usable_cores(),
        cpus=_number(environ, "SLURM_CPUS_ON_NODE"),
        gpus=tuple(gpu.uuid for gpu in gpus),
        gpu_models=tuple(gpu.model for gpu in gpus),
        gpu_indices=gpu_indices(environ),
        gpu_rule=None if found is None else found.rule,
        foreign=look([gpu.uuid for gpu in gpus]),
        restart_count=_number(environ, RESTART_COUNT),
    )


def _gpus(environ: Mapping[str, str]) -> Decision:
    """Where Slurm hands out no GPUs, all that show: cluster/grants.py refuses that unless the node is the job's alone."""
    return accepted(decide(query_gpus(), environ, gpu_count(environ), everything=True, place=read_place(environ)))


def gpu_indices(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Pure: the GPUs of this step as Slurm calls them."""
    for name in INDICES:
        if environ.get(name) and (name != "SLURM_JOB_GPUS" or environ.get("SLURM_NODEID") == "0"):
            return tuple(word.strip() for word in environ[name].split(",") if word.strip())
    return ()


def gpu_count(environ: Mapping[str, str]) -> int | None:
    """Pure: how many GPUs were granted here; None where Slurm manages none."""
    said = said_count(environ, "slurm")
    return said if said is not None else (len(gpu_indices(environ)) or None)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    return digits(environ.get(name, ""))
