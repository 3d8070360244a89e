"""What a site's directives may not say to sbatch, and the comment that they may. Pure."""

from __future__ import annotations

import re
import shlex
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
COMMENT_WIDTH: Final = 400
"""How many characters of a comment squeue is asked for: our words must be among them."""
SHORTEST: Final = "--com"
"""sbatch takes the beginning of an option's name for the whole."""


def owned_by_us(directive: str) -> str | None:
    """What of OWNED a directive sets; None if nothing."""
    return next((what for what, pattern in OWNED.items() if re.search(rf"(^|\s)({pattern})", directive)), None)


def split_comment(directives: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Return the comment that directives set, which some sites read to let docker into a job, and the directives without it. Of several
    comments sbatch keeps the last one only, and the jobs of a study are found by ours. sbatch splits a line as a shell does."""
    comments, rest = [], []
    for line in directives:
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # sbatch refuses a quote without an end
            words = []
        options, kept = iter(words), []
        for word in options:
            name, has_value, value = word.partition("=")
            if len(name) >= len(SHORTEST) and "--comment".startswith(name):
                comments.append(value if has_value else next(options, ""))
            else:
                kept.append(word)
        rest.append(line if len(kept) == len(words) else shlex.join(kept))
    return " ".join(filter(None, comments)), tuple(line for line in rest if line)
