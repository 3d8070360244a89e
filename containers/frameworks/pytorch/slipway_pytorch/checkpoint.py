"""Checkpoints, from which a run that was cut off resumes: on request rank 0 writes everything that decides the rest of the training; all
ranks read it.

The order of the samples and the numbers of dropout are functions of seed, rank and step, so nothing else must be carried.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from .feed import Batches
from .network import Network
from .tensors import read_metadata, read_tensors, write_tensors

FILE_NAME = "checkpoint.safetensors"
PART_NAME = ".checkpoint.safetensors.part"
EXIT_CODE = 43
FORMAT = "slipway.checkpoint/1"
DECIDING = (
    *("mode", "model_layers", "model_parameters", "dataset_spec", "seed", "optimizer", "steps", "epochs"),
    *("batch_size", "global_batch_size", "nodes", "gpus_per_node", "precision", "layout", "comm_hook", "device"),
)
"""Keys of cell.json that decide what a training does: with another value of one, it is another training."""
MOMENTUM = "momentum_buffer"


class CheckpointWanted(Exception):
    """Rank 0 was asked for a checkpoint before the step `step`, which is not begun."""

    def __init__(self, step: int) -> None:
        super().__init__(f"a checkpoint is wanted before step {step}")
        self.step = step


class State(NamedTuple):
    """All that changes from step to step; inference has the network only, which does not."""

    net: Network
    optimizer: torch.optim.Optimizer | None = None
    scaler: torch.amp.GradScaler | None = None


class Request:
    """Whether a checkpoint is wanted: rank 0 looks for a file, which takes 0.3 microseconds; the other ranks never do."""

    def __init__(self, rank: int) -> None:
        self._path = os.environ.get("SLIPWAY_STOP") if rank == 0 else None

    def is_there(self) -> bool:
        """Whether to stop now."""
        return self._path is not None and os.access(self._path, os.F_OK)

    def watch(self, batches: Batches, step: int) -> Batches:
        """The batches; raises CheckpointWanted before the first one after the request."""
        for batch in batches:
            if self.is_there():
                raise CheckpointWanted(step)
            yield batch


class Resumed(NamedTuple):
    """A checkpoint to resume from: the file, and the first step that is still to be done."""

    path: Path
    step: int


def find_checkpoint(cell: Mapping[str, Any]) -> Resumed | None:
    """The checkpoint this run shall resume from, None: from the start. Raises ValueError for one of another training."""
    name = os.environ.get("SLIPWAY_CHECKPOINT")
    if not name:
        return None
    path = Path(name)
    found = read_metadata(path)
    if found.get("format") != FORMAT:
        raise ValueError(f"{path} is not a checkpoint of this version: found format {found.get('format')!r}, expected {FORMAT!r}")
    if found.get("cell") != identity(cell):
        raise ValueError(f"{path} is a checkpoint of another cell, model {found.get('model')!r}: it cannot be resumed here")
    return Resumed(path, int(found["step"]))


def identity(cell: Mapping[str, Any]) -> str:
    """Names the training: cells with the same one may resume from each other's checkpoints."""
    text = json.dumps({key: cell.get(key) for key in DECIDING}, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def save_checkpoint(out: Path, cell: Mapping[str, Any], state: State, step: int) -> int:
    """Write the state before `step` beside its name, then rename: a kill leaves no file or a whole one. The bytes written."""
    arrays = {name: value.detach().cpu().contiguous().numpy() for name, value in _tensors(state)}
    scaler = state.scaler.state_dict() if state.scaler is not None else {}
    metadata = {
        "format": FORMAT,
        "cell": identity(cell),
        "model": str(cell["model"]),
        "step": str(step),
        "scaler": json.dumps(scaler),
        "crc32": str(checksum(arrays)),
    }
    part = out / PART_NAME
    num_bytes = write_tensors(part, arrays, metadata)
    os.replace(part, out / FILE_NAME)
    descriptor = os.open(out, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return num_bytes


def load_checkpoint(path: Path, state: State) -> None:
    """Copy what the file holds into `state`. Raises ValueError when it is damaged, or of another network."""
    arrays, metadata = read_tensors(path)
    if str(checksum(arrays)) != metadata["crc32"]:
        raise ValueError(f"{path} is damaged: its numbers are not those that were written")
    _make_momentum(state, arrays)
    tensors = dict(_tensors(state))
    if {name: tuple(value.shape) for name, value in tensors.items()} != {name: array.shape for name, array in arrays.items()}:
        raise ValueError(f"{path} is a checkpoint of another network: names or shapes differ from the model's")
    with torch.no_grad():
        for name, value in tensors.items():
            value.copy_(torch.from_numpy(arrays[name]))
    if state.scaler is not None and (scaler := json.loads(metadata["scaler"])):
        state.scaler.load_state_dict(scaler)


def not_carried(cell: Mapping[str, Any]) -> str | None:
    """What a resumed run lacks of the one before it, None: nothing."""
    if cell["mode"] == "train" and cell["comm_hook"] == "powersgd":
        return "the error feedback of powersgd is not in the checkpoint, since each rank has its own: it begins anew"
    return None


def checksum(arrays: Mapping[str, np.ndarray]) -> int:
    """Of all numbers, in order."""
    found = 0
    for array in arrays.values():
        found = zlib.crc32(array.tobytes() if array.ndim == 0 else array.data, found)
    return found


def _tensors(state: State) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in sorted(state.net.state_dict().items()):
        yield f"net.{name}", value
    if state.optimizer is not None:
        for name, parameter in sorted(state.net.named_parameters()):
            momentum = state.optimizer.state[parameter].get(MOMENTUM)
            if momentum is not None:
                yield f"momentum.{name}", momentum


def _make_momentum(state: State, arrays: Mapping[str, np.ndarray]) -> None:
    """Room for the momentum that the file holds, in the layout of its parameter."""
    if state.optimizer is None:
        return
    for name, parameter in state.net.named_parameters():
        if f"momentum.{name}" in arrays:
            state.optimizer.state[parameter][MOMENTUM] = torch.empty_like(parameter)
