"""List the members of a tar archive as places in the file: name, kind, offset, size. Nothing is extracted, no name becomes a path.

It reads ustar, GNU long names and pax names and sizes. Every number is checked against the file; headers that describe members are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

BLOCK = 512
MAX_HEADER_BYTES = 1 << 20  # of a long name or a pax header
MAX_HEADERS = 64  # long names and pax headers in a row

ReadAt = Callable[[int, int], bytes]


class Member(NamedTuple):
    """A member with `size` bytes of content at `offset`. The kind is file, folder, link, hard link, device, sparse file or other."""

    name: bytes
    kind: str
    offset: int
    size: int


class TarError(Exception):
    """The archive is damaged from here on. The members before it are valid."""


_KINDS = {
    b"0": "file", b"\0": "file", b"7": "file", b"5": "folder", b"2": "link", b"1": "hard link",
    b"3": "device", b"4": "device", b"6": "fifo", b"S": "sparse file",
}  # fmt: skip
_WITHOUT_CONTENT = frozenset({b"1", b"2", b"3", b"4", b"5", b"6"})


def is_tar_header(block: bytes) -> bool:
    """Return True if 512 bytes are a header with a right checksum."""
    return len(block) == BLOCK and block != bytes(BLOCK) and _checksum_right(block)


def members(read_at: ReadAt, start: int, end: int) -> Iterator[Member]:
    """List the members of the archive that lies in `start` to `end` of a file. Raises TarError at the first damage.

    An archive ends with a block of zeros (POSIX: two of them). One that ends without it was cut, in a header or just before one.
    """
    at = start
    extra = _Extra()
    while True:
        block = read_at(at, min(BLOCK, max(end - at, 0)))
        if len(block) < BLOCK:
            raise TarError(f"it ends at byte {end} without the mark of an end: it was cut, and members may be missing")
        if not block.strip(b"\0"):
            return
        if not is_tar_header(block):
            raise TarError(f"no valid header at byte {at}")
        size = extra.size if extra.size is not None else _number(block[124:136])
        kind = block[156:157]
        content = at + BLOCK
        at = content + -(-size // BLOCK) * BLOCK
        if kind in b"LKxgX":
            _check_extra(extra, size, content, end)
            extra.take(kind, read_at(content, size))
            continue
        if kind in _WITHOUT_CONTENT:
            at, size = content, 0
        if content + size > end:
            raise TarError(f"{_shown(extra.name or _name(block))} at byte {content} should have {size} bytes: the archive is cut")
        if kind == b"S" and block[482]:
            at += _sparse_maps(read_at, content)
        yield Member(extra.name or _name(block), _kind(kind, extra, block), content, size)
        extra = _Extra()


def _shown(name: bytes) -> str:
    return repr(name.decode("utf-8", "backslashreplace"))


def _sparse_maps(read_at: ReadAt, at: int) -> int:
    """Return the length of the extra blocks after the header of an old GNU sparse file."""
    count = 0
    while True:
        count += 1
        block = read_at(at + (count - 1) * BLOCK, BLOCK)
        if len(block) < BLOCK or count > MAX_HEADERS:
            raise TarError(f"the map of a sparse file at byte {at} does not end")
        if not block[504]:
            return count * BLOCK


class _Extra:
    """The fields of the next member that long names and pax headers determine."""

    def __init__(self) -> None:
        self.name: bytes | None = None
        self.size: int | None = None
        self.sparse = False
        self.headers = 0

    def take(self, kind: bytes, content: bytes) -> None:
        """Remember one header; `g`, of all members, names none of them."""
        self.headers += 1
        if kind == b"L":
            self.name = content.partition(b"\0")[0]
        elif kind in b"xX":
            for key, value in _pax_records(content):
                self._take_pax(key, value)

    def _take_pax(self, key: bytes, value: bytes) -> None:
        if key == b"path":
            self.name = value
        elif key == b"size":
            if not value.isdigit() or len(value) > 18:
                raise TarError(f"a pax size of {value[:20]!r}")
            self.size = int(value)
        elif key.startswith(b"GNU.sparse"):
            self.sparse = True


def _check_extra(extra: _Extra, size: int, content: int, end: int) -> None:
    if size > MAX_HEADER_BYTES or extra.headers >= MAX_HEADERS:
        raise TarError(f"a long name or pax header of {size} bytes at byte {content}, or more than {MAX_HEADERS} in a row")
    if content + size > end:
        raise TarError(f"a header at byte {content} is cut")


def _kind(kind: bytes, extra: _Extra, block: bytes) -> str:
    if extra.sparse:
        return "sparse file"
    found = _KINDS.get(kind, "member of an unknown kind")
    return "folder" if found == "file" and (extra.name or _name(block)).endswith(b"/") else found


def _name(block: bytes) -> bytes:
    name = block[:100].partition(b"\0")[0]
    prefix = block[345:500].partition(b"\0")[0] if block[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _number(field: bytes) -> int:
    """Parse octal text, or GNU's base-256."""
    if field[0] & 0x80:
        value = int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
        if field[0] & 0x40 or value >= 1 << 62:
            raise TarError("a size that is negative or beyond any file")
        return value
    digits = field.partition(b"\0")[0].strip()
    if not digits:
        return 0
    if not all(0x30 <= digit <= 0x37 for digit in digits):
        raise TarError(f"a size of {digits!r}")
    return int(digits, 8)


def _checksum_right(block: bytes) -> bool:
    try:
        stored = _number(block[148:156])
    except TarError:
        return False
    rest = block[:148] + b" " * 8 + block[156:]
    unsigned = sum(rest)
    signed = unsigned - 256 * sum(byte > 127 for byte in rest) if stored != unsigned else unsigned
    return stored in (unsigned, signed)


def _pax_records(content: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(content) and content[at] != 0:
        digits, blank, _ = content[at : at + 20].partition(b" ")
        length = int(digits) if digits.isdigit() else 0
        if not blank or length < len(digits) + 3 or at + length > len(content) or content[at + length - 1] != 0x0A:
            raise TarError("a pax header that makes no sense")
        key, equals, value = content[at + len(digits) + 1 : at + length - 1].partition(b"=")
        if not equals:
            raise TarError("a pax header that makes no sense")
        yield key, value
        at += length
