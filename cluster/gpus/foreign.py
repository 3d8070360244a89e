"""Who else uses the GPUs that we were granted: processes as nvidia-smi lists them, and what is said of them.

It lists compute programs only, not a display's. A process of another PID namespace does not show, and those on MIG instances stand under
the UUID of their GPU: nothing is said of either.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from base.command import describe, run
from base.errors import SlipwayError
from base.foreign import digits, printable, text
from cluster import processes
from cluster.limits import GPU_USE_S
from cluster.types import ForeignUse

logger = logging.getLogger(__name__)

QUERY: Final = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory,process_name", "--format=csv,noheader")


class App(NamedTuple):
    """One process on one GPU. `used_mib`: None where the driver does not say; `owner`: of `processes.owner_of`."""

    gpu: str
    pid: int
    used_mib: int | None
    name: str
    owner: str | None = None


def parse_apps(answer: str) -> tuple[App, ...]:
    """The output of `QUERY`; lines in brackets, by which old cards say that they do not know, are none. Raises ValueError."""
    found = []
    for line in answer.splitlines():
        words = [word.strip() for word in line.split(",", 3)]
        if not line.strip() or line.strip().startswith(("[", "No running", "No devices")):
            continue
        pid = digits(words[1]) if len(words) == 4 else None
        if pid is None or not words[0].startswith(("GPU-", "MIG-")):
            raise ValueError(f"nvidia-smi answered {line[:200]!r}, expected `GPU-uuid, pid, memory, name`")
        amount = digits(words[2].split()[0]) if words[2] else None
        found.append(App(printable(words[0]), pid, amount, text(words[3], 200)))
    return tuple(found)


def foreign_use(uuids: Sequence[str], apps: Iterable[App], own_pids: Collection[int]) -> tuple[ForeignUse, ...]:
    """Pure: of the processes, those that are not ours and on a GPU of ours, in the order of the GPUs."""
    others = [app for app in apps if app.pid not in own_pids]
    return tuple(ForeignUse(uuid, _said(app)) for uuid in uuids for app in others if app.gpu == uuid)


def look(uuids: Sequence[str]) -> tuple[ForeignUse, ...]:
    """Ask. That it cannot be known is said under no GPU: it harms nobody."""
    if not uuids:
        return ()
    try:
        return foreign_use(uuids, query_apps(), {os.getpid(), *processes.descendants(os.getpid())})
    except (SlipwayError, ValueError) as error:
        logger.debug("nvidia-smi does not list the processes on GPUs", exc_info=True)
        return (ForeignUse("", f"whether other processes use the GPUs is not known: {error}"),)


def query_apps() -> tuple[App, ...]:
    """The compute processes on the GPUs that show here. Raises SlipwayError, ValueError."""
    result = run(QUERY, timeout_s=GPU_USE_S)
    if result.returncode:
        raise SlipwayError(describe(result))
    return tuple(app._replace(owner=processes.owner_of(app.pid)) for app in parse_apps(result.stdout))


def _said(app: App) -> str:
    memory = f", which holds {app.used_mib} MiB" if app.used_mib is not None else ""
    return f"{app.gpu} is used by process {app.pid} ({app.name}) of {app.owner or 'another user'}{memory}"
