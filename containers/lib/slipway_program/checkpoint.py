"""Write and read checkpoints, from which a run that was cut off resumes: on request rank 0 writes everything that decides the rest of the
training; all ranks read it.

The order of the samples and the numbers of dropout are functions of seed, rank and step, so nothing else must be carried.
"""

import hashlib
import json
import os
import zlib
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, NamedTuple, Optional, Tuple

import numpy as np

from .parameters import Cell, read_metadata, read_tensors, write_tensors

FILE_NAME = "checkpoint.safetensors"
PART_NAME = ".checkpoint.safetensors.part"
EXIT_CODE = 43
FORMAT = "slipway.checkpoint/1"
DECIDING = (
    *("mode", "model_layers", "model_parameters", "dataset_spec", "seed", "optimizer", "steps", "epochs"),
    *("batch_size", "global_batch_size", "nodes", "gpus_per_node", "precision", "layout", "comm_hook", "device"),
)
"""Keys of cell.json that decide what a training does: with another value of one, it is another training."""
ADDED = {"augmentation": "none", "crop_size": None, "reader": "slipway"}
"""More of them, with the value that says what was done before they existed: checkpoints of that time stay what they are."""


class CheckpointRequested(Exception):
    """Rank 0 was asked for a checkpoint before the step `step`, which is not begun."""

    def __init__(self, step: int) -> None:
        Exception.__init__(self, "a checkpoint is wanted before step %d" % step)
        self.step = step


class Request:
    """The request for a checkpoint: rank 0 looks for a file, which takes 0.3 microseconds; the other ranks never do."""

    def __init__(self, rank: int) -> None:
        self._path = os.environ.get("SLIPWAY_STOP") if rank == 0 else None

    def is_there(self) -> bool:
        return self._path is not None and os.access(self._path, os.F_OK)

    def watch(self, batches: Iterator[Any], step: int) -> Iterator[Any]:
        """Yield the batches; raises CheckpointRequested before the first one after the request."""
        for batch in batches:
            if self.is_there():
                raise CheckpointRequested(step)
            yield batch


Resumed = NamedTuple("Resumed", [("path", Path), ("step", int)])
"""A checkpoint to resume from: the file, and the first step that is still to be done."""


def find_checkpoint(cell: Cell) -> Optional[Resumed]:
    """Return the checkpoint this run shall resume from, None: from the start. Raises ValueError for one of another training."""
    name = os.environ.get("SLIPWAY_CHECKPOINT")
    if not name:
        return None
    path = Path(name)
    found = read_metadata(path)
    if found.get("format") != FORMAT:
        raise ValueError("%s is not a checkpoint of this version: found format %r, expected %r" % (path, found.get("format"), FORMAT))
    if found.get("cell") != identity(cell):
        raise ValueError("%s is a checkpoint of another cell, model %r: it cannot be resumed here" % (path, found.get("model")))
    return Resumed(path, int(found["step"]))


def identity(cell: Cell) -> str:
    """Return a name of the training: cells with the same one may resume from each other's checkpoints."""
    deciding = {key: cell.get(key) for key in DECIDING}
    deciding.update({key: cell[key] for key, plain in ADDED.items() if cell.get(key, plain) != plain})
    text = json.dumps(deciding, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def write_checkpoint(out: Path, cell: Cell, arrays: Mapping[str, np.ndarray], step: int, more: Mapping[str, str]) -> int:
    """Write the state before `step` beside its name, then rename: a kill leaves no file or a whole one. `more`: what the framework notes
    besides. The bytes written."""
    metadata = {
        "format": FORMAT,
        "cell": identity(cell),
        "model": str(cell["model"]),
        "step": str(step),
        "crc32": str(checksum(arrays)),
        **more,
    }
    part = out / PART_NAME
    num_bytes = write_tensors(part, arrays, metadata)
    os.replace(str(part), str(out / FILE_NAME))
    descriptor = os.open(str(out), os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return num_bytes


def read_checkpoint(path: Path) -> Tuple[Dict[str, np.ndarray], Dict[str, str]]:
    """Read (the tensors by name, the metadata). Raises ValueError when the file is damaged."""
    arrays, metadata = read_tensors(path)
    if str(checksum(arrays)) != metadata["crc32"]:
        raise ValueError("%s is damaged: its numbers are not those that were written" % path)
    return arrays, metadata


def check_shapes(path: Path, found: Mapping[str, np.ndarray], wanted: Mapping[str, Tuple[int, ...]]) -> None:
    """Raise ValueError where the file holds other tensors than the network has."""
    if {name: array.shape for name, array in found.items()} != dict(wanted):
        raise ValueError("%s is a checkpoint of another network: names or shapes differ from the model's" % path)


def checksum(arrays: Mapping[str, np.ndarray]) -> int:
    found = 0
    for array in arrays.values():
        found = zlib.crc32(array.tobytes() if array.ndim == 0 else array.data, found)
    return found
