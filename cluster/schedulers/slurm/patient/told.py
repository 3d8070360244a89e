"""Why a job was not submitted, said where its run is looked for: in the log that the job would have written."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from cluster.schedulers.jobs import RUN, SHARD
from cluster.schedulers.slurm.patient import BUILDS, RUN_LOGS
from cluster.schedulers.slurm.queue import rule_and_wildcards


def log_of(comment: str, environ: Mapping[str, str]) -> Path | None:
    """Pure: the log of a run or of a shard; None for other jobs."""
    rule, wildcards = rule_and_wildcards(comment) or ("", "")
    if rule == RUN and environ.get(RUN_LOGS):
        return Path(environ[RUN_LOGS], f"{wildcards}.log")
    if rule == SHARD and environ.get(BUILDS):
        dataset, _, shard = wildcards.rpartition("_")
        return Path(environ[BUILDS], dataset, "logs", f"shard-{shard}.log")
    return None


def tell_log(comment: str, words: str, environ: Mapping[str, str]) -> None:
    """The first line of it, as a line of our logs. A log that cannot be written ends nothing: Snakemake says it in its own."""
    path = log_of(comment, environ)
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            file.write(f"{time.strftime('%H:%M:%S')} slurm ERROR {words.splitlines()[0]}\n")
