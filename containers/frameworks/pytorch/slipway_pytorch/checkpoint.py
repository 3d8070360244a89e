"""What of a training in PyTorch a checkpoint holds; the file is slipway_program's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from slipway_program.checkpoint import check_shapes, read_checkpoint, write_checkpoint
from slipway_program.parameters import Cell

from .network import Network


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return all of the tensor, detached; where it is in parts all ranks have to ask for it."""
    found: torch.Tensor = tensor.detach()
    return found.full_tensor() if hasattr(found, "full_tensor") else found


def gathered(tensors: Iterable[tuple[str, torch.Tensor]], *, keep: bool) -> dict[str, np.ndarray]:
    """Gather all of them, whole, where `keep` says so; other ranks only give their parts. One after the other, so that no rank has two at
    once.
    """
    found = {}
    for name, tensor in tensors:
        value = whole(tensor)
        if keep:
            found[name] = value.cpu().contiguous().numpy()
    return found


def fill(tensor: torch.Tensor, array: np.ndarray) -> None:
    """Take the numbers over: of a tensor in parts each rank its own, from an array that all have."""
    value: Any = torch.from_numpy(array)
    if hasattr(tensor, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)
    tensor.copy_(value)


MOMENTUM = "momentum_buffer"
KEPT = {MOMENTUM: "momentum", "exp_avg": "momentum", "exp_avg_sq": "variance", "step": "updates"}
"""What the optimizers of PyTorch keep of a parameter, and how a checkpoint calls it."""


class State(NamedTuple):
    """All that changes from step to step; inference has the network only, which does not."""

    net: Network
    optimizer: torch.optim.Optimizer | None = None
    scaler: torch.amp.GradScaler | None = None


def save_checkpoint(out: Path, cell: Cell, state: State, step: int) -> int:
    """Write the state before `step`. The bytes written. Where it is in parts, the other ranks call `give_parts` meanwhile."""
    arrays = gathered(_tensors(state), keep=True)
    scaler = state.scaler.state_dict() if state.scaler is not None else {}
    return int(write_checkpoint(out, cell, arrays, step, {"scaler": json.dumps(scaler)}))


def give_parts(state: State) -> None:
    """Give this rank's parts for a checkpoint that rank 0 writes."""
    gathered(_tensors(state), keep=False)


def load_checkpoint(path: Path, state: State) -> None:
    """Copy what the file holds into `state`. Raises ValueError when it is damaged, or of another network."""
    arrays, metadata = read_checkpoint(path)
    _make_momentum(state, arrays)
    tensors = dict(_tensors(state))
    check_shapes(path, arrays, {name: tuple(value.shape) for name, value in tensors.items()})
    with torch.no_grad():
        for name, value in tensors.items():
            fill(value, arrays[name])
    if state.scaler is not None and (scaler := json.loads(metadata["scaler"])):
        state.scaler.load_state_dict(scaler)


def not_saved(cell: Cell) -> str | None:
    """Return what a resumed run lacks of the one before it, None: nothing."""
    if cell["mode"] == "train" and cell["comm_hook"] in ("powersgd", "onebit"):
        return f"the error feedback of {cell['comm_hook']} is not in the checkpoint, since each rank has its own: it begins anew"
    return None


def _tensors(state: State) -> Iterator[tuple[str, torch.Tensor]]:
    for name, value in sorted(state.net.state_dict().items()):
        yield f"net.{name}", value
    if state.optimizer is not None:
        for name, parameter in sorted(state.net.named_parameters()):
            kept = state.optimizer.state[parameter]
            for key, word in KEPT.items():
                if kept.get(key) is not None:
                    yield f"{word}.{name}", kept[key].view(1) if key == "step" else kept[key]


def _make_momentum(state: State, arrays: Mapping[str, np.ndarray]) -> None:
    """Make room for the momentum that the file holds, in the layout of its parameter."""
    if state.optimizer is None:
        return
    for name, parameter in state.net.named_parameters():
        kept = state.optimizer.state[parameter]
        if f"variance.{name}" in arrays:
            kept["exp_avg"], kept["exp_avg_sq"] = torch.empty_like(parameter), torch.empty_like(parameter)
            kept["step"] = torch.zeros((), device=parameter.device if state.optimizer.defaults["fused"] else "cpu")
        elif f"momentum.{name}" in arrays:
            kept[MOMENTUM] = torch.empty_like(parameter)
