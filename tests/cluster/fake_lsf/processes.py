"""The processes of a job: those that have its variables, and all that these have started."""

import contextlib
import os
import signal
from pathlib import Path


def of_cluster(place: Path, job: str | None = None) -> list[int]:
    """Of all jobs whose commands find that cluster, or of one; zombies excepted."""
    signs = [f"LSF_ENVDIR={place}\0".encode(), b"LSB_JOBID=" if job is None else f"LSB_JOBID={job}".encode() + b"\0"]
    found, parents = set(), {}
    for entry in os.listdir("/proc"):
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            parents[int(entry)] = parent_of(int(entry))
            environ = Path("/proc", entry, "environ").read_bytes() + b"\0"
            if all(sign in environ for sign in signs):
                found.add(int(entry))
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    return sorted(pid for pid in found if parents.get(pid, 0))


def parent_of(pid: int) -> int:
    """0 of a zombie."""
    state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    return 0 if state == "Z" else int(parent)


def send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
