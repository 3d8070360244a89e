"""The batch script of a study: one job for all its runs. Pure: `slipway submit --print` shows it as it would be sent."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Final

from base.errors import ConfigError

NAME: Final = re.compile(r"slipway-(?P<study>.+)-[0-9a-f]{8}")


@dataclass(frozen=True, kw_only=True)
class BatchJob:
    """What is asked of Slurm, and what runs there. None: not asked for. `cores` and `memory_mb` are per node; 0 MB: all there is.
    `environ`: what the script exports beside its own name; `export`: the variables that the job inherits, None: all that sbatch has."""

    name: str
    nodes: int
    minutes: int
    environ: tuple[tuple[str, str], ...] = ()
    export: tuple[str, ...] | None = None
    output: str
    directory: str
    argv: tuple[str, ...]
    whole_nodes: bool = True
    cores: int | None = None
    memory_mb: int | None = None
    gres: str | None = None
    queue: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    directives: tuple[str, ...] = ()
    setup: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.minutes < 1:
            raise ValueError(f"nodes and minutes must be positive, found {self.nodes!r} and {self.minutes!r}")


def job_name(study: str, token: str) -> str:
    """Unique, so that a submission nobody confirmed can be looked for; `token`: 8 hex digits."""
    return f"slipway-{study}-{token}"


def is_of_study(name: str, study: str) -> bool:
    """Whether a job of that name is a submission of that study."""
    match = NAME.fullmatch(name)
    return match is not None and match["study"] == study


def sbatch_options(job: BatchJob) -> tuple[str, ...]:
    """The options of sbatch, one per line of the script, the site's directives last and as they are. Raises ConfigError."""
    options = [
        ("job-name", job.name),
        ("nodes", job.nodes),
        ("ntasks-per-node", 1),
        ("cpus-per-task", job.cores),
        ("mem", job.memory_mb if job.memory_mb is None or job.memory_mb == 0 else f"{job.memory_mb}M"),
        ("gres", job.gres),
        ("time", clock(job.minutes)),
        ("partition", job.queue),
        ("account", job.account),
        ("qos", job.qos),
        ("constraint", job.constraint),
        ("output", job.output.replace("%j", "\0").replace("%", "%%").replace("\0", "%j")),
        ("open-mode", "append"),
        ("export", "ALL" if job.export is None else ",".join(job.export)),
    ]
    flags = (["--exclusive"] if job.whole_nodes else []) + ["--requeue"]
    said = [f"--{name}={shlex.quote(_one_line(name, str(value)))}" for name, value in options if value is not None]
    return (*said, *flags, *(_one_line("directives", line) for line in job.directives))


def batch_script(job: BatchJob) -> str:
    """The script. It ends in `exec`, so that signals reach Snakemake."""
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in sbatch_options(job)),
        "",
        f"cd {shlex.quote(job.directory)} || exit",
        f"export SLIPWAY_SUBMISSION={shlex.quote(job.name)}",
        *(f"export {name}={shlex.quote(value)}" for name, value in job.environ),
        *job.setup,
        f"exec {shlex.join(job.argv)}",
    ]
    return "\n".join(lines) + "\n"


def clock(minutes: int) -> str:
    """`1-02:03:00`."""
    days, rest = divmod(minutes, 1440)
    return f"{f'{days}-' if days else ''}{rest // 60:02d}:{rest % 60:02d}:00"


def _one_line(what: str, value: str) -> str:
    if set(value) & set("\n\r\0"):
        raise ConfigError(f"{what}: {value!r} holds the end of a line, which would begin another line of the batch script")
    return value
