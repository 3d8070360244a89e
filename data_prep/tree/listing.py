"""What a tree holds now: its files with sizes and times, in the order of their names. Nothing is opened.

A tree is taken as it is, hidden files too; what cannot be staged as it is, is refused by its name: leaving it out would give programs other
data than the user has. Only what belongs to the storage itself, and directories without a file, are left out, which is told.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from base.errors import DatasetError
from base.units import counted, some
from data_prep.sources.files import Inside, retried
from data_prep.sources.naming import printable, to_raw, to_text
from data_prep.tree.names import MAX_DEPTH, MAX_FILES, is_of_storage, name_fault

_SHOWN: Final = 5
_REPORT_EVERY: Final = 1000
_PACK: Final = "pack them into larger files (tar shards as webdataset reads them, parquet, HDF5), which is also how storage is read fast"


class ListedFile(NamedTuple):
    """`at`: where a link leads to, below the tree; None: it is no link."""

    name: str
    bytes: int
    mtime_ns: int
    at: str | None


@dataclass(frozen=True, kw_only=True)
class Tree:
    """`root` is without links; of a single file it is the directory that holds it. `left_out`: (name, reason)."""

    root: Path
    files: tuple[ListedFile, ...]
    left_out: tuple[tuple[str, str], ...]


def list_tree(path: Path, progress: Callable[[int, int], None] | None = None, most: int = MAX_FILES) -> Tree:
    """The tree, or the one file, at `path`, of at most `most` files; `progress(files, 0)`. Raises DatasetError for what cannot be staged as
    it is, StorageError."""
    real = os.path.realpath(os.fsencode(path))
    try:
        status = retried(str(path), lambda: Path(os.fsdecode(real)).stat())
    except OSError as error:
        raise DatasetError(f"{path} cannot be looked at: {error.strerror}; source: files wants a directory or a file") from error
    if stat.S_ISREG(status.st_mode):
        root, name = os.path.split(real)
        walk = _Walk(root, most)
        walk.file(name, status, None)
    elif stat.S_ISDIR(status.st_mode):
        walk = _Walk(real, most)
        walk.all(progress)
    else:
        raise DatasetError(f"{path} is neither a directory nor a file, which source: files wants")
    return walk.tree(path)


class _Walk:
    """One listing of what is below `root`."""

    def __init__(self, root: bytes, most: int) -> None:
        self.root, self.most = root, most
        self.inside = Inside(Path(os.fsdecode(root)))
        self.files: list[ListedFile] = []
        self.left_out: list[tuple[str, str]] = []
        self.wrong: list[str] = []
        self.count = 0

    def all(self, progress: Callable[[int, int], None] | None) -> None:
        waiting = [b""]
        while waiting:
            folder = waiting.pop()
            entries = self._entries(folder)
            if not entries and folder:
                self.left_out.append((printable(to_text(folder)) + "/", "empty directory"))
            for entry in entries:
                if self._take(folder, entry):
                    waiting.append(os.path.join(folder, entry.name))
            if progress is not None and len(self.files) // _REPORT_EVERY != self.count:
                self.count = len(self.files) // _REPORT_EVERY
                progress(len(self.files), 0)

    def _entries(self, folder: bytes) -> list[os.DirEntry[bytes]]:
        path = os.path.join(self.root, folder)

        def listed() -> list[os.DirEntry[bytes]]:
            with os.scandir(path) as entries:
                return list(self._bounded(entries))

        try:
            return retried(printable(to_text(path)), listed)
        except OSError as error:
            self.wrong.append(f"{printable(to_text(path))}/: cannot be listed: {error.strerror}")
            return []

    def _bounded(self, entries: Iterator[os.DirEntry[bytes]]) -> Iterator[os.DirEntry[bytes]]:
        for number, entry in enumerate(entries):
            if number > self.most:
                self._refuse_more()
            yield entry

    def _take(self, folder: bytes, entry: os.DirEntry[bytes]) -> bool:
        """Note an entry; True for a directory to go into."""
        name = os.path.join(folder, entry.name)
        text = to_text(name)
        if is_of_storage(to_text(entry.name)):
            self.left_out.append((printable(text), "of the storage itself"))
            return False
        try:
            if entry.is_symlink():
                self._link(name)
            elif entry.is_dir(follow_symlinks=False):
                if text.count("/") < MAX_DEPTH:
                    return True
                self.wrong.append(f"{printable(text)}/: nested deeper than {MAX_DEPTH} directories")
            else:
                self.file(name, entry.stat(follow_symlinks=False), None)
        except FileNotFoundError:
            self.wrong.append(f"{printable(text)}: it went away while the tree was listed")
        except OSError as error:
            self.wrong.append(f"{printable(text)}: {error.strerror}")
        return False

    def _link(self, name: bytes) -> None:
        """A link to a file of the tree is that file under a second name. Raises OSError."""
        resolved = self.inside.resolve(name)
        try:
            status = Path(os.fsdecode(os.path.join(self.root, name))).stat()
        except OSError as error:
            self.wrong.append(f"{printable(to_text(name))}: a link to what is not there: {error.strerror}")
            return
        if resolved is None:
            self.wrong.append(f"{printable(to_text(name))}: a link out of the tree")
        elif stat.S_ISDIR(status.st_mode):
            self.wrong.append(f"{printable(to_text(name))}: a link to a directory")
        else:
            self.file(name, status, to_text(resolved))

    def file(self, name: bytes, status: os.stat_result, at: str | None) -> None:
        """Note what may be a file of the tree."""
        text = to_text(name)
        fault = name_fault(text) or (name_fault(at) if at is not None else None)
        if fault is None and not stat.S_ISREG(status.st_mode):
            fault = "neither a file nor a directory"
        if fault is not None:
            self.wrong.append(f"{printable(text)}: {fault}")
            return
        if len(self.files) == self.most:
            self._refuse_more()
        self.files.append(ListedFile(text, status.st_size, status.st_mtime_ns, at))

    def _refuse_more(self) -> None:
        raise DatasetError(f"{os.fsdecode(self.root)} holds more than {self.most:,} files: {_PACK}")

    def tree(self, path: Path) -> Tree:
        """What was found. Raises DatasetError."""
        if self.wrong:
            raise DatasetError(
                f"{path} cannot be staged as it is, because of {counted(len(self.wrong), 'entry', 'entries')}:\n"
                f"{some(sorted(self.wrong), _SHOWN, chr(10))}\n"
                "remove or rename them, put a copy in the place of a link, or name the directory that holds what a link leads to"
            )
        if not self.files:
            raise DatasetError(f"{path} holds no file: there is nothing to stage")
        files = sorted(self.files, key=lambda file: to_raw(file.name))
        return Tree(root=Path(os.fsdecode(self.root)), files=tuple(files), left_out=tuple(sorted(self.left_out)))
