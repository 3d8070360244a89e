"""Find the processes of this machine in /proc: who lives, who descends from whom; end whole trees of them.

A pid alone names nobody, because it is used again: a process is known by pid and start time, within one boot and one pid namespace.
"""

import hashlib
import os
import re
import signal
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from base.process import is_readable
from base.system import machine_text, user_name
from cluster.limits import CONTAINER_REMAINS_S

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MAX_STAT = 4096


class ProcessState(NamedTuple):
    """One line of /proc/PID/stat: `state` is the letter (R, S, D, T, Z ...), `start` in clock ticks since boot, `cpu` in ticks used;
    `waited` those of its children that it has waited for; `faults`: pages that were read from a disk for it and these children."""

    pid: int
    state: str
    parent: int
    start: int
    cpu: int
    waited: int = 0
    faults: int = 0


def parse_stat(text: str) -> ProcessState:
    """Parse a line of /proc/PID/stat; the command in it may hold spaces and brackets. Raises ValueError."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    try:
        faults, faults_waited, user, system, user_waited, system_waited = map(int, fields[9:15])
        pid, waited = int(head.split(" ", 1)[0]), user_waited + system_waited
        return ProcessState(pid, fields[0], int(fields[1]), int(fields[19]), user + system, waited, faults + faults_waited)
    except (IndexError, ValueError) as error:
        raise ValueError(f"{text[:80]!r} is not a line of /proc/PID/stat") from error


def state_of(pid: int) -> ProcessState | None:
    """Return the state of `pid`, or None if there is no such process, or it is another user's and hidden (/proc mounted with hidepid)."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return parse_stat(os.read(descriptor, MAX_STAT).decode(errors="replace"))  # half the time of a file object: a look reads all
        finally:
            os.close(descriptor)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def is_alive(pid: int, start: int | None) -> bool:
    """Return True if the process of that pid and start time (None: of any) still runs; a zombie does not."""
    state = state_of(pid)
    return _is_hidden(pid) if state is None else start in (None, state.start) and state.state not in "ZX"


def _is_hidden(pid: int) -> bool:
    """Return True if another user's process of that number is hidden from us: it is taken for the one that is meant."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return False  # it came between the two looks, and is ours: not the one that is meant


def owner_of(pid: int) -> str | None:
    """Name the user whose process that is, or `user 1005`; None once it is gone, or where /proc hides it."""
    try:
        return user_name(Path(f"/proc/{pid}").stat().st_uid)
    except OSError:
        return None


def boot_id() -> str:
    """Return what changes with every boot of this machine, and is the same in its containers."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def machine(path: Path = Path("/etc/machine-id")) -> str | None:
    """Return a hash of this machine's id, which outlives its boots and is shown to nobody; None where there is none, as in many
    containers."""
    found = machine_text(path)
    return hashlib.sha256(f"slipway {found}".encode()).hexdigest()[:32] if re.fullmatch(r"[0-9a-f]{32}", found) else None


def pid_namespace() -> str:
    """Return the pid namespace we see, such as `pid:[4026531836]`."""
    return str(Path("/proc/self/ns/pid").readlink())


def age_s(pid: int) -> float:
    """Return the seconds since the process `pid` was started, on the clock that counts suspension too (as `start` does)."""
    state = state_of(pid)
    return 0.0 if state is None else time.clock_gettime(time.CLOCK_BOOTTIME) - state.start / TICKS_PER_S


def all_pids() -> list[int]:
    """List the processes of this machine that we can see."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def session_of(leader: int) -> list[int]:
    """List the processes that are left of the session that a child of ours has begun, `leader`; none where that number is a newer
    process's."""
    found = []
    for pid in all_pids():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return [] if leader in found else found


def all_processes() -> list[ProcessState]:
    """Return the state of every process of this machine that we can see."""
    found = map(state_of, all_pids())
    return [state for state in found if state is not None]


def descendants(root: int, processes: Iterable[ProcessState] | None = None) -> list[int]:
    """List the pids below `root`, parents before children, zombies included, `root` not."""
    children: dict[int, list[int]] = {}
    for process in all_processes() if processes is None else processes:
        children.setdefault(process.parent, []).append(process.pid)
    found: list[int] = []
    level = children.get(root, [])
    while level:
        found += level
        level = [child for pid in level for child in children.get(pid, [])]
    return found


def send(pids: Iterable[int], number: int) -> None:
    """Send a signal to each that is still there."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap(pids: Iterable[int]) -> None:
    """Take the exit status of those that are our ended children, without waiting."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


STUCK: Final = (
    "processes of this run did not end: storage or a driver holds them in uninterruptible sleep (`ps -eo pid,stat,args`, state D); "
    "they end when it answers"
)


def kill_descendants(limit_s: float, spare: Collection[int] = ()) -> bool:
    """Kill all that descends from this process, but for `spare`, until nothing is left. Return False if something is after `limit_s`, as
    STUCK says. Those that take a container away now get a little longer, and are then killed too."""
    began = time.monotonic()
    while True:
        left = [pid for pid in descendants(os.getpid()) if pid not in spare]
        if not left:
            return True
        patient = time.monotonic() < began + CONTAINER_REMAINS_S
        doomed = [pid for pid in left if not (patient and _is_tidying(pid))]
        send(doomed, signal.SIGKILL)
        reap(left)
        deadline = began + (limit_s if doomed else max(limit_s, CONTAINER_REMAINS_S))
        if time.monotonic() > deadline:
            return False
        # not longer: it may have left children that are ours now
        wait_for_ends((doomed or left)[-1:], min(0.2, deadline - time.monotonic()))


def _is_tidying(pid: int) -> bool:
    """Return True for conmon, which ends when its container has, and the podman that it starts to remove the remains."""
    name = machine_text(f"/proc/{pid}/comm")
    state = state_of(pid) if name == "podman" else None
    return name == "conmon" or (state is not None and machine_text(f"/proc/{state.parent}/comm") == "conmon")


def tagged(variable: str, wanted: Callable[[str], bool]) -> list[int]:
    """List the pids of our own processes, without ourselves, whose environment holds `variable` with a value that is wanted."""
    prefix = f"{variable}=".encode()
    found = []
    for pid in all_pids():
        with suppress(FileNotFoundError, ProcessLookupError, PermissionError), open(f"/proc/{pid}/environ", "rb") as file:
            values = [entry[len(prefix) :] for entry in file.read().split(b"\0") if entry.startswith(prefix)]
            if pid != os.getpid() and any(wanted(value.decode(errors="replace")) for value in values):
                found.append(pid)
    return found


def of_this_node(pid: int) -> bool:
    """Return True if a process belongs to the node that we are: several nodes of a cluster can be on one machine, each with its own host
    name."""
    try:
        return Path(f"/proc/{pid}/ns/uts").readlink() == Path("/proc/self/ns/uts").readlink()
    except OSError:
        return False


def wait_for_ends(pids: Iterable[int], limit_s: float) -> bool:
    """Wait until all of these have ended, at most `limit_s`. Return True if they have."""
    deadline = time.monotonic() + limit_s
    for pid in pids:
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(pid)
            try:
                if not is_readable(descriptor, max(0.0, deadline - time.monotonic())):
                    return False
            finally:
                os.close(descriptor)
    return True
