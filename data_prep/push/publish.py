"""The last step of a push: what lies in the hidden directory is read back, compared with what was sent, and gets its name in one rename."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from blake3 import blake3

from base.errors import DatasetError, PushError, StorageError
from base.jsonfile import canonical_json
from base.limited import moved
from base.publish import publish_directory, remove_tree
from base.removing import remove_leftover
from base.units import some
from data_prep.hashing import hash_file

UNLISTED: Final = frozenset({"record.json"})

Content = dict[str, tuple[int, str]]  # path -> bytes, blake3


class TargetDiffers(PushError):
    """Something else has the name already."""


def publish_attempt(part_dir: Path, files: Iterable[Mapping[str, Any]], target_dir: Path) -> bool:
    """Check `part_dir` against `files` (the lists of all nodes' push_files together) and rename it to `target_dir`, durably.

    Returns False where the same content is there already. A record may lie beside the files and is not compared: it lists the files
    and cannot list itself. Raises PushError for anything missing, changed or not listed, and, naming both digests, where another content
    has the name; nothing is overwritten, `part_dir` stays.
    """
    try:
        return publish_or_differ(part_dir, files, target_dir)
    except TargetDiffers as error:
        raise PushError(str(error)) from error  # of the one tree, which limited calls know


def publish_or_differ(part_dir: Path, files: Iterable[Mapping[str, Any]], target_dir: Path) -> bool:
    """publish_attempt() that raises TargetDiffers where another content has the name."""
    wanted = _by_path(files)
    try:
        if os.path.lexists(target_dir):
            _compare(wanted, target_dir)
            remove_tree(part_dir)
            return False
        _verify(part_dir, wanted)
        if not publish_directory(part_dir, target_dir):
            _compare(wanted, target_dir)
            return False
        for left_over in target_dir.parent.glob(f".{target_dir.name}.part-*"):
            remove_leftover(left_over)
    except OSError as error:
        raise StorageError(f"{target_dir} cannot be published: {error.strerror}: {error.filename}; the result stays on the node") from error
    return True


def compare_files(directory: Path, files: Iterable[Mapping[str, Any]]) -> None:
    """Raises PushError unless `files`, and nothing else, lie in `directory`."""
    _verify(directory, _by_path(file for file in files if file["path"] not in UNLISTED))


def read_back(root: Path) -> Content:
    """Size and hash of every regular file below `root`, from storage rather than from memory. Raises PushError for others."""
    found: Content = {}
    for directory, names, files in os.walk(root):
        for name in [*files, *(name for name in names if Path(directory, name).is_symlink())]:
            path = Path(directory, name)
            found[str(path.relative_to(root))] = _hash(path)
    return found


def digest(content: Content) -> str:
    """One name for the whole content, 12 hex digits."""
    return blake3(canonical_json(content)).hexdigest()[:12]


def _hash(path: Path) -> tuple[int, str]:
    try:
        found = hash_file(path, on_piece=lambda _bytes: moved(), stored=True)
    except DatasetError as error:
        raise PushError(f"{error}: nobody of ours put it there") from error
    return found.bytes, found.blake3


def _by_path(files: Iterable[Mapping[str, Any]]) -> Content:
    wanted: Content = {}
    for file in files:
        path, is_ = str(file["path"]), (int(file["bytes"]), str(file["blake3"]))
        if wanted.setdefault(path, is_) != is_:
            raise PushError(f"two nodes pushed different files {path!r}: {wanted[path]} and {is_}; names must tell the nodes apart")
    return wanted


def _verify(part_dir: Path, wanted: Content) -> None:
    found = read_back(part_dir)
    for path in [path for path in found if Path(path).name.startswith(".") and ".part-" in path and path not in wanted]:
        (part_dir / path).unlink()  # what a kill left of a publish() inside
        del found[path]
    problems = _differences(wanted, found)
    if problems:
        raise PushError(f"{part_dir} is not what was sent: {problems}; storage lost or changed it: push again")


def _compare(wanted: Content, target_dir: Path) -> None:
    found = read_back(target_dir) if target_dir.is_dir() else {}
    problems = _differences(wanted, found)
    if problems:
        there = {path: is_ for path, is_ in found.items() if path not in UNLISTED}
        raise TargetDiffers(
            f"{target_dir} exists with another content, digest {digest(there)}, this result has {digest(wanted)}: {problems}; nothing was "
            "overwritten: look who wrote it, move one of the two away"
        )


def _differences(wanted: Content, found: Content) -> str:
    """At most five, for people; empty if there are none."""
    problems = [f"{path} is missing" for path in sorted(wanted.keys() - found.keys())]
    problems += [f"{path} was not sent" for path in sorted(found.keys() - wanted.keys() - UNLISTED)]
    problems += [
        f"{path} has {found[path][0]} bytes, blake3 {found[path][1][:12]}, expected {wanted[path][0]}, {wanted[path][1][:12]}"
        for path in sorted(wanted.keys() & found.keys())
        if wanted[path] != found[path]
    ]
    return some(problems, 5, "; ")
