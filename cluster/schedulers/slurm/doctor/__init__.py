"""Check Slurm for `slipway doctor` by a few queries, none of which is repeated for long."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from base.account import account_name
from base.command import CommandResult, last_lines, run
from base.errors import SchedulerOutputError, SchedulerSilent, SlipwayError
from base.finding import Finding, Level, worst
from base.names import choices
from base.units import counted, format_duration, format_size
from cluster.doctor.checks import Asked
from cluster.schedulers.doctor import Value, mib
from cluster.schedulers.queries import DOCTOR_PATIENCE_S, QUICK_ANSWER_S, ask
from cluster.schedulers.queries import STEP_S as STEP_S
from cluster.schedulers.slurm.answers import (
    ASKED_WITHIN_S,
    NODE_LIST,
    NODE_STOP_S,
    SHORT_ANSWER_S,
    SHOW,
    SINFO,
    SLOW_CONTROLLER_S,
    SLOW_STEP_S,
    SLURM,
    Nodes,
    Partition,
    default_partition,
    expand,
    job_environ,
    longest_s,
    parse_nodes,
    parse_partitions,
    slurm_environment,
    slurm_version,
    whole_number,
)
from cluster.schedulers.slurm.job_end import srun_environment

# Slurm's versions: known bugs, and the features of each.


SUBJECT: Final = "scheduler"
Version = tuple[int, int, int]
OLDEST: Final[Version] = (20, 11, 0)
_VERSION: Final = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")


def parse_version(text: str) -> Version | None:
    """Convert `22.05.8`, `slurm-wlm 22.05.8` or `slurm 23.11.4-1.el9` to numbers such as (22, 5, 8). Returns None without a number."""
    match = _VERSION.search(text)
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def judge_version(version: Version | None, cgroup_plugin: str | None) -> Iterator[Finding]:
    """Report what matters to us in this version.

    `cgroup_plugin` is scontrol's value, such as `cgroup/v2`, or None if it has none.
    """
    if version is None:
        yield Finding(SUBJECT, "warning", "Slurm does not say its version", "`scontrol --version` by hand")
        return
    name = f"Slurm {version[0]}.{version[1]:02}.{version[2]}"
    if version < OLDEST:
        yield Finding(
            SUBJECT, "error", f"{name}: srun has no --overlap before 20.11, so no step can start beside the batch script", "update"
        )
        return
    if (22, 5, 5) <= version <= (22, 5, 8):
        text = f"{name}: --gpus is broken in 22.05.5 to 22.05.8 (bug 15857: 'Requested node configuration is not available')"
        yield Finding(SUBJECT, "note", text, "nothing: Slipway asks with --gres (so should `directives` of your own)")
    if version < (23, 2, 0):
        text = f"{name} does not tell jobs their end (SLURM_JOB_END_TIME came with 23.02)"
        yield Finding(SUBJECT, "note", text, "nothing: each run asks the controller once for it")
    if version < (23, 11, 0):
        text = f"{name}: scancel signals only direct children of a step's daemon (SignalChildrenProcesses came with 23.11)"
        yield Finding(SUBJECT, "note", text, "nothing: every node program is such a child and stops what it started")
    if version < (25, 5, 0) or cgroup_plugin == "cgroup/v1":
        yield Finding(
            SUBJECT,
            "note",
            f"{name}{f' with {cgroup_plugin}' if cgroup_plugin else ''}: the end of a job does not kill nested cgroups, such as a "
            "container's, that processes of it have made (cgroup.kill is used from 25.05 on, with cgroup/v2)",
            "nothing: containers are stopped by their node program and have a watchdog",
        )


# The configuration, as `scontrol show config` prints it.

UNSET: Final = ("", "(null)", "none", "n/a")

Config = Mapping[str, str]


def parse_config(text: str) -> dict[str, str]:
    """Parse `Name = value` lines, including the cgroup section. A repeated name keeps its first value."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if equals and re.fullmatch(r"\w+(\[\d+\])?", name.strip()):
            found.setdefault(name.strip(), value.strip())
    return found


def seconds(value: str | None) -> float | None:
    """Convert `300 sec`, `10` or `5 min` to seconds. Returns None for anything else."""
    match = re.match(r"(\d+)\s*(min|hour)?", value or "")
    return float(match[1]) * {"min": 60, "hour": 3600}.get(match[2] or "", 1) if match else None


def is_set(value: str | None) -> bool:
    """Return True if a value is not empty."""
    return (value or "").strip().lower() not in UNSET


def has_accounting(config: Config) -> bool:
    """Return True if there is a slurmdbd, so that sacct and sacctmgr answer."""
    return config.get("AccountingStorageType", "").endswith("/slurmdbd")


def has_private_tmp(config: Config) -> bool:
    """Return True if each job gets its own /tmp, which is removed at its end."""
    return config.get("JobContainerType", "").endswith("/tmpfs")


def judge_config(config: Config, asked: Asked) -> tuple[Finding, ...]:
    """Report everything in the configuration that matters to a run."""
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


# The controller: how fast it answers, how busy it is, and our accounts and QoS.

SILENT: Final = "the controller does not answer"
BUSY_THREADS: Final = 100
"""The number of threads from which a controller is called busy. Its default maximum is 256."""
LONG_QUEUE: Final = 1000
ASSOCIATIONS: Final = ("sacctmgr", "--noheader", "--parsable2", "show", "associations")
FORMAT: Final = ("format=account,partition,qos,defaultqos,maxjobs,maxsubmit",)


@dataclass(frozen=True, kw_only=True)
class Association:
    """One of our associations in the answer of sacctmgr.

    `qos` may be used with `account`, and only in `partition` unless that is empty.
    """

    account: str
    partition: str
    qos: tuple[str, ...]
    limits: str


def parse_associations(text: str) -> tuple[Association, ...]:
    """Parse the answer to `ASSOCIATIONS` with `FORMAT`."""
    found = []
    for line in text.splitlines():
        words = line.split("|")
        if len(words) >= 6 and words[0]:
            limits = ", ".join(f"{name} {value}" for name, value in zip(("MaxJobs", "MaxSubmit"), words[4:6], strict=True) if value)
            qos = tuple(name for name in words[2].split(",") if name)
            found.append(Association(account=words[0], partition=words[1], qos=qos, limits=limits))
    return tuple(found)


def judge_associations(associations: Sequence[Association], asked: Asked, user: str) -> Iterator[Finding]:
    """Check that we may use the account and QoS of the site file."""
    subject = "accounts"
    accounts = list(dict.fromkeys(found.account for found in associations))
    if not accounts:
        text = f"{user} has no account in Slurm's accounting"
        yield Finding(subject, "warning", text, "ask for one where this cluster enforces accounts; jobs are refused then")
        return
    if asked.account and asked.account not in accounts:
        text = f"account {asked.account!r} of the site file is not one of {user}'s: {', '.join(accounts)}"
        yield Finding(subject, "error", text, "account: one of these in the site file")
    elif not asked.account and len(accounts) > 1:
        text = f"{user} has the accounts {', '.join(accounts)}; the site file names none: the default one pays"
        yield Finding(subject, "note", text, "account: NAME in the site file")
    own = [found for found in associations if found.account == (asked.account or found.account)] or list(associations)
    qos = list(dict.fromkeys(name for found in own for name in found.qos))
    if asked.qos and qos and asked.qos not in qos:
        text = f"qos {asked.qos!r} of the site file is not open to account {asked.account or accounts[0]}: {', '.join(qos)}"
        yield Finding(subject, "error", text, "qos: one of these in the site file")
    for found in own:
        limits = f"; {found.limits}" if found.limits else ""
        qualities = f"qos {', '.join(found.qos)}" if found.qos else "no qos"
        where = f" in {found.partition}" if found.partition else ""
        yield Finding(subject, "ok", f"account {found.account}{where}: {qualities}{limits}")


def judge_ping(text: str, taken_s: float) -> Iterator[Finding]:
    """Judge the answer of `scontrol ping` and the time that it took."""
    said = "; ".join(line.strip() for line in text.splitlines() if "Slurmctld" in line) or last_lines(text, 1)
    if not re.search(r"\bUP\b", said):
        text = f"{SILENT}: {said or 'no word from scontrol ping'}; nothing else was asked of it"
        advice = (
            "wait and ask again: sbatch and squeue fail now, runs that go on are not lost. If it stays so: is SLURM_CONF the right one?"
        )
        yield Finding(SUBJECT, "error", text, advice)
    elif re.search(r"\bDOWN\b", said):
        yield Finding(SUBJECT, "note", f"one of the controllers is down: {said}")
    elif taken_s > SLOW_CONTROLLER_S:
        text = f"the controller took {taken_s:.1f} s to answer: it is busy"
        yield Finding(SUBJECT, "warning", text, "`slipway submit` asks it least: one job for the whole study")
    else:
        yield Finding(SUBJECT, "ok", f"the controller answers in {max(1, round(taken_s * 1000))} ms")


def judge_activity(sdiag: str, user: str) -> Iterator[Finding]:
    """Report how busy the controller is by `sdiag`, and our share of its load."""
    threads, agents, pending = (_number(sdiag, name) for name in ("Server thread count", "Agent queue size", "Jobs pending"))
    if threads is not None and threads > BUSY_THREADS:
        text = f"the controller works on {threads} questions at once: it is overloaded"
        yield Finding(SUBJECT, "warning", text, "`slipway submit` asks it least: one job for the whole study")
    if agents is not None and agents > LONG_QUEUE:
        text = f"{agents} messages to nodes wait in the controller: jobs start and end late"
        yield Finding(SUBJECT, "note", text, "nothing: runs wait patiently")
    dbd = _number(sdiag, "DBD Agent queue size")
    if dbd is not None and dbd > LONG_QUEUE:
        text = f"{dbd} messages wait for slurmdbd: sacct shows old states"
        yield Finding(SUBJECT, "warning", text, "nothing for runs, which are asked for by squeue; sacct is late for people")
    ours = re.search(rf"^\s*{re.escape(user)}\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:(\d+)", sdiag, re.MULTILINE)
    if ours and pending is not None:
        text = f"sdiag: {pending} jobs wait; {user} has asked {ours[1]} times, {int(ours[2]) / 1000:.1f} ms each"
        yield Finding(SUBJECT, "ok", text)


def _number(text: str, name: str) -> int | None:
    match = re.search(rf"^\s*{re.escape(name)}:\s*(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else None


# The launcher: whether srun has Slurm's version and starts a task on every node of the allocation.


LAUNCHER: Final = "launcher"
MOST_ALONE: Final = 8
"""The largest number of nodes that are tried one by one after the step on all of them has failed."""
SAY: Final = ("/bin/sh", "-c", 'echo "@ $SLURMD_NODENAME ${CUDA_VISIBLE_DEVICES-unset}"')


def step_argv(job_id: str, nodes: Sequence[str], argv: Sequence[str]) -> tuple[str, ...]:
    """Build the step that runs `argv` once on each of `nodes`, beside other steps of the job, with all GPUs of the job."""
    count = len(nodes)
    return (
        *("srun", f"--jobid={job_id}", "--overlap", f"--nodelist={','.join(nodes)}", f"--nodes={count}", f"--ntasks={count}"),
        *("--ntasks-per-node=1", "--mem=0", "--cpu-bind=none", "--input=none", "--kill-on-bad-exit=0", "--job-name=slipway-doctor"),
        *argv,
    )


def run_step(
    job_id: str, nodes: Sequence[str], argv: Sequence[str], timeout_s: float, more: Mapping[str, str] = MappingProxyType({})
) -> CommandResult:
    """Run a step in the environment of a run's own steps, with `more`.

    Raises SlipwayError if it cannot be started or does not end.
    """
    env = {**srun_environment(os.environ, slurm_environment(os.environ)), **more}
    return run(step_argv(job_id, nodes, argv), timeout_s=timeout_s, env=env)


def parse_step(text: str) -> dict[str, str]:
    """Parse the output of `SAY` into the CUDA_VISIBLE_DEVICES of each node; `unset` if a node has none."""
    lines = [line.split(" ", 2) for line in text.splitlines() if line.startswith("@ ")]
    return {words[1]: words[2] for words in lines if len(words) == 3}


def judge_step(said: Mapping[str, str], nodes: Sequence[str], taken_s: float) -> Iterator[Finding]:
    """Report which nodes answered, how fast, and with which GPUs."""
    missing = [name for name in nodes if name not in said]
    if missing:
        text = f"srun started nothing on {', '.join(missing)} of {len(nodes)} nodes"
        yield Finding(LAUNCHER, "error", text, f"`scontrol show node {missing[0]}`, and the log of its slurmd")
    if not said:
        return
    slow = taken_s > SLOW_STEP_S
    where = f"{len(said)} {'node' if len(said) == 1 else 'nodes'}"
    text = f"srun started one task on each of {where} in {format_duration(taken_s)}"
    yield Finding(LAUNCHER, "note" if slow else "ok", text, "each run waits so long before it begins" if slow else "")
    groups: dict[str, list[str]] = {}
    for name, devices in sorted(said.items(), key=lambda pair: nodes.index(pair[0]) if pair[0] in nodes else len(nodes)):
        groups.setdefault(devices, []).append(name)
    for devices, names in groups.items():
        shown = "not set" if devices == "unset" else devices or "empty"
        yield Finding("gpus", "ok", f"CUDA_VISIBLE_DEVICES in a task: {shown}", "", tuple(names))
    if len({len(devices.split(",")) if devices not in ("", "unset") else 0 for devices in groups}) > 1:
        yield Finding("gpus", "warning", "the nodes of this allocation have different numbers of GPUs", "ask for them with --gres=gpu:N")


def judge_versions(srun: str, scontrol: str) -> Iterator[Finding]:
    """Compare the versions that both commands print."""
    ours, theirs = parse_version(srun), parse_version(scontrol)
    if ours is None:
        yield Finding(LAUNCHER, "error", f"srun does not say its version: {srun.strip() or 'no answer'}", "`srun --version` by hand")
    elif ours != theirs:
        text = f"srun is {srun.strip()}, scontrol is {scontrol.strip() or 'silent'}: two installations on PATH"
        yield Finding(LAUNCHER, "warning", text, "the site's own first on PATH, or the right module")
    else:
        yield Finding(LAUNCHER, "ok", f"srun is {srun.strip()}, as scontrol")


def check_versions() -> tuple[Finding, ...]:
    """Query the versions of both commands, which does not involve the controller."""
    said = []
    for command in ("srun", "scontrol"):
        try:
            said.append(run((command, "--version"), timeout_s=10.0).stdout)
        except SlipwayError as error:
            return (Finding(LAUNCHER, "error", str(error), "a login node, or the module of the scheduler"),)
    return tuple(judge_versions(*said))


def try_step(job_id: str, nodes: Sequence[str]) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Run one real step on all nodes, and return the findings and the nodes that answered.

    If the step fails, one step runs on each node, to find the bad one.
    """
    start = time.monotonic()
    try:
        result = run_step(job_id, nodes, SAY, STEP_S)
    except SlipwayError:
        reason = f"does not end within {STEP_S:g} s"
    else:
        if result.returncode == 0:
            said = parse_step(result.stdout)
            return tuple(judge_step(said, nodes, time.monotonic() - start)), tuple(name for name in nodes if name in said)
        reason = f"ends with {result.returncode}: {last_lines(result.stderr, 2)}".replace("\n", "; ")
    where = ", ".join(nodes[:MOST_ALONE])
    found = [Finding(LAUNCHER, "error", f"srun on {where} {reason}", "`squeue --steps` shows what else runs there; one by one:")]
    good = []
    for name in nodes[:MOST_ALONE]:
        trouble = _alone(job_id, name)
        if trouble:
            advice = f"`scontrol show node {name}`, and the log of its slurmd; another allocation without it: --exclude={name}"
            found.append(Finding(LAUNCHER, "error", f"srun on {name} alone {trouble}", advice))
        else:
            found.append(Finding(LAUNCHER, "ok", f"srun on {name} alone works"))
            good.append(name)
    return tuple(found), tuple(good)


def _alone(job_id: str, name: str) -> str:
    """Return what went wrong on one node; empty if nothing did."""
    limit = STEP_S / MOST_ALONE
    try:
        result = run_step(job_id, (name,), SAY, limit)
    except SlipwayError:
        return f"does not end within {limit:g} s"
    return f"ends with {result.returncode}: {last_lines(result.stderr, 1)}" if result.returncode else ""


# The partition of the site's jobs, and what its nodes can give.


PARTITIONS: Final = "partitions"


def judge_partitions(partitions: Mapping[str, Partition], nodes: Sequence[Nodes], asked: Asked) -> tuple[Finding, ...]:
    """Check the partition that the site's jobs go to, and list the others."""
    default = default_partition(partitions)
    name = asked.queue or default
    if name is None:
        advice = f"queue: NAME in the site file; {choices('', partitions)}"
        return (Finding(PARTITIONS, "error", "the site names no queue, and this cluster has no default partition", advice),)
    if name not in partitions:
        text = f"queue {name!r} of the site file is not a partition of this cluster"
        return (Finding(PARTITIONS, "error", text, choices(name, partitions)),)
    others = [other for other in partitions if other != name]
    own = [group for group in nodes if group.partition == name]
    findings = [Finding(PARTITIONS, "ok", _summary(name, partitions[name], own, name == default))]
    if others:
        said = "; ".join(
            _summary(other, partitions[other], [group for group in nodes if group.partition == other], other == default)
            for other in others[:8]
        )
        findings.append(Finding(PARTITIONS, "ok", f"besides: {said}{'; ...' if len(others) > 8 else ''}"))
    findings += _state(name, partitions[name], own)
    findings += _rules(name, partitions[name], asked)
    findings += _sizes(name, [group for group in own if group.usable] or own, asked)
    return tuple(findings)


def _summary(name: str, partition: Partition, nodes: Sequence[Nodes], default: bool) -> str:
    groups: dict[str, int] = {}
    for group in nodes:
        gpus = f", {counted(group.gpus, 'GPU')}{f' {group.gpu_model}' if group.gpu_model else ''}" if group.gpus else ""
        size = f"{counted(group.cpus, 'core')}, {format_size(group.memory_bytes)}{gpus}"
        groups[size] = groups.get(size, 0) + group.count
    said = " and ".join(f"{counted(count, 'node')} of {size}" for size, count in groups.items()) or "no nodes"
    limit = partition.get("MaxTime", "UNLIMITED")
    return f"{name}{' (default)' if default else ''}: {said}; at most {'for ever' if limit == 'UNLIMITED' else limit}"


def _state(name: str, partition: Partition, nodes: Sequence[Nodes]) -> Iterator[Finding]:
    if partition.get("State", "UP") != "UP":
        yield Finding(PARTITIONS, "error", f"partition {name} is {partition['State']}: jobs wait there", "another queue, or wait")
    away = sum(group.count for group in nodes if not group.usable)
    total = sum(group.count for group in nodes)
    if total and away == total:
        states = ", ".join(sorted({group.state for group in nodes}))
        yield Finding(PARTITIONS, "error", f"no node of {name} can be used: {states}", "`sinfo -R` says why; another queue, or wait")
    elif away:
        states = ", ".join(sorted({group.state for group in nodes if not group.usable}))
        yield Finding(
            PARTITIONS, "note", f"{away} of {counted(total, 'node')} of {name} cannot be used now: {states}", "`sinfo -R` says why"
        )


def _rules(name: str, partition: Partition, asked: Asked) -> Iterator[Finding]:
    longest = longest_s(partition)
    if longest is not None and asked.walltime_s is not None and asked.walltime_s > longest:
        text = f"walltime {format_duration(asked.walltime_s)} of the site file is longer than MaxTime {partition['MaxTime']} of {name}"
        yield Finding(PARTITIONS, "error", text, f"walltime: {int(longest)}s, or shorter: such jobs are refused or wait for ever")
    if asked.walltime_s is None:
        text = f"the site file states no walltime; {name} allows {partition.get('MaxTime', 'UNLIMITED')}"
        yield Finding(
            PARTITIONS, "note", text, "walltime in the site file, so that a study that wants more is refused before it is submitted"
        )
    for key, said in (("AllowAccounts", asked.account), ("AllowQos", asked.qos)):
        allowed = partition.get(key, "ALL")
        if allowed != "ALL" and said not in allowed.split(","):
            text = f"{name} is open to {key.removeprefix('Allow').lower()} {allowed} only; the site file says {said or 'none'}"
            yield Finding(
                PARTITIONS, "error" if said else "warning", text, f"{'account' if key == 'AllowAccounts' else 'qos'} in the site file"
            )
    if partition.get("AllowGroups", "ALL") != "ALL":
        yield Finding(PARTITIONS, "note", f"{name} is open to the groups {partition['AllowGroups']} only", "`id` says yours")
    if partition.get("OverSubscribe", "NO").startswith(("FORCE", "YES")) and not asked.share_nodes:
        text = f"OverSubscribe {partition['OverSubscribe']} of {name}: jobs may share cores"
        yield Finding(PARTITIONS, "note", text, "nothing: runs ask for whole nodes (--exclusive); `FORCE` would override that")
    if partition.get("PreemptMode") == "OFF":
        yield Finding(PARTITIONS, "ok", f"jobs of {name} are not preempted, whatever the cluster's PreemptMode")
    most = whole_number(partition.get("MaxNodes", ""))
    if most is not None:
        text = f"a job of {name} may have at most {counted(most, 'node')}"
        yield Finding(PARTITIONS, "note", text, "no more than that on the axis `nodes` of a study")


def _sizes(name: str, nodes: Sequence[Nodes], asked: Asked) -> Iterator[Finding]:
    for key, said, found, show in (
        ("gpus_per_node", asked.gpus_per_node, [group.gpus for group in nodes], _plain),
        ("cpus_per_node", asked.cpus_per_node, [group.cpus for group in nodes], _plain),
        ("memory_per_node", asked.memory_per_node_bytes, [group.memory_bytes for group in nodes], format_size),
    ):
        if said is None or not found or said <= min(found):
            continue
        if said > max(found):
            text = f"{key} {show(said)} of the site file: the nodes of {name} have {show(max(found))} at most"
            yield Finding(PARTITIONS, "error", text, f"{key}: {show(max(found))} or less; such jobs are refused, or wait for ever")
        else:
            few = sum(group.count for group, value in zip(nodes, found, strict=True) if said <= value)
            yield Finding(PARTITIONS, "note", f"{key} {show(said)} of the site file: only {counted(few, 'node')} of {name} have so much")
    models = {group.gpu_model for group in nodes if group.gpus}
    if len(models) > 1:
        text = f"{name} has GPUs of several models: {', '.join(sorted(models))}; cells that get different ones cannot be compared"
        yield Finding(PARTITIONS, "warning", text, "constraint: FEATURE in the site file picks one")
    if any(group.gpus for group in nodes) and asked.device == "cuda" and asked.gpus_per_node is None:
        text = f"the nodes of {name} have GPUs; the site file does not say how many: none are asked for"
        yield Finding(PARTITIONS, "warning", text, f"gpus_per_node: {min(group.gpus for group in nodes if group.gpus)} in the site file")


def _plain(number: float) -> str:
    return f"{number:g}"


# Proposals for a site file from the partitions: queue, sizes and walltime.


def choose_partition(partitions: Mapping[str, Partition], nodes: Sequence[Nodes]) -> str | None:
    """Choose the default partition, or if only others have GPUs, the one of these with the most usable nodes."""
    default = default_partition(partitions)
    usable = [group for group in nodes if group.usable and partitions.get(group.partition, {}).get("State") == "UP"]
    with_gpus: dict[str, int] = {}
    for group in usable:
        if group.gpus:
            with_gpus[group.partition] = with_gpus.get(group.partition, 0) + group.count
    if with_gpus and default not in with_gpus:
        return max(with_gpus, key=lambda name: with_gpus[name])
    return default or next((group.partition for group in usable), next(iter(partitions), None))


def from_partitions(partitions: Mapping[str, Partition], nodes: Sequence[Nodes]) -> dict[str, Value]:
    """Propose queue, sizes and walltime."""
    name = choose_partition(partitions, nodes)
    if name is None:
        return {}
    own = [group for group in nodes if group.partition == name]
    own = [group for group in own if group.usable] or own
    others = ", ".join(other for other in partitions if other != name)
    why = "the default partition" if name == default_partition(partitions) else "the largest with GPUs"
    found = {"queue": Value(value=name, why=why + (f"; others: {others}" if others else ""))}
    if own:
        smallest = "" if len({(group.cpus, group.memory_bytes, group.gpus) for group in own}) == 1 else ", the smallest of its nodes"
        found["cpus_per_node"] = Value(value=min(group.cpus for group in own), why=f"as sinfo says of {name}{smallest}")
        found["memory_per_node"] = Value(value=mib(min(group.memory_bytes for group in own)), why=f"as sinfo says of {name}{smallest}")
        gpus = [group for group in own if group.gpus]
        if gpus:
            models = ", ".join(sorted({group.gpu_model for group in gpus if group.gpu_model})) or "gres"
            found["gpus_per_node"] = Value(value=min(group.gpus for group in gpus), why=f"as sinfo says of {name}: {models}")
    longest = longest_s(partitions[name])
    if longest is not None:
        found["walltime"] = Value(value=duration(longest), why=f"MaxTime of {name}")
    return found


def duration(seconds: float) -> str:
    """Format seconds for a site file."""
    whole = int(seconds)
    parts = ((whole // 86400, "d"), (whole % 86400 // 3600, "h"), (whole % 3600 // 60, "m"), (whole % 60, "s"))
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "1s"


CONFIG: Final = ("scontrol", "show", "config")


def question(*argv: str) -> str:
    """Query the controller once, with little patience.

    Raises SchedulerSilent and SchedulerOutputError.
    """
    return ask(SLURM, argv, patience_s=DOCTOR_PATIENCE_S, timeout_s=SHORT_ANSWER_S)


def check_slurm(asked: Asked) -> tuple[Finding, ...]:
    """Check the controller, the configuration, the partitions and the accounts."""
    try:
        return _check(asked)
    except SchedulerSilent as error:
        advice = (
            "wait and ask again; runs that go on are not lost. On a login node: `scontrol ping`, and whether SLURM_CONF is the right one"
        )
        return (Finding(SUBJECT, "error", str(error), advice),)


def check_controller() -> tuple[Finding, ...]:
    """Ping the controller once.

    The ping reports DOWN with exit code 1 after some seconds of its own (MessageTimeout); the doctor does not wait that long.
    """
    start = time.monotonic()
    try:
        result = run(("scontrol", "ping"), timeout_s=QUICK_ANSWER_S, env=slurm_environment(os.environ))
    except SlipwayError as error:
        if not isinstance(error.__cause__, subprocess.TimeoutExpired):
            raise
        return tuple(judge_ping(f"no word within {QUICK_ANSWER_S:g} s", QUICK_ANSWER_S))
    said = result.stdout if "Slurmctld" in result.stdout else result.stderr
    return tuple(judge_ping(said, time.monotonic() - start))


def _check(asked: Asked) -> tuple[Finding, ...]:
    found = [*check_controller()]
    if worst(found) == "error":
        return tuple(found)
    config = parse_config(question(*CONFIG))
    user = account_name()
    found += judge_config(config, asked)
    found += _or_note("sdiag", lambda: tuple(judge_activity(question("sdiag"), user)))
    found += judge_partitions(parse_partitions(question(*SHOW)), parse_nodes(question(*SINFO)), asked)
    if has_accounting(config):
        argv = (*ASSOCIATIONS, f"user={user}", *FORMAT)
        found += _or_note("sacctmgr", lambda: tuple(judge_associations(parse_associations(question(*argv)), asked, user)))
    return tuple(found)


def _or_note(command: str, check: Callable[[], tuple[Finding, ...]]) -> tuple[Finding, ...]:
    try:
        return check()
    except SchedulerOutputError as error:
        return (Finding(SUBJECT, "note", f"{command} is not open to us here: {str(error).splitlines()[-1]}"),)


check, check_launcher = check_slurm, check_versions


def is_silent(found: Sequence[Finding]) -> bool:
    """Return True if the findings of a ping show a silent controller."""
    return any(finding.text.startswith(SILENT) for finding in found)


def is_here() -> bool:
    """Return True if Slurm's commands have a configuration. Fresh from a package they have none."""
    return slurm_version() is not None


def nodes_of_job(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the nodes in the job's own list."""
    try:
        return expand(job_environ(environ)[NODE_LIST])
    except (KeyError, SchedulerOutputError):
        return ()


def private_tmp() -> bool:
    """Return True if each job gets its own /tmp, and False if the controller does not answer."""
    try:
        return has_private_tmp(parse_config(ask(SLURM, CONFIG, patience_s=0, timeout_s=QUICK_ANSWER_S)))
    except SchedulerOutputError:
        return False


def node_names(queue: str | None, most: int) -> tuple[str, ...]:
    """Return up to `most` names of nodes of a partition (None: all partitions); empty if the controller does not answer."""
    argv = ("sinfo", "--noheader", "--Node", "--format=%N", *((f"--partition={queue}",) if queue else ()))
    try:
        return tuple(dict.fromkeys(ask(SLURM, argv, patience_s=0, timeout_s=QUICK_ANSWER_S).split()))[:most]
    except SchedulerOutputError:
        return ()


def proposals(user: str) -> dict[str, Value]:
    """Propose keys of a site file from the partitions and accounts.

    Raises SchedulerOutputError.
    """
    found = from_partitions(parse_partitions(question(*SHOW)), parse_nodes(question(*SINFO)))
    try:
        if has_accounting(parse_config(question(*CONFIG))):
            mine = parse_associations(question(*ASSOCIATIONS, f"user={user}", *FORMAT))
            accounts = list(dict.fromkeys(association.account for association in mine))
            if accounts:
                why = "your account" if len(accounts) == 1 else f"one of yours: {', '.join(accounts)}"
                found["account"] = Value(value=accounts[0], why=why, sure=len(accounts) == 1)
    except SchedulerOutputError:
        return found
    return found


def allocation_argv(asked: Asked) -> tuple[str, ...]:
    """Return the salloc with the requests of the site's jobs."""
    keys = (("partition", asked.queue), ("account", asked.account), ("qos", asked.qos), ("constraint", asked.constraint))
    gres = [f"--gres=gpu:{asked.gpus_per_node}"] if asked.gpus_per_node else []
    return ("salloc", "--nodes=2", "--exclusive", "--time=10", *(f"--{name}={value}" for name, value in keys if value), *gres)
