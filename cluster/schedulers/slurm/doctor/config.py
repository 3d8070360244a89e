"""`scontrol show config`: read, and judged by what matters to a run. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from base.finding import Finding, Level
from cluster.doctor.asked import Asked
from cluster.schedulers.slurm.doctor.versions import judge_version, parse_version
from cluster.schedulers.slurm.limits import ASKED_WITHIN_S, NODE_STOP_S

SUBJECT: Final = "scheduler"
UNSET: Final = ("", "(null)", "none", "n/a")

Config = Mapping[str, str]


def parse_config(text: str) -> dict[str, str]:
    """`Name = value` lines, those of the cgroup section too; a name twice keeps its first value."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and re.fullmatch(r"\w+(\[\d+\])?", name.strip()):
            found.setdefault(name.strip(), value.strip())
    return found


def seconds(value: str | None) -> float | None:
    """`300 sec`, `10`, `5 min`: seconds; None where it is not a number."""
    match = re.match(r"(\d+)\s*(min|hour)?", value or "")
    return float(match[1]) * {"min": 60, "hour": 3600}.get(match[2] or "", 1) if match else None


def is_set(value: str | None) -> bool:
    """Whether a value says something."""
    return (value or "").strip().lower() not in UNSET


def has_accounting(config: Config) -> bool:
    """Whether there is a slurmdbd, so that sacct and sacctmgr answer."""
    return config.get("AccountingStorageType", "").endswith("/slurmdbd")


def has_private_tmp(config: Config) -> bool:
    """Whether each job gets a /tmp of its own, removed at its end."""
    return config.get("JobContainerType", "").endswith("/tmpfs")


def judge_config(config: Config, asked: Asked) -> tuple[Finding, ...]:
    """Everything worth saying of the configuration."""
    version = parse_version(config.get("SLURM_VERSION", ""))
    return (
        *judge_version(version, config.get("CgroupPlugin")),
        *_accounting(config, asked),
        *_memory(config),
        *_end_of_jobs(config),
        *_preemption(config),
        *_tracking(config, asked),
        *_selection(config, asked),
        *_surroundings(config),
    )


def _accounting(config: Config, asked: Asked) -> Iterator[Finding]:
    if has_accounting(config):
        yield Finding(SUBJECT, "ok", f"accounting by slurmdbd at {config.get('AccountingStorageHost')}: sacct and sacctmgr answer")
        return
    yield Finding(
        SUBJECT, "note", "no slurmdbd: sacct answers 'accounting storage is disabled'", "nothing: Slipway asks squeue and scontrol"
    )
    if is_set(asked.account):
        yield Finding(SUBJECT, "note", f"account {asked.account!r} of the site file means nothing here: there is no accounting")


def _memory(config: Config) -> Iterator[Finding]:
    age = seconds(config.get("MinJobAge"))
    if age is None:
        return
    said = f"MinJobAge {age:g} s: so long squeue shows a finished job"
    if age < ASKED_WITHIN_S:
        text = f"{said}; a job that is killed may be forgotten before Slurm is asked why"
        yield Finding(SUBJECT, "note", text, "nothing: how it ended is known by its exit file and the record; or ask for MinJobAge=300")
    else:
        yield Finding(SUBJECT, "ok", said)


def _end_of_jobs(config: Config) -> Iterator[Finding]:
    wait = seconds(config.get("KillWait"))
    if wait is not None and wait < NODE_STOP_S:
        text = f"KillWait {wait:g} s: SIGKILL follows SIGTERM sooner than the stop of what ignores SIGTERM, up to {NODE_STOP_S:g} s"
        yield Finding(SUBJECT, "note", text, "nothing: a container that is left then is ended by its watchdog within 30 s")
    elif wait is not None:
        yield Finding(SUBJECT, "ok", f"KillWait {wait:g} s is enough to stop a run in order")
    if config.get("JobRequeue") == "0":
        yield Finding(
            SUBJECT, "note", "JobRequeue 0: Slurm does not requeue after a lost node", "nothing: the same snakemake command continues"
        )
    cut = seconds(config.get("SlurmdTimeout"))
    if cut:
        text = f"a node that is cut off is given up after SlurmdTimeout {cut:g} s; until then its run may go on beside its successor"
        yield Finding(SUBJECT, "note", text, "nothing: only the holder of a run's lease can publish its result")


def _preemption(config: Config) -> Iterator[Finding]:
    mode = config.get("PreemptMode", "OFF").upper()
    if not is_set(config.get("PreemptType")) or config.get("PreemptType") == "preempt/none" or mode == "OFF":
        yield Finding(SUBJECT, "ok", "jobs are not preempted")
    elif "SUSPEND" in mode or "GANG" in mode:
        text = f"PreemptMode {mode}: a job may be stopped and go on later; a measurement in between is worth nothing"
        yield Finding(
            SUBJECT, "warning", text, "a partition or qos without preemption; a suspended run ends as `preempted` and is run again"
        )
    else:
        exempt = config.get("PreemptExemptTime", "")
        text = f"PreemptMode {mode}: a job may be {'requeued' if mode == 'REQUEUE' else 'cancelled'} for another"
        text += f", not in its first {exempt}" if exempt not in ("", "00:00:00", "NONE") else ""
        yield Finding(
            SUBJECT, "note", text, "nothing: such a run ends as `preempted` and is run again, from its checkpoint where it has one"
        )


def _tracking(config: Config, asked: Asked) -> Iterator[Finding]:
    track = config.get("ProctrackType", "")
    if track == "proctrack/cgroup":
        yield Finding(SUBJECT, "ok", "ProctrackType cgroup: the processes of a step end with it")
    else:
        text = f"ProctrackType {track.rpartition('/')[2]}: a process that leaves its parent outlives its job"
        yield Finding(SUBJECT, "warning", text, "ask for proctrack/cgroup; Slipway's own processes end with their node program")
    if "cgroup" not in config.get("TaskPlugin", ""):
        text = (
            f"TaskPlugin {config.get('TaskPlugin', '').replace('task/', '') or 'none'}: cores, memory and devices of a job are not enforced"
        )
    else:
        off = [name for name in ("ConstrainCores", "ConstrainRAMSpace", "ConstrainDevices") if config.get(name, "yes").lower() == "no"]
        text = f"{', '.join(off)} no: jobs can use what they were not given" if off else ""
    if not text:
        yield Finding(SUBJECT, "ok", "cores, memory and devices of a job are enforced by cgroups")
    elif asked.share_nodes:
        yield Finding(SUBJECT, "warning", text, "share_nodes: false in the site file, so that no neighbour disturbs a measurement")
    else:
        yield Finding(SUBJECT, "note", text, "nothing: share_nodes is false, a run has its nodes alone and uses the GPUs granted by UUID")


def _selection(config: Config, asked: Asked) -> Iterator[Finding]:
    select = config.get("SelectType", "").rpartition("/")[2]
    if select == "linear":
        yield Finding(SUBJECT, "note", "SelectType linear: jobs get whole nodes, always", "nothing: share_nodes has no effect here")
    elif select == "cons_tres":
        yield Finding(SUBJECT, "ok", f"SelectType cons_tres ({config.get('SelectTypeParameters')}): cores and GPUs are granted one by one")
    else:
        text = f"SelectType {select}: GPUs are granted by --gres only"
        yield Finding(SUBJECT, "note", text, "nothing: Slipway asks with --gres")
    if (asked.gpus_per_node or asked.device == "cuda") and "gpu" not in config.get("GresTypes", "").split(","):
        text = f"the site has GPUs, but GresTypes is {config.get('GresTypes')}: Slurm does not know them, a job with --gres=gpu is refused"
        level: Level = "error" if asked.gpus_per_node else "warning"
        yield Finding(SUBJECT, level, text, "leave gpus_per_node out of the site file, or ask for GresTypes=gpu")


def _surroundings(config: Config) -> Iterator[Finding]:
    if has_private_tmp(config):
        text = "each job has a /tmp and /dev/shm of its own (job_container/tmpfs), removed at its end"
        yield Finding(SUBJECT, "note", text, "cache.path of the site file must lie elsewhere")
    for name in ("Epilog", "TaskEpilog", "Prolog"):
        if is_set(config.get(name)):
            text = f"{name} {config[name]} runs for every job; some sites clear /tmp, /dev/shm or the page cache there"
            yield Finding(SUBJECT, "note", text, "keep the cache out of what it clears; a dataset that is gone is staged again")
    if "rl_enable" in config.get("SlurmctldParameters", ""):
        text = "the controller limits questions per user (rl_enable)"
        yield Finding(SUBJECT, "note", text, "nothing: one question per interval for all runs together")
