"""What the environment of a process says of the PBS job that it is in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from base.errors import AllocationError

JOB_ID: Final = "PBS_JOBID"
NODE_FILE: Final = "PBS_NODEFILE"
COOKIE: Final = "PBS_JOBCOOKIE"


def start_word(environ: Mapping[str, str]) -> str | None:
    """Pure: the number of the job, and a word for this start of it. PBS does not number the starts in the environment, but gives each a
    cookie of its own, of which a digest tells nothing."""
    job_id = environ.get(JOB_ID)
    if not job_id:
        return None
    digest = hashlib.sha256(f"{job_id} {environ.get(COOKIE, '')}".encode(errors="replace")).hexdigest()[:12]
    return f"{job_id.partition('.')[0].partition('[')[0]}-{digest}"


def node_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The job's nodes, in order: the file has a line per chunk or MPI rank. Only the first node has it. Raises AllocationError."""
    path = environ.get(NODE_FILE, "")
    try:
        lines = Path(path).read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise AllocationError(
            f"job {environ.get(JOB_ID)}: {NODE_FILE}={path!r}, which names its nodes, cannot be read here "
            f"({getattr(error, 'strerror', None) or error}): only the first node of a job has it"
        ) from error
    names = tuple(dict.fromkeys(lines))
    if not names:
        raise AllocationError(f"job {environ.get(JOB_ID)}: {path} names no node")
    return names
