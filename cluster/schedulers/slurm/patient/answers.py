"""What the plugin asks and what it is told. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from cluster.schedulers.slurm.limits import KNOWN_AFTER_S

MEMORY_S: Final = 300
"""The MinJobAge that the plugin is told, at least."""


def is_status_query(argv: Sequence[str]) -> bool:
    """Whether this is the plugin's question for the states of all its jobs."""
    return "--states=all" in argv and "--format=%i|%T" in argv and option(argv, "--name") is not None


def option(argv: Sequence[str], name: str) -> str | None:
    """The value of a long option, in the next word or after `=`."""
    for index, word in enumerate(argv):
        if word == name and index + 1 < len(argv):
            return argv[index + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def with_ended(text: str, submitted: Sequence[str], now: float) -> str:
    """squeue's answer, and jobs that it no longer shows as completed: whether they did well, their records tell.

    `submitted`: lines of job id, time and what it is for.
    """
    shown = {line.partition("|")[0].strip() for line in text.splitlines()}
    lines = [line for line in text.splitlines() if line.strip()]
    for entry in submitted:
        job_id, when = [*entry.split(" ", 2), ""][:2]
        if job_id not in shown and when and now - float(when) > KNOWN_AFTER_S:
            lines.append(f"{job_id}|COMPLETED")
    return "".join(f"{line}\n" for line in lines)


def with_names(argv: Sequence[str], names: Sequence[str]) -> list[str]:
    """squeue's question for the jobs of a name, asked for jobs of other names too."""
    if not names:
        return list(argv)
    place = list(argv).index("--name") + 1
    return [*argv[:place], ",".join([argv[place], *names]), *argv[place + 1 :]]


def last_job_for(submitted: Sequence[str], work: str) -> str | None:
    """The id of the job that was submitted last for that work, as the plugin says it in the comment."""
    return next((entry.split(" ", 2)[0] for entry in reversed(submitted) if entry.split(" ", 2)[2:] == [work]), None)


def with_long_memory(config: str) -> str:
    """A short MinJobAge makes the plugin ask sacct instead of squeue; since forgotten jobs are known to us, it need not."""

    def longer(match: re.Match[str]) -> str:
        return f"{match[1]}{max(int(match[2]), MEMORY_S)} sec"

    return re.sub(r"^(MinJobAge\s*=\s*)(\d+) sec", longer, config, flags=re.MULTILINE)
