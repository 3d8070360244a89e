"""Jobs in the queue of a cluster, and what people do to them, in the words of its scheduler."""

from dataclasses import dataclass
from typing import Final

from tests.minicluster.cluster import Cluster
from tests.minicluster.spec import USER, ClusterError

LIMIT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Words:
    """Commands; `{job}` stands for a job's id, which is the first word of each line of the two lists."""

    user: str | None
    """Whose jobs they are; None: root's, where root may submit."""
    listed: str
    running: str
    cancel: str
    requeue: str
    suspend: str
    resume: str
    on_node: str | None = None
    """What a job asks for that is to run on `{node}`, where Slipway's own script asks."""
    shorten: str | None = None
    """Let its time be over at once; None where a limit holds for what has not started only."""
    once: str | None = None
    """Let it not start again by itself; None where none does."""
    ends_already: str | None = None
    """How a command is refused for a job that is being ended; None where it is not."""
    empty: str | None = None
    """How a list is refused in which there is no job; None where it is empty then."""


WORDS: Final = {
    "slurm": Words(
        user=None,
        listed="squeue --noheader --format=%A",
        running="squeue --noheader --states=RUNNING --format=%A",
        cancel="scancel {job}",
        requeue="scontrol requeue {job}",
        suspend="scontrol suspend {job}",
        resume="scontrol resume {job}",
        shorten="scontrol update JobId={job} TimeLimit=1",
        once="scontrol update JobId={job} Requeue=0",
    ),
    "sge": Words(
        user=USER,
        listed="qstat -u *",
        running="qstat -u * -s r",
        cancel="qdel {job}",
        requeue="qmod -rj {job}",
        suspend="qmod -sj {job}",
        resume="qmod -usj {job}",
        on_node="hostname={node}",
    ),
    "pbs": Words(
        user=USER,
        listed="qselect",
        running="qselect -s R",
        cancel="qdel {job}",
        requeue="qrerun {job}",
        suspend="qsig -s suspend {job}",
        resume="qsig -s resume {job}",
        on_node="host={node}",
        shorten="qalter -l walltime=1 {job}",
        once="qalter -r n {job}",
        ends_already="Request invalid for state of job",
    ),
    "lsf": Words(
        user=USER,
        listed="bjobs -u all -noheader -o jobid",
        running="bjobs -u all -r -noheader -o jobid",
        cancel="bkill {job}",
        requeue="brequeue {job}",
        suspend="bstop {job}",
        resume="bresume {job}",
        on_node="hname=={node}",
        empty="job found",
    ),
}


def words_of(cluster: Cluster) -> Words:
    return WORDS[cluster.spec.scheduler]


def listed(cluster: Cluster, *, running: bool = False) -> list[str]:
    """Ids of all jobs that are not over, or of those that run. Raises ClusterError while nobody answers."""
    words = words_of(cluster)
    done = cluster.exec("login", (words.running if running else words.listed).split(), timeout=LIMIT_S)
    if words.empty is not None and words.empty in done.stderr:
        return []
    if done.returncode:
        raise ClusterError(f"{words.listed}: exit code {done.returncode}: {done.stderr.strip()}")
    return [first for line in done.stdout.splitlines() if (first := line.split()[0])[0].isdecimal()]


def order(cluster: Cluster, command: str | None, job: str) -> None:
    """As an operator. Raises ClusterError where it is refused; one that is over by now, or being ended, is no failure."""
    if command is None:
        raise ClusterError(f"{cluster.spec.scheduler} has no such command for a job")
    done = cluster.exec("login", command.format(job=job).split(), timeout=LIMIT_S)
    ends = words_of(cluster).ends_already
    if done.returncode and not (ends is not None and ends in done.stderr) and job in listed(cluster):
        raise ClusterError(f"{command.format(job=job)}: exit code {done.returncode}: {done.stdout}{done.stderr}")
