"""Open files where somebody else can write, such as the output of a program, and check directories where nobody else may.

Whoever writes there may plant a link to a file of ours elsewhere, a pipe that nobody feeds, or a device, and may exchange a directory for a
link between two looks of ours. So every name is opened relative to the descriptor of its directory, component by component, links are never
followed, the opening never waits, and only a regular file is used. Hard links are accepted for reading: they cannot cross a mount, so what
a container can link to lies in its own output directory, and a program without a container may read its user's files anyway. Nothing of
ours is written into such a directory.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

MAX_DEPTH: Final = 32
NEVER_FOLLOW: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_KINDS: Final = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class Unusable(OSError):
    """What has the name is not a regular file, or lies behind something that is not a directory; `strerror` says what it is."""


class Entry(NamedTuple):
    """Something in a directory: its path relative to the root of the listing, and its own status, not that of what it links to."""

    path: str
    status: os.stat_result

    @property
    def kind(self) -> str | None:
        return kind_of(self.status)


def kind_of(status: os.stat_result) -> str | None:
    """Name what is not a regular file: `a pipe`, `a symbolic link` and so on; None for a regular file."""
    return next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), None)


@contextlib.contextmanager
def directory(path: Path) -> Iterator[int]:
    """Open the directory `path`, which must not be a link itself, and close it afterwards. Raises OSError, Unusable for anything but a
    directory."""
    descriptor = open_directory(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_directory(path: Path | str, dir_fd: int | None = None) -> int:
    """Open the directory `path` as `directory` does, for the caller to close."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | NEVER_FOLLOW, dir_fd=dir_fd)
    except OSError as error:
        raise _explained(error, str(path), dir_fd) from error


def open_regular(root: int, path: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """Open the regular file `path` below the directory `root` without waiting. `flags` may hold O_CREAT; O_TRUNC is done after the
    check. Raises OSError; Unusable where it is something else."""
    *parents, name = _components(path)
    with _parent(root, parents) as parent:
        try:
            descriptor = os.open(name, (flags & ~os.O_TRUNC) | NEVER_FOLLOW, mode, dir_fd=parent)
        except OSError as error:
            raise _explained(error, name, parent) from error
    try:
        kind = kind_of(os.fstat(descriptor))
        if kind is not None:
            raise Unusable(errno.EINVAL, f"it is {kind}", path)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def open_file(path: Path) -> int:
    """Open the regular file `path` for reading; the caller vouches for the directory, which may be reached by links."""
    with directory(path.parent) as parent:
        return open_regular(parent, path.name)


def open_plain(path: Path) -> int:
    """Open a regular file by a path of the user's own, which may hold links, for reading; without waiting for a pipe or a device. Raises
    OSError; Unusable where it is something else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    kind = kind_of(os.fstat(descriptor))
    if kind is not None:
        os.close(descriptor)
        raise Unusable(errno.EINVAL, f"it is {kind}", str(path))
    return descriptor


def read_fed(path: Path, most: int) -> bytes:
    """Read at most `most` bytes by a path of the user's own, of a file or of a pipe such as /dev/stdin. Raises OSError; Unusable for
    anything else."""
    with path.open("rb") as file:
        kind = kind_of(os.fstat(file.fileno()))
        if kind not in (None, "a pipe"):
            raise Unusable(errno.EINVAL, f"it is {kind}", str(path))
        return file.read(most)


def make_directories(root: int, path: str) -> None:
    """Make the directory `path` below `root` with its parents, each durable in its own parent. Raises OSError."""
    parts = _components(path)
    for index, name in enumerate(parts):
        with _parent(root, parts[:index]) as parent, contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=parent)
            os.fsync(parent)


def entries(root: int, most: int, closed: Callable[[str, OSError], None] | None = None) -> Iterator[Entry]:
    """List what is below `root`, nearer things first, at most `most` of them. Directories are entered, links are not. What vanishes or
    changes meanwhile is passed over; what is deeper than MAX_DEPTH is listed as its directory only. `closed(path, error)` is called
    with the path of a directory that cannot be read, such as one of mode 000."""
    waiting, left = [""], most
    while waiting:
        path = waiting.pop(0)
        for entry in _listed(root, path, closed):
            if left == 0:
                return
            left -= 1
            yield entry
            if stat.S_ISDIR(entry.status.st_mode) and entry.path.count("/") < MAX_DEPTH:
                waiting.append(entry.path)


def _listed(root: int, path: str, closed: Callable[[str, OSError], None] | None) -> Iterator[Entry]:
    def tell(what: str, error: OSError) -> None:
        if closed is not None and not isinstance(error, FileNotFoundError | Unusable):
            closed(what, error)

    try:
        descriptor = open_directory(".", root) if not path else _open_below(root, path.split("/"))
    except OSError as error:
        tell(path, error)
        return
    try:
        with os.scandir(descriptor) as found:
            for item in found:
                inside = f"{path}/{item.name}" if path else item.name
                try:
                    status = item.stat(follow_symlinks=False)
                except OSError as error:
                    tell(inside, error)
                    continue
                yield Entry(inside, status)
    finally:
        os.close(descriptor)


def _components(path: str) -> list[str]:
    parts = path.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise Unusable(errno.EINVAL, "it is not a plain path below its directory", path)
    return parts


@contextlib.contextmanager
def _parent(root: int, parents: Sequence[str]) -> Iterator[int]:
    if not parents:
        yield root
        return
    descriptor = _open_below(root, parents)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open_below(root: int, parts: Sequence[str]) -> int:
    descriptor = open_directory(parts[0], root)
    for name in parts[1:]:
        try:
            deeper = open_directory(name, descriptor)
        finally:
            os.close(descriptor)
        descriptor = deeper
    return descriptor


def _explained(error: OSError, name: str, dir_fd: int | None) -> OSError:
    """Explain what the kernel refused because of the kind of file: ELOOP is a link, ENXIO a socket or a pipe without a reader."""
    if error.errno not in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR):
        return error
    try:
        kind = kind_of(os.stat(name, dir_fd=dir_fd, follow_symlinks=False))
    except OSError:
        kind = None
    return Unusable(errno.EINVAL, f"it is {kind or 'no such thing'}", name)


# Whether a directory of ours is one that nobody else can exchange or write to: it may lie below /tmp, where everybody makes names.
#
# What is trusted: the user, root, and whoever made the directories that lead there, as far as not everybody can make names in them. So
# every component of the path is looked at. Below a directory that everybody can write to, which must have the sticky bit, the next one, or
# the link in its place, must be the user's or root's. The directory itself must be the user's (or root's, with the sticky bit) and closed
# to others; one that is open to a group by the set-group-ID bit is accepted from another user where the caller says that the group is
# trusted.


MAX_LINKS: Final = 40
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class TrustedDirectory(NamedTuple):
    """A directory at the end of its path, all links resolved."""

    path: Path
    status: os.stat_result


class Distrusted(OSError):
    """Somebody else may change what lies in the directory; `strerror` says why, and what to do."""


def trusted_directory(path: Path, *, group: bool = False) -> Path:
    """Make the directory `path` with mode 0700 where it is missing, and return it with all links resolved. The directories above are
    checked first, so that nothing is made where another user has planted a link. `group`: see why_distrusted. Raises Distrusted,
    OSError."""
    if not os.path.lexists(path):
        problem = why_distrusted(path)
        if problem is not None:
            raise Distrusted(errno.EPERM, problem)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    place, problem = _walked(path, group)
    problem = problem or _of_root(place, group)
    if problem is not None:
        raise Distrusted(errno.EPERM, problem)
    return place.path


def why_distrusted(path: Path, *, group: bool = False) -> str | None:
    """Return why the directory `path` cannot be trusted, with its owner, its mode and what to do, or None. `group`: members of a group
    that we are in may own it, where it is open to that group. Of a directory that is not made yet, the nearest one above it that exists
    is checked. Raises OSError."""
    if not os.path.lexists(path):
        there = path.absolute()
        while not os.path.lexists(there):
            there = there.parent
        return why_way_distrusted(there)
    place, problem = _walked(path, group)
    return problem or _of_root(place, group)


def why_way_distrusted(path: Path) -> str | None:
    """Return why the directories above one that we are about to make cannot be trusted, or None."""
    place, problem = _walked(path, group=False)
    if problem is None and place.status.st_mode & stat.S_IWOTH and not place.status.st_mode & stat.S_ISVTX:
        problem = f"{described(place.path, place.status)} can be written by everybody and has no sticky bit (chmod +t)"
    return problem


def is_group_open(status: os.stat_result) -> bool:
    """Return True if a group of ours works in it too, by mode: set-group-ID and group-writable, closed to all others."""
    mode = status.st_mode
    ours = status.st_gid in {os.getegid(), *os.getgroups()}
    return bool(mode & stat.S_ISGID and mode & stat.S_IWGRP) and not mode & stat.S_IWOTH and ours


def described(path: Path | str, status: os.stat_result) -> str:
    """Describe the path for messages, with its owner and its mode."""
    return f"{path} (of uid {status.st_uid}, gid {status.st_gid}, mode {stat.S_IMODE(status.st_mode):04o})"


def _walked(path: Path, group: bool) -> tuple[TrustedDirectory, str | None]:
    """Return the end of the path, and what is wrong with the first component that cannot be trusted."""
    parts = list(reversed(path.absolute().parts[1:]))
    here = TrustedDirectory(Path("/"), Path("/").stat())
    links = 0
    while parts:
        part = parts.pop()
        next_path = here.path.parent if part == ".." else here.path / part
        status = os.lstat(next_path)
        problem = None if part == ".." else _of_step(here, next_path, status, group and not parts)
        if problem is not None:
            return here, problem
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MAX_LINKS:
                return here, f"{next_path} is one of more than {MAX_LINKS} links, one behind the other"
            target = next_path.readlink()
            parts += reversed([word for word in target.parts if word != "/"])
            here = TrustedDirectory(Path("/"), Path("/").stat()) if target.is_absolute() else here
        else:
            here = TrustedDirectory(next_path, status)
    return here, None


def _of_step(here: TrustedDirectory, path: Path, status: os.stat_result, group: bool) -> str | None:
    if not here.status.st_mode & stat.S_IWOTH:
        return None
    if not here.status.st_mode & stat.S_ISVTX:
        what = "can be written by everybody and has no sticky bit (chmod +t)"
        return f"{described(here.path, here.status)} {what}, so that everybody can exchange {path}"
    if status.st_uid in (0, os.geteuid()) or (group and is_group_open(status)):
        return None
    return f"{described(path, status)} is somebody else's, made where everybody can make names"


def _of_root(place: TrustedDirectory, group: bool) -> str | None:
    status, who = place.status, described(place.path, place.status)
    if not stat.S_ISDIR(status.st_mode):
        return f"{who} is not a directory"
    ours = status.st_uid == os.geteuid()
    if is_group_open(status):
        return None if ours or status.st_uid == 0 or group else f"{who} is somebody else's, and the site file does not say `shared: group`"
    if not ours and status.st_uid != 0:
        return f"{who} is somebody else's"
    if status.st_mode & _OTHERS and not status.st_mode & stat.S_ISVTX:
        return f"{who} can be written by others: chmod go-w {place.path}"
    return None
