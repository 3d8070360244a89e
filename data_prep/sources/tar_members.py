"""List the members of a tar archive as places in the file: name, kind, offset, size. Nothing is extracted, no name becomes a path.

Headers are parsed by the standard library; what joins them is done here, since `tarfile.open` ends at damage without a word, keeps every
member in memory, and in the Python versions that we run on needs hours for some pax headers. Headers that describe members are bounded.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

BLOCK: Final = tarfile.BLOCKSIZE
MAX_HEADER_BYTES: Final = 1 << 20  # of a long name or a pax header
MAX_HEADERS: Final = 64  # long names and pax headers in a row

ReadAt = Callable[[int, int], bytes]


class Member(NamedTuple):
    """A member with `size` bytes of content at `offset`. The kind is file, folder, link, hard link, device, sparse file or other."""

    name: bytes
    kind: str
    offset: int
    size: int


class TarError(Exception):
    """The archive is damaged from here on. The members before it are valid."""


_KINDS: Final = {
    **dict.fromkeys((tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE), "file"),
    **dict.fromkeys((tarfile.CHRTYPE, tarfile.BLKTYPE), "device"),
    **{tarfile.DIRTYPE: "folder", tarfile.SYMTYPE: "link", tarfile.LNKTYPE: "hard link", tarfile.FIFOTYPE: "fifo"},
    tarfile.GNUTYPE_SPARSE: "sparse file",
}
_WITHOUT_CONTENT: Final = frozenset({b"1", b"2", b"3", b"4", b"5", b"6"})
_LONG_NAME, _OF_NEXT, _OF_ALL = tarfile.GNUTYPE_LONGNAME, (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE), tarfile.XGLTYPE
_EXTRA: Final = (_LONG_NAME, tarfile.GNUTYPE_LONGLINK, *_OF_NEXT, _OF_ALL)


def is_tar_header(block: bytes) -> bool:
    """Return True if 512 bytes are a header with a right checksum."""
    try:
        _parsed(block)
    except tarfile.HeaderError:
        return False
    return True


def _parsed(block: bytes) -> tarfile.TarInfo:
    return tarfile.TarInfo.frombuf(block, "latin-1", "strict")


def members(read_at: ReadAt, start: int, end: int) -> Iterator[Member]:
    """List the members of the archive that lies in `start` to `end` of a file. Raises TarError at the first damage. An archive ends with a
    block of zeros (POSIX: two of them). One that ends without it was cut, in a header or just before one."""
    at, headers = start, 0
    extra: dict[bytes, bytes] = {}
    while True:
        block = _block(read_at, at, end)
        if not block.strip(b"\0"):
            return
        try:
            header = _parsed(block)
        except tarfile.HeaderError as error:
            raise TarError(f"no valid header at byte {at}") from error
        size, content = _size(extra, header), at + BLOCK
        if header.type in _EXTRA:
            headers += 1
            _check_extra(size, content, end, headers)
            extra |= _fields(header.type, read_at(content, size))
            at = content + _whole_blocks(size)
            continue
        if header.type in _WITHOUT_CONTENT:
            size = 0
        name = extra.get(b"path") or _name(block)
        if content + size > end:
            raise TarError(f"{name.decode('utf-8', 'backslashreplace')!r} at byte {content} should have {size} bytes: the archive is cut")
        at = content + _whole_blocks(size)
        if header.type == tarfile.GNUTYPE_SPARSE and block[482]:
            at += _sparse_maps(read_at, content)
        yield Member(name, _kind(header.type, extra, name), content, size)
        extra, headers = {}, 0


def _name(block: bytes) -> bytes:
    """Return the name in a header. Where POSIX has a prefix, incremental archives of GNU have times, which the library joins to it too."""
    name, prefix = block[:100].partition(b"\0")[0], block[345:500].partition(b"\0")[0]
    return prefix + b"/" + name if prefix and block[257:263] == b"ustar\0" else name


def _block(read_at: ReadAt, at: int, end: int) -> bytes:
    block = read_at(at, min(BLOCK, max(end - at, 0)))
    if len(block) < BLOCK:
        raise TarError(f"it ends at byte {end} without the mark of an end: it was cut, and members may be missing")
    return block


def _whole_blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK


def _check_extra(size: int, content: int, end: int, headers: int) -> None:
    if size > MAX_HEADER_BYTES or headers > MAX_HEADERS:
        raise TarError(f"a long name or pax header of {size} bytes at byte {content}, or more than {MAX_HEADERS} in a row")
    if content + size > end:
        raise TarError(f"a header at byte {content} is cut")


def _size(extra: dict[bytes, bytes], header: tarfile.TarInfo) -> int:
    text = extra.get(b"size")
    if text is not None and (not text.isdigit() or len(text) > 18):
        raise TarError(f"a pax size of {text[:20]!r}")
    size = header.size if text is None else int(text)
    if not 0 <= size < 1 << 62:
        raise TarError("a size that is negative or beyond any file")
    return size


def _kind(kind: bytes, extra: dict[bytes, bytes], name: bytes) -> str:
    if any(key.startswith(b"GNU.sparse") for key in extra):
        return "sparse file"
    found = _KINDS.get(kind, "member of an unknown kind")
    return "folder" if found == "file" and name.endswith(b"/") else found


def _fields(kind: bytes, content: bytes) -> dict[bytes, bytes]:
    """Return what a header says of the next member, as pax names it; one of all members names none of them."""
    if kind == _LONG_NAME:
        return {b"path": content.partition(b"\0")[0]}
    return dict(_pax_records(content)) if kind in _OF_NEXT else {}


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


def _sparse_maps(read_at: ReadAt, at: int) -> int:
    for count in range(1, MAX_HEADERS + 1):
        block = read_at(at + (count - 1) * BLOCK, BLOCK)
        if len(block) < BLOCK:
            break
        if not block[504]:
            return count * BLOCK
    raise TarError(f"the map of a sparse file at byte {at} does not end")
