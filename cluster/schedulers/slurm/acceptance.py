"""Whether Slurm would ever run a job, asked before it is submitted: what its partition allows, and what sbatch says of it.

Many clusters take a job that no partition can hold, and let it wait for ever (EnforcePartLimits=NO): so the partition is looked at too. A
controller that is silent refuses nothing.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Final

from base.command import run
from base.errors import SchedulerOutputError, SchedulerSilent, SlipwayError
from base.names import choices
from base.units import counted, format_duration
from cluster.schedulers.asking import ask, last_words, silence_of
from cluster.schedulers.carried import carried
from cluster.schedulers.jobs import BatchJob, JobSize
from cluster.schedulers.limits import QUICK_ANSWER_S
from cluster.schedulers.slurm.batch_script import batch_script
from cluster.schedulers.slurm.partitions import SHOW, Partition, default_partition, longest_s, parse_partitions, whole_number
from cluster.schedulers.slurm.query import SLURM, slurm_environment

FOR_GOOD: Final = ("nvalid", "not permitted", "not allowed", "does not exist")
"""In what sbatch says of a job that no waiting helps: `Invalid account`, `invalid partition specified`, `User's group not permitted`. What
holds for now only, such as nodes that are down or limits that are used up, leaves a real job in the queue."""


def partition_problem(partitions: Mapping[str, Partition], queue: str | None, nodes: int, minutes: int) -> str | None:
    """Pure: why a job of so many nodes and minutes never starts there, and what to change; None if it may."""
    name = queue or default_partition(partitions)
    if not partitions or name is None:
        return None
    if name not in partitions:
        return f"queue {name!r} of the site file is no partition of this cluster; {choices(name, partitions)}"
    line = partitions[name]
    limits = [(limit, key) for key in ("TotalNodes", "MaxNodes") if (limit := whole_number(line.get(key, ""))) is not None]
    most, why = min(limits, default=(nodes, ""))
    if nodes > most:
        said = f"partition {name} has {most}" if why == "TotalNodes" else f"partition {name} allows {most} (MaxNodes)"
        return f"a job of {counted(nodes, 'node')} never starts: {said}; fewer nodes, or another queue in the site file"
    longest = longest_s(line)
    if longest is not None and minutes * 60 > longest:
        return (
            f"a job of {format_duration(minutes * 60)} never starts: partition {name} allows {format_duration(longest)} (MaxTime); "
            f"`walltime: {int(longest)}s` or less in the site file, a shorter `limits: {{walltime: ...}}` in the study, or another queue"
        )
    return None


def never_starts(size: JobSize) -> str | None:
    """The same of this cluster; None where no Slurm is here, or it does not say. Raises SchedulerSilent."""
    try:
        return partition_problem(parse_partitions(ask(SLURM, SHOW, 0.0, QUICK_ANSWER_S)), size.queue, size.nodes, size.minutes)
    except SchedulerSilent:
        raise
    except SchedulerOutputError:
        return None


def refusal_of(job: BatchJob) -> str | None:
    """What sbatch would refuse of `job`, in Slurm's words, without submitting it; None if nothing, or nobody answers."""
    try:
        env = carried(slurm_environment(os.environ))
        result = run(("sbatch", "--test-only"), timeout_s=QUICK_ANSWER_S, env=env, stdin=batch_script(job))
    except (SlipwayError, subprocess.SubprocessError):
        return None
    if result.returncode == 0 or silence_of(SLURM, result) or not any(words in result.stderr for words in FOR_GOOD):
        return None
    return last_words(SLURM, result)
