"""What a site's directives may not say to sbatch, and the comment that they may. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
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
    "environment": r"--export(=|\s|$)",
    "working directory": r"--(chdir|workdir)\b|-D\b",
    "cluster": r"--clusters?\b|-M\b",
    "array": r"--array\b|-a\b",
}
"""Options of sbatch that are set from the study, from another key of the site file, or by us."""
COMMENT: Final = re.compile(r"""(?:^|\s)--comment(?:=|\s+)(?:"([^"]*)"|'([^']*)'|(\S+))""")


def owned_by_us(directive: str) -> str | None:
    """What of OWNED a directive sets; None if nothing."""
    return next((what for what, pattern in OWNED.items() if re.search(rf"(^|\s)({pattern})", directive)), None)


def split_comment(directives: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Return the comment that directives set, which some sites read to let docker into a job, and the directives without it. Of several
    comments sbatch keeps the last one only, and the jobs of a study are found by ours."""
    comments, rest = [], []
    for line in directives:
        comments += [double or single or plain for double, single, plain in COMMENT.findall(line)]
        rest.append(COMMENT.sub("", line).strip())
    return " ".join(comments), tuple(line for line in rest if line)
