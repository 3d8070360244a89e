"""Read what the operating system tells: names of users, small files in /proc and /sys, errors of a full disk and of storage.

A machine may have no account for our number: in a container that is started by `--user`, or while a directory service is down. What then
asks for the name of the user, as Snakemake and PyTorch do, ends with a KeyError, unless the environment tells it.
"""

import errno
import getpass
import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from base import errors, sanitize

_NAME_VARIABLES: Final = ("LOGNAME", "USER", "LNAME", "USERNAME")
"""The variables in which Python looks for the name, in this order."""


def user_name(uid: int) -> str:
    """Return the name of a user as people know it, or `user 1005` where this machine knows none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def account_name() -> str:
    """Return our name as this machine's schedulers know it: by our number, since `sudo -E` leaves the LOGNAME of another user."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return getpass.getuser()


def account_environ(environ: Mapping[str, str]) -> dict[str, str]:
    """Return what the environment lacks where neither it nor this machine has a name for us: the name in messages and labels."""
    if _has_account() or any(environ.get(name) for name in _NAME_VARIABLES):
        return {}
    return dict.fromkeys(("USER", "LOGNAME"), f"user{os.geteuid()}")


def refuse_without_home(environ: Mapping[str, str]) -> None:
    """Raise ConfigError where we have no account and HOME is no writable directory, since Snakemake fails there."""
    uid, home = os.geteuid(), environ.get("HOME")
    if _has_account() or (home and os.access(home, os.W_OK)):
        return
    found = f"HOME is {home!r}, where user {uid} cannot write" if home else "HOME is not set"
    raise errors.ConfigError(
        f"{found}, and this machine has no account of user {uid} that would tell another; set it to a directory of yours, such as "
        f"HOME=/tmp/user{uid}. Where the machine should know you, its directory service may be down: `getent passwd {uid}`"
    )


def _has_account() -> bool:
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return True


# Which directory keeps us from a path: its own name says nothing of one above it that is another user's.


def inaccessible_parent(path: str) -> str | None:
    """Return the uppermost directory above `path` that we may not enter, with its owner and mode; None where there is none or it cannot be
    determined."""
    for place in reversed(Path(os.path.abspath(path)).parents):
        try:
            status = place.stat()
        except OSError:
            return None
        if not os.access(place, os.X_OK):
            return f"{place} belongs to {user_name(status.st_uid)} and has mode {status.st_mode & 0o7777:04o}"
    return None


# The small files that tell of this machine, in /proc, /sys and /etc: not there on every machine, and not all ours to read.


MAX_MACHINE_TEXT: Final = 1 << 17


def machine_text(path: str | Path) -> str:
    """Read the beginning of a file such as one in /proc, stripped; empty where it is missing or unreadable. By a descriptor, since a look
    at a machine reads thousands of files, and a file object takes twice the time."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, MAX_MACHINE_TEXT).decode(errors="replace").strip()
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def machine_number(path: str | Path) -> int | None:
    """Read the one number in such a file; None where there is none."""
    return sanitize.ascii_int(machine_text(path))


def status_field(pid: int | str, name: str) -> str | None:
    """Return the value of a field of /proc/PID/status, or None where it is not there."""
    lines = machine_text(f"/proc/{pid}/status").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(f"{name}:")), None)


def umask() -> int:
    """Return the umask of this process without changing it, as os.umask() would for all threads; 077 where the kernel does not show it."""
    return int(status_field("self", "Umask") or "077", 8)


# What the operating system answers where a disk is full or network storage fails, and the time by a file system's own clock.


DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
"""No room, or no quota."""
FULL_WORDS: Final = tuple(os.strerror(number) for number in DISK_FULL)
"""The messages of the errors in DISK_FULL."""
STORAGE_FAILS: Final = (errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENODEV)
"""Errors of storage that may pass. They do not show whether a file exists, so the caller tries again."""


def now_at(directory: Path) -> float:
    """Return the time of last change that a file made in `directory` gets now: its servers have their own clock, and only that one can be
    compared with the times of its files. Raises OSError."""
    import tempfile  # few ask, and it imports much

    with tempfile.TemporaryFile(dir=directory) as fresh:
        return os.fstat(fresh.fileno()).st_mtime
