"""The batch script of a job, for one run or for a whole study. Pure: `slipway submit --print` shows it as it would be sent."""

from __future__ import annotations

import shlex

from base.errors import ConfigError
from cluster.schedulers.jobs import JOB_ID, BatchJob, script_lines, work_words
from cluster.schedulers.slurm.directives import COMMENT_WIDTH, split_comment


def sbatch_options(job: BatchJob) -> tuple[str, ...]:
    """The options of sbatch, one per line of the script, the site's directives last and as they are, but for their comment: ours follows
    it, or precedes one that is too long. Raises ConfigError."""
    size = job.size
    comment, directives = split_comment(size.directives)
    if job.work is not None:
        words = [comment, work_words(job.work)]
        comment = " ".join(words if len(" ".join(words)) <= COMMENT_WIDTH else reversed(words)).strip()
    options = [
        ("job-name", job.name),
        ("nodes", size.nodes),
        ("ntasks-per-node", 1),
        ("cpus-per-task", size.cores),
        ("mem", f"{size.memory_mb}M" if size.memory_mb else size.memory_mb),
        ("gres", None if size.gpus is None else f"gpu:{size.gpus}"),
        ("time", clock(size.minutes)),
        ("partition", size.queue),
        ("account", size.account),
        ("qos", size.qos),
        ("constraint", size.constraint),
        ("exclude", ",".join(size.exclude) or None),
        ("output", job.output.replace("%", "%%").replace(JOB_ID, "%j")),
        ("open-mode", "append"),
        ("comment", comment or None),
        ("export", "ALL" if job.export is None else ",".join(job.export)),
    ]
    flags = (["--exclusive"] if size.whole_nodes else []) + ["--requeue"]
    said = [f"--{name}={shlex.quote(_one_line(name, str(value)))}" for name, value in options if value is not None]
    return (*said, *flags, *(_one_line("directives", line) for line in directives))


def batch_script(job: BatchJob) -> str:
    """The script."""
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in sbatch_options(job)), "", *script_lines(job)]
    return "\n".join(lines) + "\n"


def clock(minutes: int) -> str:
    """`1-02:03:00`."""
    days, rest = divmod(minutes, 1440)
    return f"{f'{days}-' if days else ''}{rest // 60:02d}:{rest % 60:02d}:00"


def _one_line(what: str, value: str) -> str:
    if set(value) & set("\n\r\0"):
        raise ConfigError(f"{what}: {value!r} holds the end of a line, which would begin another line of the batch script")
    return value
