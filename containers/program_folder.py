"""Copy the folder of a user's program to a node, checked: which files, and their digest.

A run works with one state of the folder: its digest is taken when the run starts, and every node compares its copy with it. So an editor
that saves a file meanwhile ends the run, instead of giving it two programs.
"""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from blake3 import blake3

from base.errors import ConfigError, SlipwayError, StagingError, StorageError
from base.humanize import format_size
from base.jsonfile import canonical_json
from base.logs import printable
from base.system import STORAGE_FAILS

MAX_BYTES: Final = 64 << 20
MAX_FILES: Final = 5000
LEFT_OUT: Final = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", "venv", ".ipynb_checkpoints", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
"""Names of directories, or of links to them, that are no part of a program."""
OF_SLIPWAY: Final = {"storage": "results", "cache": "datasets"}
"""Directories that Slipway makes beside a study, which may be the program's folder: name -> a directory in it by which it is known."""
TRUST_ADVICE: Final = "copy the folder, or chmod o-w"
ADVICE: Final = "a program's folder is for code: put data into a dataset, or into a place that the program finds by an argument"


class FolderDigest(NamedTuple):
    """The digest of all files of a folder, their number and bytes."""

    digest: str
    files: int
    bytes: int


class _File(NamedTuple):
    path: str
    executable: bool
    blake3: str
    bytes: int


def look_at(folder: Path, *, executed: bool = True) -> FolderDigest:
    """Read the whole folder. Raises ConfigError where it is not one of code: too large, links, files that may not be read, or `executed`
    ones that somebody else could change."""
    return _taken(_read_all(folder, None, executed))


def check(folder: Path) -> None:
    """Look at its files without reading them. Raises ConfigError, StorageError, as `look_at` does."""
    _files(folder, executed=True)


def copy(folder: Path | None, digest: str | None, target: Path) -> None:
    """Copy `folder` to `target`, whose files may not be written to; without a folder it is empty. Raises StagingError where the files
    are not those of `digest` any more, ConfigError as `look_at` does."""
    target.mkdir()
    if folder is not None and _taken(_read_all(folder, target, executed=True)).digest != digest:
        raise StagingError(f"{folder} has changed since the run began: leave a program's folder alone until its runs have started")


def _read_all(folder: Path, target: Path | None, executed: bool) -> list[_File]:
    """Read every file; what grows meanwhile is bounded too."""
    found: list[_File] = []
    total = 0
    for path in _files(folder, executed):
        found.append(_read(folder, path, None if target is None else target / path))
        total += found[-1].bytes
        if total > MAX_BYTES:
            raise ConfigError(f"{folder} has more than {format_size(MAX_BYTES)}, found at {printable(path)}: {ADVICE}")
    return found


def _taken(files: list[_File]) -> FolderDigest:
    content = canonical_json([[file.path, file.executable, file.blake3] for file in sorted(files)])
    return FolderDigest(digest=blake3(content).hexdigest(), files=len(files), bytes=sum(file.bytes for file in files))


def _files(folder: Path, executed: bool) -> list[str]:
    found: list[str] = []
    total = 0
    try:
        for entry in _walk(folder):
            relative = os.path.relpath(entry.path, folder)
            mode = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(mode.st_mode):
                what = "a link" if stat.S_ISLNK(mode.st_mode) else "no regular file"
                raise ConfigError(
                    f"{printable(entry.path)} is {what}, and only files are taken along: {_instead(Path(entry.path))}; {ADVICE}"
                )
            if executed and (why := _distrusted(mode)) is not None:
                raise ConfigError(f"{printable(entry.path)} {why}, and it would be executed as yours: {TRUST_ADVICE}")
            found.append(relative)
            total += mode.st_size
            if len(found) > MAX_FILES or total > MAX_BYTES:
                raise ConfigError(
                    f"{folder} has more than {MAX_FILES} files or {format_size(MAX_BYTES)}, found at {printable(relative)}: {ADVICE}"
                )
    except OSError as error:
        raise _unreadable(error, folder) from error
    return found


def _instead(path: Path) -> str:
    if not path.is_symlink():
        return "take it out of the folder"
    leads = printable(str(path.readlink()))
    return f"put a copy of {leads} in its place" if path.exists() else f"take it out, since {leads} is not there"


def _distrusted(status: os.stat_result) -> str | None:
    """Return why somebody else could change it; a group may."""
    if status.st_uid not in (0, os.geteuid()) and status.st_gid not in {os.getegid(), *os.getgroups()}:
        return f"is of uid {status.st_uid}, who is nobody of your groups"
    return "may be written by everybody" if status.st_mode & stat.S_IWOTH else None


def _walk(folder: Path) -> Iterator[os.DirEntry[str]]:
    waiting, seen = [str(folder)], 0
    while waiting:
        seen += 1
        if seen > MAX_FILES:
            raise ConfigError(f"{folder} has more than {MAX_FILES} directories: {ADVICE}")
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name in LEFT_OUT or ((inner := OF_SLIPWAY.get(entry.name)) and Path(entry.path, inner).is_dir()):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry


def _read(folder: Path, path: str, target: Path | None) -> _File:
    """Read one file without following a link that has come into its place."""
    try:
        descriptor = os.open(folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise _unreadable(error, folder) from error
    if not stat.S_ISREG(status.st_mode) or len(content) > MAX_BYTES:
        raise ConfigError(f"{folder / path} has become something else than a file of code: {ADVICE}")
    executable = bool(status.st_mode & stat.S_IXUSR)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        target.chmod(0o555 if executable else 0o444)
    return _File(path, executable, blake3(content).hexdigest(), len(content))


def _unreadable(error: OSError, folder: Path) -> SlipwayError:
    if isinstance(error, FileNotFoundError | NotADirectoryError) and folder.is_dir():
        return StagingError(f"{printable(str(error.filename))} has gone while the program's folder was read: leave it alone for that time")
    if error.errno in STORAGE_FAILS:
        return StorageError(f"{error.filename or folder} of the program's folder cannot be read: {error.strerror}")
    return ConfigError(f"{error.filename or folder} of the program's folder cannot be read: {error.strerror}")
