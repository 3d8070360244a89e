"""Read a tar of class folders, or a tar of tars as ImageNet comes (the inner archive's name is the class), in place without extraction.

A member is addressed by its offset in the outer file. A compressed archive is unpacked once into the build directory, as one plain tar. The
class is the first folder below the one that holds everything, as if the archive had been extracted and given as a folder.
"""

import tarfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from base.errors import DatasetError
from data_prep.image_header import SNIFF_BYTES
from data_prep.sources import naming, spool
from data_prep.sources.files import OffsetReader, OpenFiles, sample_reason
from data_prep.sources.types import MAX_MEMBERS, ListedSample, Prepared, Refused, Root

# List the members of a tar archive as places in the file: name, kind, offset, size. Nothing is extracted, no name becomes a path.
#
# Headers are parsed by the standard library; what joins them is done here, since `tarfile.open` ends at damage without a word, keeps every
# member in memory, and in the Python versions that we run on needs hours for some pax headers. Headers that describe members are bounded.


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


class _Entry(NamedTuple):
    """A member of the outer archive, or of one inside it. `path` treats inner archives as folders."""

    name: str
    path: tuple[str, ...]
    member: Member


def prepare(root: Root) -> Prepared:
    """Unpack if compressed; find the folder that holds everything, and whether its folders are splits."""
    if not root.path.is_file():
        what = "is not a file" if root.path.exists() else "does not exist"
        raise DatasetError(f"{root.path} {what}: source: tar wants one archive")
    archive = spool.plain_file(root.path, root.scratch)
    with OpenFiles([archive]) as files:
        if not is_tar_header(files.read_at(0, BLOCK)):
            raise DatasetError(f"{root.path} is no tar archive")
        folders = {entry.path[:-1] for entry in _entries(files) if isinstance(entry, _Entry) and naming.has_image_suffix(entry.name)}
    prefix = _common_prefix(folders)
    below = {folder[len(prefix) :] for folder in folders}
    deep = all(len(folder) > 1 for folder in below)
    splits = naming.own_splits({folder[0] for folder in below}) if deep and not root.whole else {}
    return Prepared(files=(archive,), facts={"prefix": list(prefix), "splits": splits})


def scan(root: Root, prepared: Prepared) -> Iterator[ListedSample | Refused]:
    """List the members in the order of the archive."""
    prefix, splits = tuple(prepared.facts["prefix"]), prepared.facts["splits"]
    with OpenFiles(prepared.files) as files:
        for entry in _entries(files):
            if isinstance(entry, Refused):
                yield entry
                continue
            folders = entry.path[len(prefix) : -1] if entry.path[: len(prefix)] == prefix else ()
            split = splits.get(folders[0]) if splits and folders else None
            classes = folders[1:] if split else folders
            if splits and split is None:
                yield Refused(entry.name, "lies outside the folders of the splits")
            elif not classes:
                yield Refused(entry.name, "lies outside the class folders")
            else:
                yield _listed_sample(files, entry, naming.printable(classes[0]), split or root.whole)


def open_reader(_root: Root, prepared: Prepared) -> AbstractContextManager["TarReader"]:
    """Open a reader, which reads members by offset."""
    return TarReader(prepared.files)


class TarReader(OffsetReader):
    """A reader of members; `at` is the offset of the content."""

    def head(self, found: ListedSample, limit: int) -> bytes:
        return self.files.read_exactly(int(found.at[0]), min(limit, found.size))

    def read(self, found: ListedSample) -> bytes:
        return self.files.read_exactly(int(found.at[0]), found.size)


def _common_prefix(folders: set[tuple[str, ...]]) -> tuple[str, ...]:
    """Return the leading folders that all paths share. The last folder of a single one is a class and not shared."""
    if not folders:
        return ()
    first, last = min(folders), max(folders)
    if first == last:
        return first[:-1]
    shared = 0
    while shared < min(len(first), len(last)) and first[shared] == last[shared]:
        shared += 1
    return first[:shared]


def _entries(files: OpenFiles) -> Iterator[_Entry | Refused]:
    """List every member, those of inner archives too. Damage ends the archive it is in."""
    count = 0
    for outer in _walk(files, 0, files.size(), ""):
        inner: Iterator[_Entry | Refused] = iter((outer,))
        if isinstance(outer, _Entry) and outer.name.lower().endswith(".tar"):
            inner = _inner(files, outer)
        for entry in inner:
            count += 1
            if count > MAX_MEMBERS:
                raise DatasetError(f"{files.paths[0]} has more than {MAX_MEMBERS} members")
            yield entry


def _inner(files: OpenFiles, outer: _Entry) -> Iterator[_Entry | Refused]:
    start, size = outer.member.offset, outer.member.size
    if not is_tar_header(files.read_at(start, BLOCK)):
        yield Refused(outer.name, "an inner archive that is no plain tar, or is empty")
        return
    folder = (*outer.path[:-1], outer.path[-1][: -len(".tar")])
    for entry in _walk(files, start, start + size, outer.name + "/"):
        if isinstance(entry, Refused):
            yield entry
        elif entry.name.lower().endswith(".tar"):
            yield Refused(entry.name, "archives nested deeper than two")
        else:
            yield entry._replace(path=(*folder, *entry.path))


def _walk(files: OpenFiles, start: int, end: int, prefix: str) -> Iterator[_Entry | Refused]:
    try:
        for member in members(files.read_at, start, end):
            if member.kind == "folder":
                continue
            name = naming.to_text(member.name)
            path = tuple(part for part in name.split("/") if part not in ("", "."))
            reason = _name_reason(name, path) or (f"a {member.kind} in the archive" if member.kind != "file" else None)
            shown = prefix + name.removeprefix("./")
            yield Refused(shown, reason) if reason else _Entry(shown, path, member)
    except TarError as error:
        yield Refused(prefix + "(the rest)", f"the archive is damaged from here on: {error}")


def _name_reason(name: str, path: tuple[str, ...]) -> str | None:
    if name.startswith("/"):
        return "an absolute path"
    if ".." in path:
        return "a path that leaves the archive"
    if not path or name.endswith("/"):
        return "a name that is none"
    return "hidden file" if any(part.startswith(".") for part in path) else None


def _listed_sample(files: OpenFiles, entry: _Entry, label: str, split: str | None) -> ListedSample | Refused:
    member = entry.member
    reason = sample_reason(entry.name, member.size, lambda: files.read_at(member.offset, SNIFF_BYTES))
    return Refused(entry.name, reason) if reason else ListedSample(entry.name, label, member.size, 0, (member.offset,), split)
