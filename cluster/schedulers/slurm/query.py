"""What slurmctld knows of jobs: short questions, asked again while it is silent, with answers read into frozen values.

Times are asked for as seconds since 1970 (SLURM_TIME_FORMAT=%s), so that no time zone has a part in them. Everything here may wait up to
`patience_s`: processes that must not, call it in a child with a time limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from base.errors import SchedulerOutputError, SchedulerSilent, SlipwayError
from cluster.schedulers.asking import Server, ask, in_english, one_try
from cluster.schedulers.limits import ANSWER_S, PATIENCE_S
from cluster.schedulers.slurm.answers import JobInfo, parse_job, parse_node_addresses, parse_version
from cluster.schedulers.slurm.environ import job_environ

SILENCE: Final = (
    "Unable to contact slurm controller",
    "Socket timed out on send/recv operation",
    "Connection refused",
    "Connection timed out",
    "Zero Bytes were transmitted or received",
    "Slurm backup controller in standby mode",
    "Slurm temporarily unable to accept",
    "Transport endpoint is not connected",
    "Unexpected message received",
)
"""What Slurm's commands say when slurmctld does not answer: it is restarted, busy, or cut off."""
NO_CLUSTER: Final = ("Could not establish a configuration source", "DNS SRV lookup failed", "Unable to process configuration file")
"""What they say where there is no slurm.conf, and no controller to ask for one."""
UNKNOWN_JOB: Final = ("Invalid job id specified", "Invalid job id")


def slurm_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` for a command of Slurm: times as numbers, English, and the configuration of our job's cluster where it was taken away."""
    env = {**in_english(environ), "SLURM_TIME_FORMAT": "%s"}
    if "SLURM_CONF" not in env:
        configuration = job_environ(environ).get("SLURM_CONF")
        if configuration is not None:
            env["SLURM_CONF"] = configuration
    return env


SLURM: Final = Server(
    title="Slurm",
    name="slurmctld",
    silence=SILENCE,
    nowhere=NO_CLUSTER,
    cluster="belongs to no Slurm cluster",
    advice="do this on a login node of the cluster",
    environment=slurm_environment,
)


def job_info(job_id: str, patience_s: float = PATIENCE_S, timeout_s: float = ANSWER_S) -> JobInfo | None:
    """What slurmctld knows of a job; None when it does not know it: it has ended, longer ago than MinJobAge, or never was."""
    try:
        answer = ask(SLURM, ("scontrol", "-o", "show", "job", job_id), patience_s, timeout_s)
    except SchedulerSilent:
        raise
    except SchedulerOutputError as error:
        if any(words in str(error) for words in UNKNOWN_JOB):
            return None
        raise
    return parse_job(answer, job_id)


def node_addresses(names: Sequence[str], patience_s: float = PATIENCE_S) -> dict[str, str]:
    """NodeAddr of each node, as far as slurmctld says it now; one question for all. Empty while it is silent."""
    if not names:
        return {}
    try:
        answer = ask(SLURM, ("scontrol", "-o", "show", "node", ",".join(names)), patience_s)
    except SchedulerOutputError:
        return {}
    return parse_node_addresses(answer)


def slurm_version() -> str | None:
    """Such as `22.05.8`; None where there is no Slurm that can be used."""
    try:
        result, _ = one_try(SLURM, ("scontrol", "--version"), ANSWER_S)
    except SlipwayError:
        return None
    return parse_version(result.stdout) if result is not None and result.returncode == 0 else None
