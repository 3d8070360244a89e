"""What a step was granted on its node, read from within: Slurm's variables, the machine's own word."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from base.foreign import digits
from cluster.gpus.claims import said_count
from cluster.schedulers import granted
from cluster.schedulers.slurm.environ import RESTART_COUNT
from cluster.types import Grant

INDICES: Final = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES")
"""SLURM_JOB_GPUS is of the job's first node only, but stands here for the step that has no list of its own: --gres was not asked."""


def read_grant(environ: Mapping[str, str], device: str | None, peer: str, interface: str | None) -> Grant:
    """For a task of srun. `peer`: whom we must reach; `interface`: the site's, if it names one. Raises AllocationError."""
    return dataclasses.replace(
        granted.read_grant(environ, device, peer, interface, environ.get("SLURMD_NODENAME"), gpu_count(environ)),
        cpus=_number(environ, "SLURM_CPUS_ON_NODE"),
        gpu_indices=gpu_indices(environ),
        restart_count=_number(environ, RESTART_COUNT),
    )


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
