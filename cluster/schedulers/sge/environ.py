"""What Grid Engine and our batch script tell a job by its environment and by the file of its hosts."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from base.foreign import digits

JOB_ID: Final = "JOB_ID"
HOST_FILE: Final = "PE_HOSTFILE"
STARTED: Final = "SLIPWAY_JOB_STARTED"
"""When the batch script of this start of the job began, in unix seconds; exported by the script."""
SECONDS: Final = "SLIPWAY_JOB_SECONDS"
"""Its `h_rt`; exported by the script, since Grid Engine has no variable for it."""
BEGUN: Final = "SLIPWAY_JOB_BEGUN"
"""In the environment of what the batch script has started, and not in its own: of which job."""
OF_ONE_PROCESS: Final = frozenset(
    {
        *("PE_HOSTFILE", "JOB_SCRIPT", "HOSTNAME", "TMPDIR", "TMP", "NHOSTS", "NSLOTS", "NQUEUES", "QUEUE", "REQUEST", "REQNAME"),
        *("SGE_JOB_SPOOL_DIR", "SGE_STDOUT_PATH", "SGE_STDERR_PATH", "SGE_STDIN_PATH", "JOB_NAME", "PWD", "OLDPWD", "_"),
    }
)
"""What holds of one process or one node; on another one Grid Engine sets its own."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def parse_hosts(text: str) -> dict[str, int]:
    """Pure: slots by host, of a PE_HOSTFILE, in its order. A host has a line for each of its queues."""
    found: dict[str, int] = {}
    for words in map(str.split, text.splitlines()):
        slots = digits(words[1]) if len(words) > 1 else None
        if slots is not None:
            found[words[0]] = found.get(words[0], 0) + slots
    return found


def hosts_of_job(environ: Mapping[str, str]) -> dict[str, int]:
    """Slots by host of the job that `environ` is of; a job without a parallel environment has this host only. Empty outside of jobs."""
    with contextlib.suppress(OSError):
        if environ.get(HOST_FILE):
            return parse_hosts(Path(environ[HOST_FILE]).read_text())
    return {os.uname().nodename: 1} if environ.get(JOB_ID) else {}


def restart_count(environ: Mapping[str, str]) -> int:
    """Pure: which start of the job this is. Grid Engine says only whether it is the first: later ones are told apart by their time."""
    if environ.get("RESTARTED", "0") in ("", "0"):
        return 0
    return digits(environ.get(STARTED, "")) or 1


def end_of_job(environ: Mapping[str, str]) -> float | None:
    """Pure: when the job must have ended, in unix time, by what our script has exported."""
    started, seconds = digits(environ.get(STARTED, "")), digits(environ.get(SECONDS, ""))
    return None if started is None or seconds is None else float(started + seconds)


def passed_on(environ: Mapping[str, str]) -> dict[str, str]:
    """Pure: the environment of a program on another node, which `qrsh -V` takes along: without what holds here only, and without what
    Grid Engine cannot write down. QRSH_COMMAND has bytes that are no text."""
    return {
        name: value
        for name, value in environ.items()
        if name not in OF_ONE_PROCESS and not name.startswith("QRSH_") and _NAME.fullmatch(name) and not set(value) & set("\n\r")
    }
