"""What LSF and our batch script tell a job by its environment."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from base.foreign import digits

JOB_ID: Final = "LSB_JOBID"
STARTED: Final = "SLIPWAY_JOB_STARTED"
"""When the batch script of this start of the job began, in unix seconds; exported by the script."""
SECONDS: Final = "SLIPWAY_JOB_SECONDS"
"""Its run limit; exported by the script, since LSF has no variable for it."""
STARTS: Final = "SLIPWAY_JOB_STARTS"
"""How often the job was started before, as the script counts it in its log: LSF has no variable for that either."""
NODE: Final = "SLIPWAY_LSF_NODE"
"""LSF's name of the node that a program was started on; set by our launches."""
POLL: Final = "LSB_BLAUNCH_SLEEPTIME"
"""OpenLava's blaunch looks for the end of its programs so often, in seconds; LSF's own does not need it."""
OF_ONE_PROCESS: Final = frozenset({"HOSTNAME", "TMPDIR", "TMP", "LS_JOBPID", "LS_EXEC_T", "PWD", "OLDPWD", "_"})
"""What holds of one process or one node; on another one LSF sets its own."""


def hosts_of_job(environ: Mapping[str, str]) -> dict[str, int]:
    """Slots by host, in LSF's order, of the job that `environ` is of; empty outside of jobs. A variable is not set where it would be too
    long; the file names a host once for each slot."""
    pairs = environ.get("LSB_MCPU_HOSTS", "").split()
    counts = [digits(word) for word in pairs[1::2]]
    if pairs and len(pairs) % 2 == 0 and all(counts):
        return _summed(zip(pairs[::2], (count or 0 for count in counts), strict=True))
    if environ.get("LSB_DJOB_HOSTFILE"):
        with contextlib.suppress(OSError):
            return _summed((host, 1) for host in Path(environ["LSB_DJOB_HOSTFILE"]).read_text().split())
    return _summed((host, 1) for host in environ.get("LSB_HOSTS", "").split())


def _summed(pairs: Iterable[tuple[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for host, slots in pairs:
        found[host] = found.get(host, 0) + slots
    return found


def restart_count(environ: Mapping[str, str]) -> int:
    """Pure: how often the job was started before."""
    return digits(environ.get(STARTS, "")) or 0


def end_of_job(environ: Mapping[str, str]) -> float | None:
    """Pure: when the job must have ended, in unix time, by what our script has exported."""
    started, seconds = digits(environ.get(STARTED, "")), digits(environ.get(SECONDS, ""))
    return None if started is None or seconds is None else float(started + seconds)


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Pure: the environment of blaunch, which takes it along to the other node."""
    return {name: value for name, value in environ.items() if name not in OF_ONE_PROCESS} | {POLL: "1"}
