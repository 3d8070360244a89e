"""Submit, list and cancel jobs of Slurm."""

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from base.sanitize import ascii_int
from cluster.schedulers.jobs import JOB_ID_PLACEHOLDER, BatchJob, QueuedJob, one_line, script_lines, work_words
from cluster.schedulers.queries import ask, submit_script
from cluster.schedulers.slurm import answers
from cluster.schedulers.slurm.answers import SLURM

# Directives of the site file.


SHORTEST: Final = "--com"
"""The shortest form of the option that we search for, because sbatch accepts abbreviated option names."""


def split_comment(directives: Iterable[str]) -> tuple[str, tuple[str, ...]]:
    """Return the comment that directives set, and the directives without it.

    Some sites read the comment to let docker into a job. sbatch keeps only the last of several comments, and the jobs of a study are found
    by ours. sbatch splits a line as a shell does.
    """
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


# The batch script.


def sbatch_options(job: BatchJob) -> tuple[str, ...]:
    """Return the options of sbatch, one per line of the script, with the site's directives last.

    The directives stay as they are, except for their comment: our comment follows it, or precedes one that is too long. Raises ConfigError.
    """
    size = job.size
    comment, directives = split_comment(size.directives)
    if job.work is not None:
        words = [comment, work_words(job.work)]
        comment = " ".join(words if len(" ".join(words).encode()) <= answers.COMMENT_WIDTH else reversed(words)).strip()
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
        ("output", job.output.replace("%", "%%").replace(JOB_ID_PLACEHOLDER, "%j")),
        ("open-mode", "append"),
        ("comment", comment or None),
        ("export", "ALL"),
    ]
    flags = (["--exclusive"] if size.whole_nodes else []) + ["--requeue"]
    said = [f"--{name}={shlex.quote(one_line(name, str(value)))}" for name, value in options if value is not None]
    return (*said, *flags, *(one_line("directives", line) for line in directives))


def batch_script(job: BatchJob) -> str:
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in sbatch_options(job)), "", *script_lines(job)]
    return "\n".join(lines) + "\n"


def clock(minutes: int) -> str:
    """Format minutes as `1-02:03:00`."""
    days, rest = divmod(minutes, 1440)
    return f"{f'{days}-' if days else ''}{rest // 60:02d}:{rest % 60:02d}:00"


# Our jobs in Slurm's queue. A job for one run or shard has its work in its comment (`work_words`), a job of `slipway submit` in its name.


def our_jobs(patience_s: float, timeout_s: float) -> tuple[QueuedJob, ...]:
    return answers.parse_queue(ask(SLURM, (*answers.QUESTION, f"--user={os.getuid()}"), patience_s, timeout_s))


def jobs_named(name: str, patience_s: float) -> tuple[QueuedJob, ...]:
    jobs = answers.query_jobs((f"--user={os.getuid()}", f"--name={name}"), patience_s)
    return tuple(job for job in jobs if job.name == name)


def known_jobs(job_ids: Sequence[str], patience_s: float) -> tuple[QueuedJob, ...]:
    return answers.query_jobs((f"--jobs={','.join(job_ids)}",), patience_s)


# The submission.


SERVER = SLURM
script, options = batch_script, sbatch_options


def submit(job: BatchJob, patience_s: float) -> str:
    return submit_script(SLURM, job.name, batch_script(job), jobs_named, patience_s)


def cancel(job_ids: Sequence[str], patience_s: float) -> None:
    ask(SLURM, ("scancel", *job_ids), patience_s, answers.SHORT_ANSWER_S)


def num_nodes_of_job(environ: Mapping[str, str]) -> int | None:
    """Read the number of nodes from the job's own variable, which steps do not change."""
    return ascii_int(environ.get("SLURM_JOB_NUM_NODES", ""))


def end_of_job(environ: Mapping[str, str], patience_s: float) -> float | None:
    """Query the controller for the job's end: the variable for it exists only since 23.02. Raises SchedulerOutputError."""
    job_id = environ.get(answers.JOB_ID)
    info = answers.job_info(job_id, patience_s) if job_id else None
    return None if info is None else info.end
