"""What is executed for each program of a node, whether it runs in a container or not: argv and environment, in terms of where it sees its
files. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from containers.placeholders import fill
from containers.spec import CHECKPOINT, PARAMETERS, STOP, ContainerSpec, Paths, ProcessPlan

ALLOWED_PREFIXES: Final = ("LC_", "NCCL_", "UCX_", "FI_")
"""What every program may see of the user's environment: the language, and what network libraries read."""


def inherited(host_env: Mapping[str, str], allowed: Sequence[str]) -> dict[str, str]:
    """Of the node program's environment, what a program gets: the variables `allowed`, and those of ALLOWED_PREFIXES."""
    return {key: value for key, value in host_env.items() if key in allowed or key.startswith(ALLOWED_PREFIXES)}


def plan_processes(spec: ContainerSpec, places: Paths, python: str, base_env: Mapping[str, str]) -> tuple[ProcessPlan, ...]:
    """`places`: the paths of `spec` as its programs see them; `base_env`: what they get besides what is the same everywhere."""
    data = places.data if spec.paths.data else None
    values = {**dict(spec.words), "python": python, "folder": places.program, "out": places.out, "cell": places.cell, "lib": places.lib}
    values |= {"data": data} if data else {}
    env = {
        **base_env,
        "PYTHONPATH": places.lib,
        "PYTHONFAULTHANDLER": "1",
        "SLIPWAY_CELL": places.cell,
        **({"SLIPWAY_DATA": data} if data else {}),
        "SLIPWAY_LIB": places.lib,
        "SLIPWAY_BEAT": places.beat,
        "SLIPWAY_OUT": places.out,
        "SLIPWAY_STOP": f"{places.resume}/{STOP}",
        **({"SLIPWAY_CHECKPOINT": f"{places.resume}/{CHECKPOINT}"} if spec.resumed else {}),
        **({"SLIPWAY_PARAMETERS": f"{places.resume}/{PARAMETERS}"} if spec.has_parameters else {}),
        "CUDA_VISIBLE_DEVICES": ",".join(spec.gpus),
        **dict(spec.env),
    }
    return tuple(
        ProcessPlan(
            name=process.name,
            ranks=process.ranks,
            argv=tuple(fill(word, values) for word in process.command),
            env=tuple(sorted({**env, **dict(process.env)}.items())),
            cwd=places.out,
            sidecar=process.sidecar,
            may_end=process.may_end,
            launcher=process.launcher,
        )
        for process in spec.processes
    )
