"""What a site's directives may not say to sbatch. Pure."""

from __future__ import annotations

import re
from typing import Final

OWNED: Final = {
    "nodes": r"--nodes\b|-N\b",
    "tasks": r"--ntasks(-per-gpu)?(=|\s|$)|-n\b",
    "cores": r"--cpus-per-(task|gpu)\b|-c\b",
    "walltime": r"--time(=|\s|$)|-t\b",
    "memory": r"--mem(-per-cpu)?(=|\s|$)",
    "GPUs": r"--gres\b|--gpus(=|\s|$)|-G\b",
    "queue": r"--partition\b|-p\b",
    "account": r"--account\b|-A\b",
    "qos": r"--qos\b|-q\b",
    "constraint": r"--constraint\b|-C\b",
    "name": r"--job-name\b|-J\b",
    "output": r"--(output|error|open-mode|parsable|wrap)\b|-[oe]\b",
    "environment": r"--export(=|\s|$)|--comment\b|--(chdir|workdir)\b|-D\b",
    "cluster": r"--clusters?\b|-M\b",
    "array": r"--array\b|-a\b",
}
"""Options of sbatch that are set from the study, from another key of the site file, or by us."""


def owned_by_us(directive: str) -> str | None:
    """What of OWNED a directive sets; None if nothing."""
    return next((what for what, pattern in OWNED.items() if re.search(rf"(^|\s)({pattern})", directive)), None)
