"""The parameter servers of a run, as a sum over all ranks: kvstore `dist_sync`, found by the variables DMLC_*."""

from __future__ import annotations

import os
from typing import Any, Sequence

import mxnet as mx
import numpy as np


class Servers:
    """The parameter servers, joined by all ranks together. They learn no optimizer: what ranks push is added up, so that momentum stays
    with the ranks, which can write it to a checkpoint; MXNet cannot read back what its servers hold of it.
    """

    def __init__(self) -> None:
        self.world_size, host = int(os.environ["WORLD_SIZE"]), os.environ["DMLC_PS_ROOT_URI"]
        if ":" in host:
            raise RuntimeError(
                f"the head node is {host}, and MXNet finds its ranks by IPv4 addresses only: use a network_interface with one"
            )
        self._store = mx.kv.create("dist_sync")
        if self._store.num_workers != self.world_size:
            raise RuntimeError(f"the scheduler of MXNet knows of {self._store.num_workers} ranks, and there are {self.world_size}")
        self._known: set[str] = set()

    def add_up(self, name: str, arrays: Sequence[Any]) -> None:
        """Put sums over all ranks in the place of the arrays, which have the same shapes under this name each time. Does not wait."""
        keys = [f"{name}-{number}" for number in range(len(arrays))]
        if name not in self._known:
            self._known.add(name)
            self._store.init(keys, [mx.nd.zeros_like(array) for array in arrays])
        for number, (key, array) in enumerate(zip(keys, arrays)):
            self._store.push(key, array, priority=-number)
            self._store.pull(key, array, priority=-number)

    def total(self, values: np.ndarray) -> np.ndarray:
        own = mx.nd.array(values, dtype="float64")
        self.add_up(f"total-{values.size}", [own])
        found: np.ndarray = own.asnumpy()
        return found

    def leave(self) -> None:
        """Leave with all ranks together; servers and scheduler end then. MXNet does it where the store is forgotten."""
        mx.nd.waitall()
        del self._store
