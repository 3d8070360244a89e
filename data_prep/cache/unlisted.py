"""Find and remove what programs have put among the files of a staged tree.

A program with its user's rights can create names beside its data. The next one, which lists the directory, would train on them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from base.publish import remove_tree
from data_prep.file_set import FileSet
from data_prep.tree.manifest import FOLDER


def unlisted(root: Path, file_set: FileSet) -> list[Path]:
    """List the topmost names below `root/files` that the manifest does not know, in order.

    A dataset that is no tree has none. Raises OSError.
    """
    if not file_set.in_place:
        return []
    files = {file.path for file in file_set.files}
    folders = {path[:at] for path in files for at in range(len(path)) if path[at] == "/"}
    return sorted(root / path for path in _others(root, FOLDER, files, folders))


def remove_unlisted(root: Path, file_set: FileSet) -> list[Path]:
    """Delete them; returns what they were. What a link among them names is left alone. Raises OSError."""
    found = unlisted(root, file_set)
    for path in found:
        if stat.S_ISDIR(path.lstat().st_mode):
            remove_tree(path)
        else:
            path.unlink()
    return found


def _others(root: Path, folder: str, files: set[str], folders: set[str]) -> Iterator[str]:
    with os.scandir(root / folder) as entries:
        for entry in entries:
            path = f"{folder}/{entry.name}"
            if path in folders and entry.is_dir(follow_symlinks=False):
                yield from _others(root, path, files, folders)
            elif path not in files or entry.is_dir(follow_symlinks=False):
                yield path
