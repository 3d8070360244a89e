"""Write an LMDB file in one pass: values in order under the keys %08d from 0. The same values give the same bytes.

LMDB itself would take a transaction for it: memory for each page, a copy there, another copy to the file, and pages that it gives up again.
A file that is written once needs none of that. Each page is written where it stays, large values straight from where they lie.

The format is that of lmdb 0.9 (mdb.c, struct MDB_page, MDB_node, MDB_db, MDB_meta), little-endian, with pages of 4 KB: two meta pages, of
which the second is the newer one, then overflow pages of large values with the leaf page that follows them, and last the branch pages.
"""

import itertools
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

Buffer = bytes | memoryview

PAGE: Final = 4096
_HEADER: Final = struct.Struct("<QHHHH")  # number, padding, flags, end of the pointers, begin of the nodes
_OVERFLOW_HEADER: Final = struct.Struct("<QHHI")  # number, padding, flags, pages
_NODE: Final = struct.Struct("<HHHH")  # of a leaf: low and high half of the value's bytes, flags, bytes of the key
_NUMBER: Final = struct.Struct("<Q")
_DB: Final = struct.Struct("<IHHQQQQQ")  # padding, flags, depth, branch pages, leaf pages, overflow pages, entries, root
_META: Final = struct.Struct("<IIQQ")  # magic, version, address, size of the map; then two _DB, last page, transaction
_MAGIC, _VERSION = 0xBEEFC0DE, 1
_BRANCH, _LEAF, _OVERFLOW, _IS_META = 1, 2, 4, 8
_INTEGER_KEYS = 8  # of the list of free pages, which is empty
_BIG = 1
_NO_PAGE = 2**64 - 1
_MAX_IN_LEAF = (PAGE - _HEADER.size) // 2 // 2 * 2 - 2  # of node and key and value: LMDB wants two nodes in a page
_MAX_POINTERS = 200  # in a branch page: 18 bytes each
_PADDING = bytes(PAGE)
_WRITE_BYTES = 1 << 20
_MAX_PIECES = 512  # of a writev, which takes 1,024


class LmdbWriter:
    """A new LMDB file. Raises OSError as it comes, for one that is there already too."""

    def __init__(self, path: Path) -> None:
        self.samples = 0
        self.bytes = 0
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        os.lseek(self._file, 2 * PAGE, os.SEEK_SET)
        self._next_page = 2
        self._overflow_pages = 0
        self._pieces: list[Buffer] = []
        self._piece_bytes = 0
        self._leaf = _Page(_LEAF)
        self._leaves: list[tuple[bytes, int]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def add(self, *parts: Buffer) -> None:
        """Add a value that is given in parts, each a row of bytes. The caller leaves them unchanged until `finish`, since they are written
        later."""
        key, size = b"%08d" % self.samples, sum(map(len, parts))
        head = _NODE.pack(size & 0xFFFF, size >> 16, 0, len(key)) + key
        if len(head) + size > _MAX_IN_LEAF:
            head = _NODE.pack(size & 0xFFFF, size >> 16, _BIG, len(key)) + key
            node = head + _NUMBER.pack(self._write_large(size, parts))
        else:
            node = b"".join((head, *parts))
        if not self._leaf.has_space(node):
            self._end_leaf()
        self._leaf.add(key, node)
        self.samples += 1
        self.bytes += size

    def finish(self) -> None:
        """Write what is left, and last the meta pages. The caller makes the file durable."""
        self._end_leaf()
        level, depth, branches = self._leaves, min(len(self._leaves), 1), 0
        while len(level) > 1:
            level = self._write_branches(level)
            depth += 1
            branches += len(level)
        self._flush()
        root = level[0][1] if level else _NO_PAGE
        counts = (depth, branches, len(self._leaves), self._overflow_pages, self.samples, root)
        metas = _meta(0, 1, (0, 0, 0, 0, 0, _NO_PAGE)) + _meta(1, self._next_page - 1, counts)
        os.lseek(self._file, 0, os.SEEK_SET)
        self._write([metas])

    def sync(self) -> None:
        """Wait until the file is on the disk."""
        os.fsync(self._file)

    def _write_large(self, size: int, parts: Sequence[Buffer]) -> int:
        """Write a value in pages of its own, and return the number of the first one."""
        number, pages = self._next_page, -(-(_HEADER.size + size) // PAGE)
        padding = _PADDING[: pages * PAGE - _HEADER.size - size]
        self._append(pages, (_OVERFLOW_HEADER.pack(number, 0, _OVERFLOW, pages), *parts, padding))
        self._overflow_pages += pages
        return number

    def _end_leaf(self) -> None:
        if self._leaf.nodes:
            self._leaves.append(self._write_page(self._leaf))
            self._leaf = _Page(_LEAF)

    def _write_page(self, page: "_Page") -> tuple[bytes, int]:
        number = self._next_page
        self._append(1, (page.to_bytes(number),))
        return page.first_key, number

    def _write_branches(self, below: Sequence[tuple[bytes, int]]) -> list[tuple[bytes, int]]:
        """Write the level above these pages, and return the first key and the number of each of its pages. All get about as many pointers:
        LMDB wants two in each."""
        count = -(-len(below) // _MAX_POINTERS)
        bounds = [len(below) * number // count for number in range(count + 1)]
        written = []
        for first, end in itertools.pairwise(bounds):
            page = _Page(_BRANCH)
            for key, number in below[first:end]:
                stored = key if page.nodes else b""  # what is smaller than the second key lies below the first pointer
                page.add(key, struct.pack("<IHH", number & 0xFFFFFFFF, number >> 32, len(stored)) + stored)
            written.append(self._write_page(page))
        return written

    def _append(self, pages: int, pieces: Sequence[Buffer]) -> None:
        self._next_page += pages
        self._pieces += pieces
        self._piece_bytes += pages * PAGE
        if self._piece_bytes >= _WRITE_BYTES or len(self._pieces) >= _MAX_PIECES:
            self._flush()

    def _flush(self) -> None:
        self._write(self._pieces)
        self._pieces, self._piece_bytes = [], 0

    def _write(self, pieces: Sequence[Buffer]) -> None:
        written = os.writev(self._file, pieces) if pieces else 0
        if written < sum(map(len, pieces)):  # a signal, or a disk that is nearly full
            left = memoryview(b"".join(pieces))[written:]
            while left:
                left = left[os.write(self._file, left) :]


class _Page:
    """A leaf or a branch page: pointers from the front, nodes from the back, each at an even place."""

    def __init__(self, flags: int) -> None:
        self.nodes: list[bytes] = []
        self.first_key = b""
        self._flags = flags
        self._free = PAGE - _HEADER.size

    def has_space(self, node: bytes) -> bool:
        return len(node) + len(node) % 2 + 2 <= self._free

    def add(self, key: bytes, node: bytes) -> None:
        if not self.nodes:
            self.first_key = key
        even = node + bytes(len(node) % 2)
        self.nodes.append(even)
        self._free -= len(even) + 2

    def to_bytes(self, number: int) -> bytes:
        pointers, at = [], PAGE
        for node in self.nodes:
            at -= len(node)
            pointers.append(at)
        lower = _HEADER.size + 2 * len(pointers)
        head = _HEADER.pack(number, 0, self._flags, lower, at) + struct.pack(f"<{len(pointers)}H", *pointers)
        return b"".join((head, _PADDING[: at - lower], *reversed(self.nodes)))


def _meta(number: int, last_page: int, values: tuple[int, int, int, int, int, int]) -> bytes:
    """Return a meta page. `values`: depth, branch pages, leaf pages, overflow pages, entries and root of the values' tree."""
    free = _DB.pack(PAGE, _INTEGER_KEYS, 0, 0, 0, 0, 0, _NO_PAGE)
    head = _HEADER.pack(number, 0, _IS_META, 0, 0) + _META.pack(_MAGIC, _VERSION, 0, (last_page + 1) * PAGE)
    page = head + free + _DB.pack(0, 0, *values) + struct.pack("<QQ", last_page, number)
    return page + bytes(PAGE - len(page))
