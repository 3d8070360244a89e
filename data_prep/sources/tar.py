"""Read a tar of class folders, or a tar of tars as ImageNet comes (the inner archive's name is the class), in place without extraction.

A member is addressed by its offset in the outer file. A compressed archive is unpacked once into the build directory, as one plain tar. The
class is the first folder below the one that holds everything, as if the archive had been extracted and given as a folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from base.errors import DatasetError
from data_prep.image_header import SNIFF_BYTES
from data_prep.sources.files import OffsetReader, OpenFiles, sample_reason
from data_prep.sources.naming import has_image_suffix, own_splits, printable, to_text
from data_prep.sources.spool import plain_file
from data_prep.sources.tar_members import BLOCK, Member, TarError, is_tar_header, members
from data_prep.sources.types import MAX_MEMBERS, Found, Prepared, Refused, Root


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
    archive = plain_file(root.path, root.scratch)
    with OpenFiles([archive]) as files:
        if not is_tar_header(files.read_at(0, BLOCK)):
            raise DatasetError(f"{root.path} is no tar archive")
        folders = {entry.path[:-1] for entry in _entries(files) if isinstance(entry, _Entry) and has_image_suffix(entry.name)}
    prefix = _common_prefix(folders)
    below = {folder[len(prefix) :] for folder in folders}
    deep = all(len(folder) > 1 for folder in below)
    splits = own_splits({folder[0] for folder in below}) if deep and not root.whole else {}
    return Prepared(files=(archive,), facts={"prefix": list(prefix), "splits": splits})


def scan(root: Root, prepared: Prepared) -> Iterator[Found | Refused]:
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
                yield _found(files, entry, printable(classes[0]), split or root.whole)


def open_reader(_root: Root, prepared: Prepared) -> AbstractContextManager[TarReader]:
    """Open a reader, which reads members by offset."""
    return TarReader(prepared.files)


class TarReader(OffsetReader):
    """A reader of members; `at` is the offset of the content."""

    def head(self, found: Found, limit: int) -> bytes:
        return self.files.read_exactly(int(found.at[0]), min(limit, found.size))

    def read(self, found: Found) -> bytes:
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
            name = to_text(member.name)
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


def _found(files: OpenFiles, entry: _Entry, label: str, split: str | None) -> Found | Refused:
    member = entry.member
    reason = sample_reason(entry.name, member.size, lambda: files.read_at(member.offset, SNIFF_BYTES))
    return Refused(entry.name, reason) if reason else Found(entry.name, label, member.size, 0, (member.offset,), split)
