"""Read a folder of class folders with images in them, at any depth below the class folder.

A top level of `train`, `val`, `test` folders that hold class folders is taken as the source's own splits.
"""

import os
from collections.abc import Iterator

from base.errors import DatasetError
from data_prep.sources.files import FileReader, Inside, file_reason, retried
from data_prep.sources.naming import own_splits, printable, to_raw, to_text
from data_prep.sources.types import ListedSample, Prepared, Refused, Root

MAX_DEPTH = 32


def prepare(root: Root) -> Prepared:
    """Look whether the top level is classes or splits."""
    if not root.path.is_dir():
        what = "is no folder" if root.path.exists() else "does not exist"
        raise DatasetError(f"{root.path} {what}: source: folder wants a folder with one folder of images per class")
    top = {to_text(entry.name) for entry in _entries(os.fsencode(root.path)) if entry.is_dir(follow_symlinks=False)}
    visible = {name for name in top if not name.startswith(".")}
    splits = {} if root.whole else own_splits(visible)
    if not all(_holds_folders(os.path.join(os.fsencode(root.path), to_raw(name))) for name in splits):
        splits = {}
    return Prepared(facts={"splits": splits})


def scan(root: Root, prepared: Prepared) -> Iterator[ListedSample | Refused]:
    """List the files below each class folder; the class is the folder's name."""
    inside = Inside(root.path)
    splits = prepared.facts["splits"]
    if splits:
        for name, split in sorted(splits.items()):
            yield from _classes(inside, to_raw(name), split)
    else:
        yield from _classes(inside, b"", root.whole)


def open_reader(root: Root, _prepared: Prepared) -> FileReader:
    """Open a reader, which reads files in place."""
    return FileReader(root.path)


def _entries(path: bytes) -> list[os.DirEntry[bytes]]:
    def listed() -> list[os.DirEntry[bytes]]:
        with os.scandir(path) as entries:
            return sorted(entries, key=lambda entry: entry.name)

    try:
        return retried(printable(to_text(path)), listed)
    except OSError as error:
        raise DatasetError(f"{printable(to_text(path))} cannot be listed: {error.strerror}") from error


def _holds_folders(path: bytes) -> bool:
    return any(entry.is_dir(follow_symlinks=False) for entry in _entries(path))


def _classes(inside: Inside, top: bytes, split: str | None) -> Iterator[ListedSample | Refused]:
    for entry in _entries(os.path.join(inside.root, top)):
        relative = os.path.join(top, entry.name)
        if not entry.is_dir(follow_symlinks=False):
            yield _stray(entry, relative)
        elif entry.name.startswith(b"."):
            yield Refused(to_text(relative) + "/", "hidden folder")
        else:
            yield from _class_folder(inside, relative, printable(to_text(entry.name)), split)


def _stray(entry: os.DirEntry[bytes], relative: bytes) -> Refused:
    if entry.name.startswith(b"."):
        return Refused(to_text(relative), "hidden file")
    if entry.is_symlink():
        return Refused(to_text(relative), "a link is not followed here")
    return Refused(to_text(relative), "lies outside the class folders")


def _class_folder(inside: Inside, top: bytes, label: str, split: str | None) -> Iterator[ListedSample | Refused]:
    waiting = [(top, 1)]
    empty = True
    while waiting:
        folder, depth = waiting.pop()
        try:
            entries = _entries(os.path.join(inside.root, folder))
        except DatasetError as error:
            yield Refused(to_text(folder) + "/", str(error.__cause__ or error))
            continue
        for entry in entries:
            relative = os.path.join(folder, entry.name)
            empty = False
            if not entry.name.startswith(b".") and entry.is_dir(follow_symlinks=False):
                if depth < MAX_DEPTH:
                    waiting.append((relative, depth + 1))
                else:
                    yield Refused(to_text(relative) + "/", f"nested deeper than {MAX_DEPTH} folders")
            else:
                yield _file(inside, entry, relative, label, split)
    if empty:
        yield Refused(to_text(top) + "/", "empty class folder")


def _file(inside: Inside, entry: os.DirEntry[bytes], relative: bytes, label: str, split: str | None) -> ListedSample | Refused:
    name = to_text(relative)
    if entry.name.startswith(b"."):
        return Refused(name, "hidden file")
    at: tuple[str, ...] = ()
    try:
        if entry.is_symlink():
            resolved = inside.resolve(relative)
            if resolved is None:
                return Refused(name, "a link that leaves the folder")
            at = (to_text(resolved),)
            if os.path.isdir(entry.path):
                return Refused(name, "a link to a folder is not followed")
        status = entry.stat()
        reason = file_reason(os.path.join(inside.root, to_raw(at[0] if at else name)), name, status)
    except OSError as error:
        return Refused(name, f"not readable: {error.strerror}")
    return Refused(name, reason) if reason else ListedSample(name, label, status.st_size, status.st_mtime_ns, at, split)
