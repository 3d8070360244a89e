"""Staging together with other nodes, from the message `listening` to the moment when all have the files; a node serves others after its
own copy is complete."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from data_prep.file_set import FileSet
from data_prep.limits import EXCHANGE_TURN_S
from data_prep.staging.copy import DIRECT_FROM_BYTES
from data_prep.staging.exchange import Exchange
from data_prep.staging.peer_group import PeerGroup
from data_prep.staging.table import ChunkTable

T = TypeVar("T")


class GroupStaging:
    """One node's part in it. Use as a context manager around `stage` and `serve`."""

    def __init__(self, peer_group: PeerGroup) -> None:
        self.peer_group = peer_group
        self.exchange: Exchange | None = None
        self._directory: int | None = None
        self._file_set: FileSet | None = None
        self._is_copy = False
        self._has_waited = False
        self.has_left = False
        """What is here turned out to be damaged: this node copies alone, and serves nobody."""

    def __enter__(self) -> GroupStaging:
        return self

    def __exit__(self, *_error: object) -> None:
        if self.exchange is not None:
            self.exchange.close()
        if self._directory is not None:
            self._forget_pages()
            os.close(self._directory)

    def waits(self) -> None:
        """Somebody else on this node stages the same files: the others shall not wait for us."""
        if not self._has_waited:
            self._has_waited = True
            self.peer_group.say({"waiting": True})

    def open(self, root: Path, file_set: FileSet, have: bytearray | None) -> Exchange:
        """Join with the chunks `have` of the files in `root`, which may be renamed later; None: all of a whole dataset."""
        table = ChunkTable(file_set.files)
        self._file_set, self._is_copy = file_set, have is not None
        self._directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        marks = bytearray(b"\1") * table.num_chunks if have is None else have
        self.exchange = Exchange(self.peer_group, file_set.digest, table, marks, self._open_file)
        return self.exchange

    def leave(self) -> None:
        """Be of no use to the others any more; they do without this node."""
        if self.exchange is not None:
            self.has_left = True
            self.exchange.close()
            self.exchange = None

    def during(self, what: Callable[[], T]) -> T:
        """Do in a thread something that takes long, and go on passing chunks to the others meanwhile."""
        exchange = self.exchange
        assert exchange is not None
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(what)
            future.add_done_callback(lambda _future: exchange.wake())
            while not future.done():
                exchange.turn(EXCHANGE_TURN_S)
            return future.result()

    def serve(self) -> None:
        """Pass on what is here until everybody has it. Raises Cancelled when whoever started us has gone."""
        if self.exchange is not None:
            self.exchange.serve()

    def _open_file(self, number: int) -> int:
        assert self._file_set is not None
        path = self._file_set.files[number].path
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._directory)

    def _forget_pages(self) -> None:
        """A large copy leaves the page cache as one past it would: the first epoch shall not depend on how many nodes staged."""
        if self._file_set is None or not self._is_copy or self._file_set.bytes < DIRECT_FROM_BYTES:
            return
        for number in range(len(self._file_set.files)):
            try:
                descriptor = self._open_file(number)
            except OSError:
                continue
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
