"""Publish files whole or not at all, also after a power cut.

The protocol is: write beside the target, fsync, rename, fsync the directory. This module is the only caller of rename in the project.
After a failed fsync the kernel may report the next one as successful although the bytes are lost (measured, faults.md 2b of the design
notes), so a part whose sync failed is removed and never synced again.
"""

import contextlib
import errno
import logging
import os
import shlex
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from base.system import user_name

logger = logging.getLogger(__name__)

# The same call for many things, by a few threads where that is worth it: what waits for a disk or for storage.


THREADS: Final = 8
FEW: Final = 16
"""So many are done one after the other: threads would cost more."""

NO_LINKS: Final = frozenset((errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS))
"""Error numbers of a file system that makes no hard link there."""

T = TypeVar("T")


def each(function: Callable[[T], object], things: Sequence[T]) -> None:
    """Call `function` for each of `things`, in no order where they are many. Raises what the first call that failed raised; others may have
    been made nevertheless. A file system writes down together what is synced at the same time: of 500 files of 4 KiB on an ext4 each alone
    took 1.2 s, by 8 threads 0.1 s (2026-11-23)."""
    if len(things) <= FEW:
        for thing in things:
            function(thing)
        return
    from concurrent.futures import ThreadPoolExecutor  # what imports base.publish starts many times, and hardly ever has so many files

    with ThreadPoolExecutor(min(THREADS, len(things))) as pool:
        deque(pool.map(function, things), maxlen=0)


def part_path(target: Path) -> Path:
    """Return a fresh name beside `target`, hidden, unique across hosts and processes."""
    return target.parent / f".{target.name}.part-{os.urandom(6).hex()}"


def publish(target: Path, content: bytes, mode: int = 0o644) -> None:
    """Write `content` to `target` so that readers see the old file or the new one, nothing between. `mode` is subject to the umask."""
    part = part_path(target)
    with _naming(target), _becoming(part, target):
        _write(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), content)


def publish_file(part: Path, target: Path) -> None:
    """Make the finished file `part` (same file system) durable under the name `target`. On failure `part` is removed."""
    with _becoming(part, target):
        _sync_path(part)


def publish_directory(part: Path, target: Path) -> bool:
    """Make the finished directory `part` durable under the name `target`; False, and `part` removed, if `target` is there already. A
    directory is never replaced: whoever publishes the same name publishes the same content, or takes another name."""
    try:
        sync_tree(part)
        renamed = _rename_new(part, target)
    except BaseException:
        remove_tree(part)
        raise
    if not renamed:
        remove_tree(part)
        return False
    sync_directory(target.parent)
    return True


def move_directory(source: Path, target: Path) -> None:
    """Rename `source`, already durable, to the new name `target`. Raises FileExistsError if `target` is there."""
    if not _rename_new(source, target):
        raise FileExistsError(errno.EEXIST, "the target exists", str(target))
    sync_directory(target.parent)
    if source.parent != target.parent:
        sync_directory(source.parent)


def publish_new(target: Path, content: bytes) -> bool:
    """Publish a file that must not be there yet. Return False if it is: of several callers at the same moment one wins, and the others read
    all that it wrote. By a link: NFS honours it, and flock often not. Where the file system has none, the name is there empty for a moment,
    and for good if this process is killed in it."""
    part = part_path(target)
    try:
        with _naming(target):
            _write(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644), content)
            try:
                os.link(part, target)
            except FileExistsError:
                return part.stat().st_nlink > 1  # our own: the answer of a server was lost, and asked for again
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                try:
                    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
                except FileExistsError:
                    return False
                os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
    sync_directory(target.parent)
    return True


def sync_tree(root: Path) -> None:
    """Call fsync for every regular file and every directory under `root`, and for `root` itself."""
    directories, files = [], []
    for directory, _, names in os.walk(root, topdown=False):
        directories.append(Path(directory))
        files += [path for name in names if stat.S_ISREG((path := Path(directory, name)).lstat().st_mode)]
    each(_sync_path, files)
    each(sync_directory, directories)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable by fsync."""
    _sync_path(path)


def _write(descriptor: int, content: bytes) -> None:
    """Write all of the content durably, and close the descriptor."""
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def _becoming(part: Path, target: Path) -> Iterator[None]:
    """Rename the file `part`, which is made durable within, to `target`, durably; remove it on failure."""
    try:
        yield
        os.replace(part, target)
    except BaseException as error:
        with contextlib.suppress(OSError):  # its own error would hide the cause
            part.unlink()
        if isinstance(error, OSError) and str(error.filename) == str(part):
            error.filename = str(target)  # the part is gone, or could not be made
        raise
    sync_directory(target.parent)


@contextlib.contextmanager
def _naming(target: Path) -> Iterator[None]:
    """Add the path to an error of a descriptor, so that a full disk is reported with it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(target)
        raise


def _rename_new(source: Path, target: Path) -> bool:
    if target.exists():
        return False
    try:
        os.rename(source, target)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    return True


def _sync_path(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# Remove a directory tree that somebody else may have made, and may still write to.


def remove_tree(path: Path) -> None:
    """Remove a directory tree; of a link only the link. What vanished does not matter, and no link is followed. What shutil cannot remove,
    such as directories that are read-only, or deeper than Python goes, is left to `chmod` and `rm`. Raises OSError for the first thing that
    stays; all else is gone then."""
    import shutil  # these import much, and what imports base.publish starts many times
    import subprocess

    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISDIR(path.lstat().st_mode):
            path.unlink()
            return
        with contextlib.suppress(OSError, RecursionError):
            shutil.rmtree(path)
            return
        for words in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            with contextlib.suppress(OSError):  # no such program on PATH: what stays is named below
                subprocess.run([*words, "--", str(path)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        try:
            shutil.rmtree(path, onerror=_raise_for)
        except RecursionError as error:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(path)) from error


def _raise_for(_function: object, name: str, found: tuple[type[BaseException], BaseException, object]) -> None:
    """Raise the error of shutil with the whole path, of which it has the last part."""
    error = found[1]
    raise OSError(getattr(error, "errno", None) or errno.ENOTEMPTY, getattr(error, "strerror", None) or str(error), name) from error


def remove_leftover(path: Path) -> str | None:
    """Remove what nobody needs any more. Return None, or a sentence that names what stays and how it is removed. That is a warning in the
    log and no error, because the next one's work must not depend on it."""
    try:
        remove_tree(path)
    except OSError as error:
        problem = why_left(path, error)
        logger.warning("%s", problem)
        return problem
    return None


def why_left(path: Path, error: OSError) -> str:
    """Return a sentence that names what of `path` could not be removed, why, and what to type."""
    found = os.fsdecode(error.filename or path)
    left = shlex.quote(found).replace("\n", "\\n").replace("\t", "\\t")  # a program may have named it
    try:
        owner = os.lstat(found).st_uid
    except OSError:
        owner = os.geteuid()
    why, remove = str(error.strerror), f"rm -r {shlex.quote(str(path))}"
    if owner != os.geteuid():
        return f"{left} cannot be removed ({why}): it belongs to {user_name(owner)}, who can remove it, as root can: {remove}"
    if error.errno == errno.EPERM:
        unlock = f"chattr -R -f -ia {shlex.quote(str(path))}"
        return f"{left} cannot be removed ({why}): `lsattr` shows the attribute that forbids it; as root: {unlock}; {remove}"
    return f"{left} cannot be removed ({why}): when that is mended: {remove}"
