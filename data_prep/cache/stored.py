"""Find the datasets in a cache, check them, and remove them or what programs have put among their files."""

import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from base import jsonfile, sanitize
from base.errors import StagingError
from base.publish import move_directory, publish, remove_tree, why_left
from data_prep.cache.layout import DATASET, HIDDEN, Cache, mark_of
from data_prep.file_set import FileSet, parse_file_set
from data_prep.manifest import FILE_NAME, MAX_BYTES
from data_prep.tree.manifest import FOLDER

MAX_STAMP = 1 << 16


def names(cache: Cache) -> list[str]:
    """List the published datasets."""
    return sorted(path.name for path in cache.datasets.iterdir() if DATASET.fullmatch(path.name))


def check_entry(root: Path) -> FileSet:
    """Check a published directory quickly and return its files. The digest of its manifest must be in its name, and every file a regular
    one of the right size. Raises SlipwayError with what is wrong."""
    try:
        if root.is_symlink():
            raise StagingError(f"{root} is a symbolic link")
        found = parse_file_set(jsonfile.read_content(root / FILE_NAME, StagingError, MAX_BYTES), str(root / FILE_NAME))
        if not root.name.endswith(f"-{found.digest[:12]}"):
            raise StagingError(f"manifest.json has the digest {found.digest[:12]}, which is not the one in the directory's name")
        for file in found.files:
            status = (root / file.path).lstat()
            if not stat.S_ISREG(status.st_mode) or status.st_size != file.bytes:
                raise StagingError(f"{file.name} has {status.st_size} bytes, its manifest says {file.bytes}")
    except OSError as error:
        raise StagingError(f"{error.filename}: {error.strerror}") from error
    return found


def touch_used(cache: Cache, name: str, num_bytes: int) -> None:
    """Note a use of the dataset: now."""
    stamp = cache.used / f"{name}.json"
    try:
        os.utime(stamp)
    except OSError:
        publish(stamp, jsonfile.canonical_json({"bytes": num_bytes}), cache.file_mode)


def last_used(cache: Cache, name: str) -> float:
    """Return when the dataset was used last, in seconds since 1970."""
    return changed_at(cache.used / f"{name}.json") or changed_at(cache.datasets / name)


def entry_bytes(cache: Cache, name: str) -> int:
    """Return the length of a published dataset from its stamp or, without a stamp, from its files."""
    found = sanitize.whole(json_object(cache.used / f"{name}.json").get("bytes"))
    return allocated_bytes(cache.datasets / name) if found is None else found


def allocated_bytes(path: Path) -> int:
    """Sum the bytes that a tree takes on its disk."""
    total = 0
    for directory, _, files in os.walk(path):
        for file in files:
            try:
                total += os.lstat(os.path.join(directory, file)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total


def remove_entry(cache: Cache, path: Path) -> None:
    """Take an entry out of sight by one rename, then delete it: a kill in between leaves only a `.gone` that the next eviction removes."""
    is_gone = ".gone-" in path.name
    gone = path if is_gone else path.parent / f".{dataset_of(path)}.gone-{secrets.token_hex(4)}"
    try:
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()  # a link: what it names is not ours to remove
            return
        if not is_gone:
            move_directory(path, gone)
        remove_tree(gone)
    except OSError as error:
        raise StagingError(why_left(gone if gone.exists() else path, error)) from error
    (cache.used / f"{path.name}.json").unlink(missing_ok=True)
    mark_of(cache, path.name).unlink(missing_ok=True)


def dataset_of(path: Path) -> str:
    """Return the dataset to which a directory of the cache belongs, as itself, a part or a remainder."""
    match = HIDDEN.fullmatch(path.name)
    return match.group(1) if match else path.name


def changed_at(path: Path) -> float:
    """Return the time stamp of a path in seconds since 1970, or 0 where it is absent."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def json_object(path: Path) -> dict[str, object]:
    """Read the object in a file. It is empty if the file cannot be read."""
    try:
        found = jsonfile.read_json(path, StagingError, MAX_STAMP)
    except StagingError:
        return {}
    return found if isinstance(found, dict) else {}


# Find and remove what programs have put among the files of a staged tree.
#
# A program with its user's rights can create names beside its data. The next one, which lists the directory, would train on them.


def unlisted(root: Path, file_set: FileSet) -> list[Path]:
    """List the topmost names below `root/files` that the manifest does not know, in order. A dataset that is no tree has none. Raises
    OSError."""
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
