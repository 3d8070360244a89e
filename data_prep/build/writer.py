"""Write an LMDB file: values in order, batches of transactions, one sync at the end. The same values give the same bytes.

There is no writemap, which is slower, turns a full disk into SIGBUS and makes the file as long as the map, and no lock file. Memory is
initialised, since the file would otherwise hold what lay in memory before. A map that turns out too small grows, and the whole batch is put
again: a failed transaction holds nothing.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

import lmdb

BATCH_VALUES = 128
BATCH_BYTES = 4 << 20  # larger batches are slower: their pages leave the processor's cache before they are written
_PAGE = 4096
_ENTRY = 512  # what a key costs at most besides its value's pages
_SLACK = 16 << 20
_STEP = 1 << 20


def map_bytes(values: int, value_bytes: int) -> int:
    """Estimate the map for `values` values of `value_bytes` bytes in all.

    It takes address space only, since the file grows as it is written.
    """
    need = value_bytes + values * (_PAGE + _ENTRY) + _SLACK
    return -(-need // _STEP) * _STEP


class ShardWriter:
    """An LMDB environment in the existing directory `part`, with keys %08d from 0. Raises lmdb.Error and OSError as they come."""

    def __init__(self, part: Path, map_size: int) -> None:
        self.samples = 0
        self.bytes = 0
        self._map_size = map_size
        self._batch: list[tuple[bytes, bytes]] = []
        self._batch_bytes = 0
        self._environment = lmdb.open(
            str(part), map_size=map_size, subdir=True, lock=False, sync=False, metasync=False, writemap=False, max_dbs=0, lib_version=0
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._environment.close()

    def add(self, value: bytes) -> None:
        """Append one value."""
        self._batch.append((b"%08d" % self.samples, value))
        self.samples += 1
        self.bytes += len(value)
        self._batch_bytes += len(value)
        if len(self._batch) >= BATCH_VALUES or self._batch_bytes >= BATCH_BYTES:
            self._flush()

    def finish(self) -> None:
        """Write what is left and make it durable."""
        self._flush()
        self._environment.sync(True)

    def _flush(self) -> None:
        while self._batch:
            try:
                with self._environment.begin(write=True) as transaction, transaction.cursor() as cursor:
                    cursor.putmulti(self._batch, append=True)
                self._batch = []
                self._batch_bytes = 0
            except lmdb.MapFullError:
                self._map_size *= 2
                self._environment.set_mapsize(self._map_size)
