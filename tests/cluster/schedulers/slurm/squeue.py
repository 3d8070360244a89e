"""Jobs as a test wants them, by the line of squeue that tells of them."""

from cluster.schedulers.jobs import QueuedJob
from cluster.schedulers.slurm.answers import COLUMNS, parse_queue


def squeue_job(**words: object) -> QueuedJob:
    """`words`: by the names of COLUMNS."""
    (job,) = parse_queue("".join(str(words.get(key, "")).ljust(width) for key, _, width in COLUMNS))
    return job
